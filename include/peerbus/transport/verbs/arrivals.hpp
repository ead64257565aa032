// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/transport/verbs/notice.hpp>

namespace peerbus::detail::rdma {

/// Orders the signals that arrive from one peer. Signals arrive in order on the first queue pair. A
/// signal that follows puts on other queue pairs is held until each of these queue pairs has
/// delivered its own notice. Later signals wait behind it.
///
/// Threads: one at a time.
class arrivals {
  struct held_signal {
    raised_signal what;
    queue_set after = 0;
    std::uint32_t slot = 0;
  };

 public:
  /// Makes room for `most_held` signals, the number of receive requests, each of which holds one
  /// notice.
  void open(std::size_t most_held) { held_.resize(most_held); }

  /// Returns the number of bytes that `open` allocates.
  [[nodiscard]] static constexpr std::size_t bytes_held(std::size_t most_held) noexcept {
    return most_held * sizeof(held_signal);
  }

  /// Takes a notice of the first queue pair, in receive request `slot`. Calls `raise(signal, slot)`
  /// for each signal that need not wait any more. Its slot may receive again afterwards.
  template <class Notice, class Raise>
  void signal_came(const Notice& arrival, std::uint32_t slot, Raise&& raise) noexcept {
    held_[(first_ + count_++) % held_.size()] = {names_.resolve(arrival), arrival.after, slot};
    release(raise);
  }

  /// Takes a notice of queue pair `number`, 1 or more, which says that all its puts so far have
  /// arrived. Calls `raise` as `signal_came` does.
  template <class Raise>
  void fence_came(std::size_t number, Raise&& raise) noexcept {
    ++fences_[number - 1];
    release(raise);
  }

 private:
  template <class Raise>
  void release(Raise& raise) noexcept {
    for (; count_ != 0 && all_came(held_[first_].after); --count_) {
      const held_signal& next = held_[first_];
      for (std::size_t q = 0; q < fences_.size(); ++q) fences_[q] -= (next.after >> q) & 1U;
      raise(next.what, next.slot);
      first_ = (first_ + 1) % held_.size();
    }
  }
  [[nodiscard]] bool all_came(queue_set after) const noexcept {
    for (std::size_t q = 0; q < fences_.size(); ++q)
      if (((after >> q) & 1U) != 0 && fences_[q] == 0) return false;
    return true;
  }

  signal_names names_;
  std::array<std::uint32_t, most_queue_pairs - 1>
      fences_{};  ///< number of notices that no signal has used
  std::vector<held_signal> held_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace peerbus::detail::rdma
