// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>

#include "ep_bench/check.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/measured_exchange.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/payload.hpp"

namespace ep_bench {

/// A measured exchange of one codec and one layout over one transport.
template <class Transport, class Codec, class Layout>
class exchange_of final : public measured_exchange {
  using exchange = peerbus::moe::exchange<Transport, Codec, Layout>;
  using token = typename exchange::token;

 public:
  exchange_of(peerbus::communicator<Transport>& comm, const options& chosen)
      : measured_exchange{wire_format::of<Codec>(chosen.hidden)}, moe_{comm, config_of(chosen)} {}

  void dispatch(std::span<const std::byte> tokens, const peerbus::moe::routing& route,
                peerbus::moe::lane as) override {
    const auto rows = moe_.dispatch(
        {reinterpret_cast<const token*>(tokens.data()), tokens.size() / sizeof(token)}, route,
        {.as = as});
    if (as.index == 0) received_ = rows;
  }
  void combine(std::span<peerbus::bf16> out, peerbus::moe::lane as) override {
    moe_.combine(*received_, out, {.as = as});
  }
  bool count_rows(peerbus::moe::ticket ticket, std::span<std::uint32_t> rows) override {
    return moe_.count_rows(ticket, rows);
  }
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const peerbus::moe::replica_choice& replicas) override {
    moe_.install_experts(physical_to_logical, replicas);
  }
  [[nodiscard]] const peerbus::moe::exchange_config& config() const noexcept override {
    return moe_.config();
  }
  [[nodiscard]] const peerbus::moe::relay_choice& relay() const noexcept override {
    return moe_.relay();
  }
  [[nodiscard]] const peerbus::moe::memory_map& map() const noexcept override { return moe_.map(); }
  [[nodiscard]] const peerbus::moe::expert_map& placement() const noexcept override {
    return moe_.placement();
  }
  [[nodiscard]] peerbus::moe::exchange_queries& queries() noexcept override { return moe_; }
  [[nodiscard]] peerbus::moe::memory_map map_for(
      const peerbus::moe::exchange_config& config, std::size_t ranks,
      peerbus::peer_reach reach) const noexcept override {
    return exchange::map_for(config, ranks, {}, reach);
  }
  [[nodiscard]] std::byte* part_of(peerbus::rank_id rank) const noexcept override {
    if constexpr (peerbus::direct_transport<Transport>)
      return moe_.memory().peer(rank).data();
    else
      return moe_.memory().find_peer(rank).data();
  }
  [[nodiscard]] peerbus::moe::ticket ticket() const noexcept override {
    return received_->ticket();
  }
  void read() const noexcept override { read_rows(*received_); }
  void work(expert_work& experts) const noexcept override { experts.run(*received_); }
  [[nodiscard]] std::string check(any_checker& by) const override {
    return by.received(*received_);
  }
  void forget() noexcept override { received_.reset(); }

 private:
  mutable exchange moe_;
  std::optional<typename exchange::received_type> received_;
};

/// Makes the layout that the options name, of one codec.
template <class Codec, class Transport>
std::unique_ptr<measured_exchange> make_layout(peerbus::communicator<Transport>& comm,
                                               const options& chosen) {
  const auto make = [&]<class Layout>(Layout) -> std::unique_ptr<measured_exchange> {
    return std::make_unique<exchange_of<Transport, Codec, Layout>>(comm, chosen);
  };
  if (chosen.layout == "padded") return make(peerbus::moe::padded{});
  if (chosen.layout == "rank_major") return make(peerbus::moe::rank_major{});
  if (chosen.layout == "slots") return make(peerbus::moe::slots{});
  if (chosen.layout == "expert_slots") return make(peerbus::moe::expert_slots{});
  if (chosen.layout == "automatic") return make(peerbus::moe::automatic{});
  return make(peerbus::moe::compact{});
}

using make_exchange_function = std::unique_ptr<measured_exchange>(
    peerbus::communicator<peerbus::any_transport>& comm, const options& chosen);
// In two sources, so that two cores share what takes longest to compile.
make_exchange_function make_bf16_or_int8;
make_exchange_function make_fp8;

}  // namespace ep_bench
