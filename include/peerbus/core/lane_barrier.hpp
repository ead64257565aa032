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
#include <peerbus/core/lane.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus::detail {

/// The synchronisation of the lanes of one rank. They alternate between work that they share and
/// steps that only lane 0 does.
class lane_barrier {
 public:
  /// Short phases of polling: lanes are few and do not wait long, but there may be more lanes than
  /// cores.
  static constexpr wait_thresholds thresholds{256, 256, 16, std::chrono::milliseconds{2}};

  /// Waits until all lanes have called. Then lane 0 does `step` while the others wait, and all
  /// return, or throw the exception of `step`. `step` sees all earlier writes of all lanes, and all
  /// lanes see the writes of `step` on return. If lanes do not fit together, or if a lane does not
  /// call before `until`, calls `unfit(code, text)`, which throws. `call` is null or a literal that
  /// names the call. Lanes with different names, or with and without a name, do not fit together. A
  /// single lane only does `step`.
  template <class Step, class Unfit>
  void serial(lane caller, deadline until, Step&& step, Unfit&& unfit, const char* call = nullptr) {
    // order: relaxed; `waiting_` only detects a mistake of the caller and publishes no data.
    if (caller.index == 0 && caller.count == 1 && waiting_.load(std::memory_order_relaxed) == 0)
      return step();
    take_turn(caller, until, step, unfit, call);
  }

 private:
  using step_ref = function_ref<void()>;
  using unfit_ref = function_ref<void(errc, const std::string&)>;

  /// Does `serial` for several lanes, or reports a lane that does not fit.
  void take_turn(lane caller, deadline until, step_ref step, unfit_ref unfit, const char* call);

  static errc healthy() noexcept { return errc::ok; }

  struct member {
    std::atomic<std::size_t> count{0};       ///< the number of lanes that this lane gives
    std::atomic<const char*> call{nullptr};  ///< the name of the call that this lane gives
    std::atomic<std::uint64_t> claimed{0};   ///< the latest turn that a thread claimed
    signal_word came;
  };

  /// Counts a lane other than 0 in `waiting_` during its lifetime.
  struct counted {
    explicit counted(std::atomic<std::uint32_t>& all) noexcept : all_{all} {
      // order: relaxed; the counter publishes no data, see `serial`.
      all_.fetch_add(1, std::memory_order_relaxed);
    }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    // order: relaxed; the counter publishes no data, see `serial`.
    ~counted() { all_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    std::atomic<std::uint32_t>& all_;
  };

  /// The exception of a step. Each lane throws its own copy of an `error`. If lanes shared one
  /// exception, the last of them would free it by a reference count that ThreadSanitizer does not
  /// see.
  struct problem {
    errc code;
    std::string text;
    std::exception_ptr other;  ///< set if the exception is not an `error`

    [[noreturn]] void raise() const {
      if (other) std::rethrow_exception(other);
      throw error{code, text};
    }
  };
  /// Returns the problem of `turn`. Two turns have separate problems, because lanes may still read
  /// the problem of the previous turn when lane 0 begins the next one.
  [[nodiscard]] std::optional<problem>& problem_of(std::uint64_t turn) noexcept {
    return problems_[turn % problems_.size()];
  }

  /// Checks that lane `other` gives the same number of lanes as this lane. `other` has called.
  void fit(lane caller, std::size_t other, unfit_ref unfit) const;

  /// Checks that lane `other` is in the same call as lane 0. Called by lane 0. `other` has called
  /// and waits for lane 0, so that its name belongs to this turn.
  void fit_call(std::size_t other, unfit_ref unfit) const;

  /// Waits until lane `other` has called for `turn`.
  static void await(signal_word& arrival, std::uint64_t turn, deadline until, std::size_t other,
                    unfit_ref unfit);

  /// Does lane 0's part of a turn.
  void lead(lane caller, std::uint64_t turn, deadline until, step_ref step, unfit_ref unfit);

  std::array<member, max_lanes> members_;
  std::atomic<std::uint32_t> waiting_{0};
  signal_word done_;
  std::array<std::optional<problem>, 2> problems_;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/lane_barrier.ipp>  // IWYU pragma: keep
#endif
