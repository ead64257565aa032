// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/transport/simulated/event_queue.hpp>
#include <peerbus/transport/simulated/fibre.hpp>

namespace peerbus::detail {

/// Converts nanoseconds to picoseconds. Negative values become 0, and values above a day become a
/// day.
[[nodiscard]] inline virtual_time picoseconds(double ns) noexcept {
  constexpr double day = 86'400e9;
  return std::llround(std::clamp(ns, 0.0, day) * 1000);
}

/// Runs fibres in virtual time. Everything that happens is an event of a queue; events of one time
/// happen in the order in which they were added. A running fibre has its own clock, which may be
/// ahead of the events. The fibre lets the events catch up before it looks at anything that they
/// might change.
class scheduler {
 public:
  /// The receiver of the events that a network adds.
  class event_target {
   public:
    event_target() = default;
    event_target(const event_target&) = delete;
    event_target& operator=(const event_target&) = delete;
    /// Carries out event `what` for `number`, both as given to `add`.
    virtual void happen(std::uint32_t what, std::uint32_t number) = 0;
    /// Lets time go by until `until`, or until expected events occur. Adds these by `add_expected`,
    /// perhaps for a later time. At least one event is expected. Returns the time reached.
    [[nodiscard]] virtual virtual_time pass_time(virtual_time until) = 0;
    /// Prefetches memory, because events will soon happen to each of `numbers`.
    virtual void prepare(std::span<const std::uint32_t> numbers) noexcept = 0;

   protected:
    ~event_target() = default;
  };

  /// The reason for which `block` returned.
  enum class wake : std::uint8_t {
    ready,     ///< the condition holds
    late,      ///< the time has passed
    look,      ///< ranks may have ended, so the caller must check them
    hopeless,  ///< nothing can happen any more
  };

  scheduler() = default;
  ~scheduler() = default;

  /// Adds the next rank, whose fibre begins at time 0. Ranks are numbered from 0, and their fibres
  /// have the same numbers. All ranks must be added before any lane.
  template <class Body>
  void add_rank(std::size_t stack_bytes, Body body) {
    const auto number = static_cast<std::uint32_t>(fibres_.size());
    fibres_.emplace_back().rank = number;
    fibres_.back().context = std::make_unique<fibre>(stack_bytes, std::move(body));
    add(0, kind::resume, number);
  }
  /// Adds a fibre of the running rank, which begins at the present time. Returns its number.
  template <class Body>
  std::uint32_t add_lane(std::size_t stack_bytes, Body body) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(fibres_.size()));
      fibres_.emplace_back();
    }
    const std::uint32_t number = free_.back();
    strand& added = fibres_[number];
    added.context = std::make_unique<fibre>(stack_bytes, std::move(body));
    added.rank = rank();
    added.clock = time();
    free_.pop_back();
    fibres_[rank()].lanes.push_back(number);
    add(time(), kind::resume, number);
    return number;
  }
  /// Removes lane `number` of the running rank. The lane must have ended. The clock of the caller
  /// is then no earlier than the lane's.
  void remove_lane(std::uint32_t number) noexcept {
    std::erase(fibres_[rank()].lanes, number);
    fibres_[current_].clock = std::max(fibres_[current_].clock, fibres_[number].clock);
    fibres_[number].context.reset();
    free_.push_back(number);
  }
  /// Runs all fibres to their ends.
  void run(event_target& target);

  /// Returns the number of the running fibre.
  [[nodiscard]] std::uint32_t current() const noexcept { return current_; }
  /// Returns the rank of the running fibre.
  [[nodiscard]] std::uint32_t rank() const noexcept { return fibres_[current_].rank; }
  /// Returns the clock of the running fibre, or the time of the present event if no fibre runs.
  [[nodiscard]] virtual_time time() const noexcept {
    return current_ == nobody ? time_ : fibres_[current_].clock;
  }
  /// Lets the running fibre compute for `span`.
  void charge(virtual_time span) noexcept {
    if (current_ != nobody) fibres_[current_].clock += span;
  }
  /// Lets all events happen that are due by the clock of the running fibre.
  void catch_up() noexcept {
    if (current_ == nobody || stays_) return;
    // When expected events come, only the target finds out, which a fibre must leave for.
    if (expected_ == 0 && (events_.empty() || events_.earliest() > fibres_[current_].clock)) return;
    add(fibres_[current_].clock, kind::resume, current_);
    fibres_[current_].context->leave();
  }
  /// Sets whether `catch_up` does nothing, so that other fibres do not see unfinished changes.
  void stay(bool here) noexcept { stays_ = here; }
  /// Lets other fibres run until `is_ready()`, which `poke` calls, or until `until`. Returns the
  /// reason why it ended.
  [[nodiscard]] wake block(function_ref<bool()> is_ready, virtual_time until) noexcept;
  /// Wakes fibre `number` if the condition that it waits for holds.
  void poke(std::uint32_t number) noexcept {
    if (fibres_[number].is_ready != nullptr && (*fibres_[number].is_ready)())
      unblock(number, wake::ready);
  }
  /// Wakes each fibre of a rank whose condition holds.
  void poke_rank(std::uint32_t rank) noexcept {
    poke(rank);
    for (const std::uint32_t lane : fibres_[rank].lanes) poke(lane);
  }
  /// Makes all blocked fibres check, a millisecond from now, whether their peers are alive.
  void note_change() noexcept {
    if (!std::exchange(looks_, true)) add(time() + look_after, kind::look, 0);
  }
  /// Adds an event for the target.
  void add(virtual_time when, std::uint32_t what, std::uint32_t number) {
    events_.add({when, static_cast<std::uint32_t>(kind::of_target) + what, number});
  }
  /// Expects an event of the target whose time is not known yet.
  void expect() noexcept { ++expected_; }
  /// Adds an expected event.
  void add_expected(virtual_time when, std::uint32_t what, std::uint32_t number) {
    --expected_;
    add(when, what, number);
  }
  /// Returns the number of events that have happened.
  [[nodiscard]] std::uint64_t events() const noexcept { return happened_; }

  /// Returns the time on the clock of deadlines. Charges reading a clock, and lets due events
  /// happen, so that a loop that waits for a deadline reaches it.
  [[nodiscard]] deadline::clock::time_point now() noexcept {
    charge(clock_read);
    catch_up();
    return glance();
  }
  [[nodiscard]] deadline::clock::time_point glance() const noexcept {
    return begin + std::chrono::nanoseconds{time() / 1000};
  }
  /// Converts a deadline to virtual time.
  [[nodiscard]] static virtual_time time_of(deadline until) noexcept {
    const std::int64_t ns = std::chrono::nanoseconds{until.when() - begin}.count();
    return ns < end_of_time / 1000 ? std::max<std::int64_t>(ns, 0) * 1000 : end_of_time;
  }

 private:
  enum class kind : std::uint32_t { resume, timer, look, of_target };
  static constexpr std::uint32_t nobody = ~std::uint32_t{0};
  static constexpr virtual_time look_after = 1'000'000'000;
  static constexpr virtual_time clock_read = 20'000;
  static constexpr deadline::clock::time_point begin{std::chrono::seconds{1}};

  struct strand {
    std::unique_ptr<fibre> context;
    std::uint32_t rank = 0;
    virtual_time clock = 0;
    std::vector<std::uint32_t> lanes;                ///< the lanes of the rank, if this is the
                                                     ///< rank's own fibre
    const function_ref<bool()>* is_ready = nullptr;  ///< the awaited condition; null if the fibre
                                                     ///< is not blocked
    virtual_time until = 0;
    virtual_time timer = end_of_time;  ///< the time of the earliest timer event
    wake why = wake::ready;
  };

  void add(virtual_time when, kind what, std::uint32_t number) {
    events_.add({when, static_cast<std::uint32_t>(what), number});
  }
  /// Returns the time of the earliest event, or `end_of_time` if there is none.
  [[nodiscard]] virtual_time earliest() const noexcept {
    return events_.empty() ? end_of_time : events_.earliest();
  }
  void set_timer(std::uint32_t number);
  void unblock(std::uint32_t number, wake why) noexcept;
  void unblock_all(wake why) noexcept;
  void happen(const timed_event& due, event_target& target);

  std::vector<strand> fibres_;
  std::vector<std::uint32_t> free_;  ///< numbers of lanes that have ended
  event_queue events_;
  virtual_time time_ = 0;
  std::uint64_t happened_ = 0;
  std::size_t expected_ = 0;  ///< number of events that the target will add
  std::uint32_t current_ = nobody;
  bool looks_ = false;
  bool stays_ = false;
};

