// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace peerbus::detail {

/// The order of messages from one rank to another. Puts of one epoch pass each other; the signal
/// that ends an epoch is raised once its puts and those of all epochs before are delivered, and
/// after the signals of these.
class sim_pair {
 public:
  /// Adds a put, a signal that ends its epoch, or both. Returns the epoch.
  std::uint32_t add(bool is_put, bool is_signal) {
    const std::uint32_t number = open_;
    if (is_put) ++epoch_of(number).puts;
    if (is_signal && ++open_ - first_ >= first_epochs_.size()) {
      if (!more_) more_ = std::make_unique<std::deque<epoch>>();
      more_->emplace_back();
    }
    return number;
  }
  /// Notes that a put is delivered.
  void deliver_put(std::uint32_t number) noexcept { --epoch_of(number).puts; }
  /// Notes that the signal which ends epoch `number` has come, as message `message`.
  void deliver_signal(std::uint32_t number, std::uint32_t message) noexcept {
    epoch_of(number).signal = message;
  }
  /// Calls `raise` with each signal that may be raised now, in order.
  template <class Raise>
  void raise_due(Raise&& raise) {
    while (first_ != open_ && first_epochs_[0].puts == 0 && first_epochs_[0].signal != none) {
      raise(first_epochs_[0].signal);
      ++first_;
      first_epochs_[0] = std::exchange(first_epochs_[1], {});
      if (!more_) continue;
      first_epochs_[1] = more_->front();
      more_->pop_front();
      if (more_->empty()) more_.reset();
    }
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

  [[nodiscard]] epoch& epoch_of(std::uint32_t number) noexcept {
    const std::size_t i = number - first_;
    return i < first_epochs_.size() ? first_epochs_[i] : (*more_)[i - first_epochs_.size()];
  }

  std::array<epoch, 2> first_epochs_;        ///< from `first_` on
  std::unique_ptr<std::deque<epoch>> more_;  ///< those after them, if there are any
  std::uint32_t first_ = 0;                  ///< the first whose signal is not raised
  std::uint32_t open_ = 0;                   ///< the last, which has no signal yet
  std::uint32_t outstanding_ = 0;
};

}  // namespace peerbus::detail
