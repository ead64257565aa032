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
    if (as.count == 1) {
      // order: relaxed; to tell people, not to order anything.
      if (waiting_.load(std::memory_order_relaxed) != 0)
        unfit(errc::invalid_argument, "lane 0 says that it is alone, but other lanes have come");
      return step();
    }
    const std::uint64_t turn = done_.value() + 1;
    member& mine = members_[as.index];
    // order: relaxed; only threads that claim to be the same lane meet here.
    if (mine.claimed.exchange(turn, std::memory_order_relaxed) == turn)
      unfit(errc::invalid_argument, concat("lane ", as.index, " came twice"));
    // order: relaxed; read only after `came`.
    mine.count.store(as.count, std::memory_order_relaxed);
    mine.came.raise(turn);
    if (as.index == 0) return lead(as, turn, until, step, unfit);
    const counted here{waiting_};
    await(members_[0].came, turn, until, 0, unfit);
    fit(as, 0, unfit);
    // Lane 0 has come and keeps the deadline in all that it does; this one waits for what comes of
    // it, and would for ever if that thread were killed, which leaves no process whole.
    static_cast<void>(done_.wait_at_least(turn, deadline::never(), thresholds, healthy));
    if (const auto& found = problem_of(turn)) found->raise();
  }

 private:
  /// Lanes are few and do not wait long, but there may be more of them than cores.
  static constexpr wait_thresholds thresholds{256, 256, 16, std::chrono::milliseconds{2}};
  static errc healthy() noexcept { return errc::ok; }

  struct member {
    std::atomic<std::size_t> count{0};      ///< as this lane says
    std::atomic<std::uint64_t> claimed{0};  ///< the latest turn that a thread came for
    signal_word came;
  };

  /// Lanes other than 0 in a turn, as long as this lives.
  struct counted {
    explicit counted(std::atomic<std::uint32_t>& all) noexcept : all_{all} {
      all_.fetch_add(1, std::memory_order_relaxed);  // order: none needed, see `serial`.
    }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { all_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    std::atomic<std::uint32_t>& all_;
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
  std::atomic<std::uint32_t> waiting_{0};
  signal_word done_;
  std::array<std::optional<problem>, 2> problems_;
};

}  // namespace peerbus::moe::detail
