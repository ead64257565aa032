// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus {

/// A transport that `planes` can use for near ranks. It loads and stores the memory of all or some
/// peers, and gives access to its signal words.
template <class T>
concept near_transport = (direct_transport<T> || partly_direct_transport<T>) &&
                         detail::refinements_of<T>().local_signals;

namespace detail {

/// A window of `planes`: the near plane's window, and the far plane's window of the same memory.
template <near_transport Near, adopting_transport Far>
class planes_window {
  using near_window = typename Near::window;
  using far_window = typename Far::window;

 public:
  planes_window(planes_window&&) noexcept = default;
  planes_window(const planes_window&) = delete;
  planes_window& operator=(planes_window&&) noexcept = default;
  planes_window& operator=(const planes_window&) = delete;
  ~planes_window() = default;

  /// Takes `made`, a window of the near plane `bus`. `number` is the window's number, the same on
  /// all ranks.
  planes_window(near_window made, const Near& bus, std::uint32_t number)
      : near_{std::make_shared<loan>(std::move(made))},
        signals_{bus.local_signals(near())},
        number_{number} {}

  /// Makes the window's memory reachable by `far`, for traffic of the class `traffic`. Collective.
  /// `adopted` includes the window's bytes as long as `far` keeps them.
  /// Throws: as `adopt_window` of `Far`.
  void adopt(Far& far, const Near& bus, std::shared_ptr<std::atomic<std::size_t>> adopted,
             traffic_class traffic, deadline until) {
    const auto data = bus.local(near());
    near_->count(std::move(adopted), data.size());
    far_.emplace(far.adopt_window({data, signals_, near_, traffic}, until));
  }

  /// Returns the window of the near plane.
  [[nodiscard]] const near_window& near() const noexcept { return near_->window; }
  /// Returns the window of the far plane, which must exist.
  [[nodiscard]] const far_window& far() const noexcept { return *far_; }
  /// Returns the signal words of this rank, which both planes raise.
  [[nodiscard]] std::span<signal_word> signals() const noexcept { return signals_; }
  /// Returns the window's number, the same on all ranks.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

 private:
  /// The near plane's window, which the far plane keeps as long as far peers may access the memory.
  class loan {
   public:
    explicit loan(near_window lent) : window{std::move(lent)} {}
    loan(const loan&) = delete;
    loan& operator=(const loan&) = delete;
    ~loan() { count(nullptr, 0); }

    /// Removes the bytes from the counter that includes them, and adds `bytes` to `counter` if it
    /// is not null.
    void count(std::shared_ptr<std::atomic<std::size_t>> counter, std::size_t bytes) noexcept {
      // order: relaxed; a number for people.
      if (counter_) counter_->fetch_sub(bytes_, std::memory_order_relaxed);
      if (counter) counter->fetch_add(bytes, std::memory_order_relaxed);
      counter_ = std::move(counter);
      bytes_ = bytes;
    }

    near_window window;

   private:
    std::shared_ptr<std::atomic<std::size_t>> counter_;
    std::size_t bytes_ = 0;
  };

  std::shared_ptr<loan> near_;
  std::span<signal_word> signals_;
  std::uint32_t number_;
  std::optional<far_window> far_;
};

}  // namespace detail

}  // namespace peerbus
