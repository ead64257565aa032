// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace peerbus::detail {

/// The order of messages from one rank to another. Puts of one epoch may pass each other. A signal
/// ends an epoch. It is raised after the puts of its epoch and of all earlier epochs are delivered,
/// and after the signals of earlier epochs.
class sim_pair {
 public:
  /// Adds a put, a signal that ends its epoch, or both. Returns the number of the epoch.
  std::uint32_t add(bool is_put, bool is_signal) {
    const std::uint32_t number = open_;
    if (is_put) ++epoch_of(number).puts;
    if (is_signal && ++open_ - first_ >= first_epochs_.size()) {
      if (!more_) more_ = std::make_unique<std::deque<epoch>>();
      more_->emplace_back();
    }
    return number;
  }
  /// Notes that a put of epoch `number` is delivered.
  void deliver_put(std::uint32_t number) noexcept { --epoch_of(number).puts; }
  /// Notes that message `message`, the signal that ends epoch `number`, has arrived.
  void deliver_signal(std::uint32_t number, std::uint32_t message) noexcept {
    epoch_of(number).signal = message;
  }
  /// Calls `raise(message)` for each signal that may be raised now, in order.
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
    std::uint32_t puts = 0;       ///< puts that are not delivered
    std::uint32_t signal = none;  ///< the number of the signal's message, or `none` before it
                                  ///< arrives
  };

  [[nodiscard]] epoch& epoch_of(std::uint32_t number) noexcept {
    const std::size_t i = number - first_;
    return i < first_epochs_.size() ? first_epochs_[i] : (*more_)[i - first_epochs_.size()];
  }

  std::array<epoch, 2> first_epochs_;        ///< the epochs from `first_` on
  std::unique_ptr<std::deque<epoch>> more_;  ///< the later epochs, if there are any
  std::uint32_t first_ = 0;                  ///< the first epoch whose signal is not raised
  std::uint32_t open_ = 0;                   ///< the last epoch, which has no signal yet
  std::uint32_t outstanding_ = 0;
};

}  // namespace peerbus::detail