inline scheduler::wake scheduler::block(function_ref<bool()> is_ready,
                                        virtual_time until) noexcept {
  catch_up();
  if (is_ready()) return wake::ready;
  fibres_[current_].is_ready = &is_ready;
  fibres_[current_].until = until;
  set_timer(current_);
  fibres_[current_].context->leave();
  return fibres_[current_].why;
}

inline void scheduler::set_timer(std::uint32_t number) {
  strand& blocked = fibres_[number];
  if (blocked.until >= blocked.timer || blocked.until == end_of_time) return;
  blocked.timer = blocked.until;
  add(std::max(blocked.until, time()), kind::timer, number);
}

inline void scheduler::unblock(std::uint32_t number, wake why) noexcept {
  strand& blocked = fibres_[number];
  if (blocked.is_ready == nullptr) return;
  blocked.is_ready = nullptr;
  blocked.why = why;
  add(std::max(time(), blocked.clock), kind::resume, number);
}

inline void scheduler::unblock_all(wake why) noexcept {
  for (std::uint32_t number = 0; number < fibres_.size(); ++number) unblock(number, why);
}

inline void scheduler::happen(const timed_event& due, event_target& target) {
  switch (static_cast<kind>(due.what)) {
    case kind::resume: {
      strand& own = fibres_[due.number];
      own.clock = std::max(own.clock, time_);
      current_ = due.number;
      own.context->enter();
      current_ = nobody;
      return;
    }
    case kind::timer: {
      strand& own = fibres_[due.number];
      if (own.timer <= time_) own.timer = end_of_time;
      if (own.is_ready != nullptr && own.until <= time_) return unblock(due.number, wake::late);
      if (own.is_ready != nullptr) set_timer(due.number);
      return;
    }
    case kind::look: looks_ = false; return unblock_all(wake::look);
    case kind::of_target: break;
  }
  target.happen(due.what - static_cast<std::uint32_t>(kind::of_target), due.number);
}

inline void scheduler::run(event_target& target) {
  for (;;) {
    while (expected_ != 0) {
      const virtual_time passed = target.pass_time(earliest());  // It may add events.
      if (passed >= earliest()) break;
    }
    // Without an event, whoever still blocks would block forever.
    if (events_.empty()) unblock_all(wake::hopeless);
    if (events_.empty()) return;
    const timed_event due = events_.take([&target](const std::deque<timed_event>& soon) {
      std::array<std::uint32_t, event_queue::most_prepared> numbers;
      std::size_t count = 0;
      for (const timed_event& each : soon)
        if (each.what >= static_cast<std::uint32_t>(kind::of_target))
          numbers[count++] = each.number;
      target.prepare(std::span{numbers}.first(count));
    });
    time_ = std::max(time_, due.at);
    ++happened_;
    happen(due, target);
  }
}

}  // namespace peerbus::detail
