// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/transport/concept.hpp>

#include "put_bench/contender.hpp"
#include "put_bench/memory_side.hpp"

namespace put_bench {

/// Both sides of all sizes, which the contenders of one communicator share.
template <peerbus::direct_transport Transport>
class memory_sides {
 public:
  /// `crowded`: the ranks may share a core.
  memory_sides(Transport bus, bool crowded) : comm_{std::move(bus)}, crowded_{crowded} {}

  /// Collective at the first use of a size.
  [[nodiscard]] memory_side<Transport>& of(std::size_t bytes) {
    return sides_.try_emplace(bytes, comm_, bytes, crowded_).first->second;
  }
  [[nodiscard]] bool right() const {
    return std::ranges::all_of(sides_, [](const auto& each) { return each.second.right(); });
  }
  [[nodiscard]] peerbus::communicator<Transport>& comm() noexcept { return comm_; }

 private:
  peerbus::communicator<Transport> comm_;
  bool crowded_;
  std::map<std::size_t, memory_side<Transport>> sides_;
};

/// One way of a `memory_side`. Its streams, if it has any, are a function's.
template <peerbus::direct_transport Transport>
class in_memory final : public contender {
 public:
  using sides = std::shared_ptr<memory_sides<Transport>>;
  using way = double (*)(memory_side<Transport>& side, std::size_t bytes, std::size_t rounds);

  /// `only_bytes`: the size that this way is for; 0: all.
  in_memory(std::string name, std::string reference, sides shared, way play, std::size_t only_bytes)
      : contender{std::move(name), std::move(reference)},
        shared_{std::move(shared)},
        play_{play},
        only_bytes_{only_bytes} {}

  [[nodiscard]] bool sends(std::size_t bytes) const noexcept override {
    return only_bytes_ == 0 || bytes == only_bytes_;
  }

  [[nodiscard]] std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) override {
    memory_side<Transport>& side = shared_->of(bytes);
    side.choose_place(blocks_[bytes]++);
    return {play_(side, bytes, rounds)};
  }
  [[nodiscard]] double stream(const bench::stream_shape&) override { return 0; }
  [[nodiscard]] bool right() const override { return shared_->right(); }

 private:
  sides shared_;
  way play_;
  std::size_t only_bytes_;
  std::map<std::size_t, std::size_t> blocks_;
};

/// Adds the ways of two ranks in each other's memory: those by plain stores, those of peerbus,
/// which are compared with them, or both.
template <peerbus::direct_transport Transport>
void add_in_memory(contenders& all, std::shared_ptr<memory_sides<Transport>> sides, bool stores,
                   bool ours) {
  using side = memory_side<Transport>;
  const std::string stores_read = "stores, flag; payload read";
  const std::string stores_seen = "stores, flag; flag seen";
  const auto add = [&](bool wanted, const std::string& name, const std::string& reference,
                       typename in_memory<Transport>::way play, std::size_t only_bytes = 0) {
    if (wanted)
      all.push_back(
          std::make_unique<in_memory<Transport>>(name, reference, sides, play, only_bytes));
  };
  add(stores, stores_read, stores_read, [](side& here, std::size_t, std::size_t rounds) {
    return here.copy_and_flag(rounds, receiver::reads_payload);
  });
  add(ours, "put_signal; payload read", stores_read,
      [](side& here, std::size_t, std::size_t rounds) {
        return here.put_signal(rounds, receiver::reads_payload);
      });
  // A word is its own flag.
  add(stores, stores_seen, stores_seen, [](side& here, std::size_t bytes, std::size_t rounds) {
    return bytes == sizeof(std::uint64_t) ? here.flag(rounds)
                                          : here.copy_and_flag(rounds, receiver::sees_signal);
  });
  add(ours, "put_signal; signal seen", stores_seen,
      [](side& here, std::size_t, std::size_t rounds) {
        return here.put_signal(rounds, receiver::sees_signal);
      });
  add(
      ours, "signal", stores_seen,
      [](side& here, std::size_t, std::size_t rounds) { return here.signal(rounds); },
      sizeof(std::uint64_t));
}

}  // namespace put_bench
