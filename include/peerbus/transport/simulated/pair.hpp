// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peerbus::detail {

/// The order of messages from one rank to another. Puts of one epoch pass each other; the signal
/// that ends an epoch is raised once its puts and those of all epochs before are delivered, and
/// after the signals of these.
class sim_pair {
 public:
  /// Adds a put, a signal that ends its epoch, or both. Returns the epoch.
  std::uint32_t add(bool is_put, bool is_signal) {
    if (epochs_.empty()) epochs_.emplace_back();
    const auto number = static_cast<std::uint32_t>(first_ + epochs_.size() - 1);
    if (is_put) ++epochs_.back().puts;
    if (is_signal) epochs_.emplace_back();
    return number;
  }
  /// Notes that a put is delivered.
  void deliver_put(std::uint32_t number) noexcept { --epochs_[number - first_].puts; }
  /// Notes that the signal which ends epoch `number` has come, as message `message`.
  void deliver_signal(std::uint32_t number, std::uint32_t message) noexcept {
    epochs_[number - first_].signal = message;
  }
  /// Calls `raise` with each signal that may be raised now, in order.
  template <class Raise>
  void raise_due(Raise&& raise) {
    while (next_ + 1 < epochs_.size() && epochs_[next_].puts == 0 && epochs_[next_].signal != none)
      raise(epochs_[next_++].signal);
    if (next_ + 1 < epochs_.size()) return;
    // Only the open epoch is left.
    first_ += static_cast<std::uint32_t>(next_);
    epochs_.front() = epochs_[next_];
    epochs_.resize(1);
    next_ = 0;
  }

  ///@{
  /// Counts messages whose sources are still to be read, or whose answers are still to come.
  void note_sent() noexcept { ++outstanding_; }
  void note_done() noexcept { --outstanding_; }
  [[nodiscard]] std::uint32_t outstanding() const noexcept { return outstanding_; }
  ///@}

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct epoch {
    std::uint32_t puts = 0;       ///< that are not delivered
    std::uint32_t signal = none;  ///< the message, once it has come
  };

  std::vector<epoch> epochs_;  ///< those from `first_` on; the last is open
  std::size_t next_ = 0;       ///< the first whose signal is not raised
  std::uint32_t first_ = 0;
  std::uint32_t outstanding_ = 0;
};

}  // namespace peerbus::detail
