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
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange_queries.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/check.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/payload.hpp"

namespace ep_bench {

/// The memory of the spans is that of `chosen`.
inline peerbus::moe::exchange_config config_of(const options& chosen) {
  return {.experts = chosen.experts,
          .hidden = chosen.hidden,
          .top_k = chosen.top_k,
          .max_tokens = chosen.tokens,
          .outputs = chosen.outputs == "home" ? peerbus::moe::outputs_at::home
                                              : peerbus::moe::outputs_at::expert,
          .physical_to_logical = chosen.physical_to_logical,
          .replicas = {.policy = peerbus::moe::replica_policy::round_robin},
          .stream_from = chosen.stream_from(),
          .protocol = chosen.protocol,
          .costs = &chosen.costs,
          .relay = chosen.relay};
}

/// An exchange whose codec and layout are chosen at run time, with the rows of its last dispatch.
/// Whoever measures is compiled once for all, and each call of an operation is a virtual one.
class measured_exchange {
 public:
  measured_exchange(const measured_exchange&) = delete;
  measured_exchange& operator=(const measured_exchange&) = delete;
  virtual ~measured_exchange() = default;

  /// How the codec's tokens and rows look.
  [[nodiscard]] const wire_format& format() const noexcept { return format_; }

  ///@{
  /// Does what the function of an exchange with that name does. Tokens are bytes.
  virtual void dispatch(std::span<const std::byte> tokens, const peerbus::moe::routing& route,
                        peerbus::moe::lane as) = 0;
  virtual void combine(std::span<peerbus::bf16> out, peerbus::moe::lane as) = 0;
  virtual bool count_rows(peerbus::moe::ticket ticket, std::span<std::uint32_t> rows) = 0;
  virtual void install_experts(std::span<const std::uint32_t> physical_to_logical,
                               const peerbus::moe::replica_choice& replicas) = 0;
  [[nodiscard]] virtual const peerbus::moe::exchange_config& config() const noexcept = 0;
  [[nodiscard]] virtual const peerbus::moe::relay_choice& relay() const noexcept = 0;
  [[nodiscard]] virtual const peerbus::moe::memory_map& map() const noexcept = 0;
  [[nodiscard]] virtual const peerbus::moe::expert_map& placement() const noexcept = 0;
  ///@}
  /// Returns the queries that are the same for all codecs and layouts.
  [[nodiscard]] virtual peerbus::moe::exchange_queries& queries() noexcept = 0;
  /// Returns the map of an exchange in one level.
  [[nodiscard]] virtual peerbus::moe::memory_map map_for(
      const peerbus::moe::exchange_config& config, std::size_t ranks,
      peerbus::peer_reach reach) const noexcept = 0;
  /// Returns the memory of `rank`, null if loads and stores do not reach it.
  [[nodiscard]] virtual std::byte* part_of(peerbus::rank_id rank) const noexcept = 0;

  ///@{
  /// Does the thing with the rows of the last dispatch.
  [[nodiscard]] virtual peerbus::moe::ticket ticket() const noexcept = 0;
  virtual void read() const noexcept = 0;
  virtual void work(expert_work& experts) const noexcept = 0;
  [[nodiscard]] virtual std::string check(any_checker& by) const = 0;
  virtual void forget() noexcept = 0;
  ///@}

 protected:
  explicit measured_exchange(const wire_format& format) noexcept : format_{format} {}

 private:
  wire_format format_;
};

/// Makes the exchange that the options name: any, over a transport that is chosen at run time.
/// Collective.
[[nodiscard]] std::unique_ptr<measured_exchange> make_exchange(
    peerbus::communicator<peerbus::any_transport>& comm, const options& chosen);
/// Makes an exchange that `is_built_in` is true for, of types that are known to the compiler.
/// Collective.
[[nodiscard]] std::unique_ptr<measured_exchange> make_exchange(
    peerbus::communicator<peerbus::unified_bus>& comm, const options& chosen);
/// Returns whether the exchange that the options name exists for `unified_bus` itself: those that
/// this library is known by. Others are measured over an `any_transport`, because each of them
/// takes seconds to compile.
[[nodiscard]] inline bool is_built_in(const options& chosen) noexcept {
  return chosen.layout == "compact" ? chosen.codec != "fp8_as_given"
                                    : chosen.layout == "slots" && chosen.codec == "int8";
}

}  // namespace ep_bench
