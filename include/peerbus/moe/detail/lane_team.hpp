// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe::detail {

/// Lets the lanes of one rank take turns between work that they share and work that lane 0 does.
class lane_team {
 public:
  /// All lanes come here; then lane 0 does `step` while the others wait; then all go on, or throw
  /// what `step` threw. What a lane wrote before is visible to `step`, what `step` wrote to all.
  /// `unfit(code, text)` is called, and throws, when lanes do not fit together or one does not come
  /// by `until`. One lane alone just does `step`.
  template <class Step, class Unfit>
  void serial(lane as, deadline until, Step&& step, Unfit&& unfit) {
    using peerbus::detail::concat;
    if (as.index >= as.count || as.count > max_lanes)
      unfit(errc::invalid_argument,
            concat("lane ", as.index, " of ", as.count,
                   ", expected an index below the count, at most ", max_lanes));
    if (as.count == 1) return step();
    const std::uint64_t turn = done_.value() + 1;
    member& mine = members_[as.index];
    // order: relaxed; read only after `came`.
    mine.count.store(as.count, std::memory_order_relaxed);
    mine.came.raise(turn);
    if (as.index == 0) return lead(as, turn, until, step, unfit);
    await(members_[0].came, turn, until, 0, unfit);
    fit(as, 0, unfit);
    // Lane 0 keeps the deadline; this one waits for what comes of it.
    static_cast<void>(done_.wait_at_least(turn, deadline::never(), thresholds, healthy));
    if (const auto& found = problem_of(turn)) found->raise();
  }

 private:
  /// Lanes are few and do not wait long, but there may be more of them than cores.
  static constexpr wait_thresholds thresholds{256, 256, 16, std::chrono::milliseconds{2}};
  static errc healthy() noexcept { return errc::ok; }

  struct member {
    std::atomic<std::size_t> count{0};  ///< as this lane says
    signal_word came;
  };

  /// What a step threw. Each lane throws an `error` of its own: the last to drop a shared one would
  /// free it under counters that ThreadSanitizer does not see.
  struct problem {
    errc code;
    std::string text;
    std::exception_ptr other;  ///< if it was no `error`

    [[noreturn]] void raise() const {
      if (other) std::rethrow_exception(other);
      throw error{code, text};
    }
  };
  /// Two, as lanes may still look at that of the turn before when lane 0 comes for the next.
  [[nodiscard]] std::optional<problem>& problem_of(std::uint64_t turn) noexcept {
    return problems_[turn % problems_.size()];
  }

  template <class Unfit>
  void fit(lane as, std::size_t other, Unfit& unfit) const {
    // order: relaxed; it was written before `came` of that lane was raised.
    const std::size_t theirs = members_[other].count.load(std::memory_order_relaxed);
    if (theirs != as.count)
      unfit(errc::invalid_argument,
            peerbus::detail::concat("lane ", as.index, " says that there are ", as.count,
                                    " lanes, but lane ", other, " says ", theirs));
  }

  template <class Unfit>
  static void await(signal_word& came, std::uint64_t turn, deadline until, std::size_t who,
                    Unfit& unfit) {
    if (const errc code = came.wait_at_least(turn, until, thresholds, healthy); code != errc::ok)
      unfit(code, peerbus::detail::concat("lane ", who, " did not come in time"));
  }

  template <class Step, class Unfit>
  void lead(lane as, std::uint64_t turn, deadline until, Step& step, Unfit& unfit) {
    std::optional<problem>& found = problem_of(turn);
    found.reset();
    try {
      for (std::size_t other = 1; other < as.count; ++other) {
        await(members_[other].came, turn, until, other, unfit);
        fit(as, other, unfit);
      }
      step();
    } catch (const error& thrown) {
      found = problem{thrown.code(), std::string{thrown.text()}, nullptr};
      done_.raise(turn);
      throw;
    } catch (...) {
      found = problem{errc::ok, {}, std::current_exception()};
      done_.raise(turn);
      throw;
    }
    done_.raise(turn);
  }

  std::array<member, max_lanes> members_;
  signal_word done_;
  std::array<std::optional<problem>, 2> problems_;
};

}  // namespace peerbus::moe::detail
