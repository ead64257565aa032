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

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/signal.hpp>
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
    // order: relaxed; `waiting_` tells people of a mistake, it orders nothing.
    if (as.index == 0 && as.count == 1 && waiting_.load(std::memory_order_relaxed) == 0)
      return step();
    take_turn(as, until, step, unfit);
  }

 private:
  using step_ref = peerbus::detail::function_ref<void()>;
  using unfit_ref = peerbus::detail::function_ref<void(errc, const std::string&)>;

  /// `serial` for several lanes, and for a lane that has no place among them.
  void take_turn(lane as, deadline until, step_ref step, unfit_ref unfit);

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

  void fit(lane as, std::size_t other, unfit_ref unfit) const;

  static void await(signal_word& came, std::uint64_t turn, deadline until, std::size_t who,
                    unfit_ref unfit);

  void lead(lane as, std::uint64_t turn, deadline until, step_ref step, unfit_ref unfit);

  std::array<member, max_lanes> members_;
  std::atomic<std::uint32_t> waiting_{0};
  signal_word done_;
  std::array<std::optional<problem>, 2> problems_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/lane_team.hpp>  // IWYU pragma: keep
#endif
