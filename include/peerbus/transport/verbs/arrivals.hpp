// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/transport/verbs/notice.hpp>

namespace peerbus::detail::rdma {

/// The signals that arrive from one peer. They come in order on the first queue pair; one that
/// follows puts on others too is held until each of those has brought its own notice, and those
/// that come after it wait with it.
///
/// Threads: one at a time.
class arrivals {
  struct held_signal {
    raised_signal what;
    queue_set after = 0;
    std::uint32_t slot = 0;
  };

 public:
  /// `most_held`: of receive requests, each of which holds one notice.
  void open(std::size_t most_held) { held_.resize(most_held); }

  /// Memory that `open` takes.
  [[nodiscard]] static constexpr std::size_t bytes_held(std::size_t most_held) noexcept {
    return most_held * sizeof(held_signal);
  }

  /// A notice on the first queue pair, in receive request `slot`. Calls `raise(what, slot)` for
  /// each signal whose time has come, after which its slot may receive again.
  template <class Notice, class Raise>
  void signal_came(const Notice& said, std::uint32_t slot, Raise&& raise) noexcept {
    held_[(first_ + count_++) % held_.size()] = {names_.resolve(said), said.after, slot};
    release(raise);
  }

  /// What a notice on queue pair `number`, 1 or more, says: all its puts so far are there.
  template <class Raise>
  void fence_came(std::size_t number, Raise&& raise) noexcept {
    ++fences_[number - 1];
    release(raise);
  }

 private:
  template <class Raise>
  void release(Raise& raise) noexcept {
    for (; count_ != 0 && all_came(held_[first_].after); --count_) {
      const held_signal& one = held_[first_];
      for (std::size_t q = 0; q < fences_.size(); ++q) fences_[q] -= (one.after >> q) & 1U;
      raise(one.what, one.slot);
      first_ = (first_ + 1) % held_.size();
    }
  }
  [[nodiscard]] bool all_came(queue_set after) const noexcept {
    for (std::size_t q = 0; q < fences_.size(); ++q)
      if (((after >> q) & 1U) != 0 && fences_[q] == 0) return false;
    return true;
  }

  signal_names names_;
  std::array<std::uint32_t, most_queue_pairs - 1> fences_{};  ///< that came and were not waited for
  std::vector<held_signal> held_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace peerbus::detail::rdma
