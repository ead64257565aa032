// SPDX-License-Identifier: MIT
//
// Explores all interleavings of the parking protocol of core/signal.hpp on a machine with store
// buffers (x86-TSO). A store becomes visible at any later time, in the order of its thread's
// stores. An atomic exchange, a sequentially consistent fence and a futex call wait until the
// thread's buffer is empty. A sequentially consistent machine could not show whether the fence is
// needed.
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <vector>

#include <doctest/doctest.h>

namespace signal_model_test {

namespace {

/// The protocol. Each member is a step that a test can break.
struct protocol {
  bool raiser_looks_before_storing = false;
  bool raiser_fences = true;
  bool raiser_clears = true;
  bool raiser_clears_before_waking = true;
  bool wake_is_a_barrier = true;
  bool waiter_announces = true;
  bool announcement_is_a_barrier = true;
  bool waiter_looks_again = true;
  bool sleep_compares = true;
  bool counts_wake_ups = true;
};

enum class cell : std::uint8_t { value, parked };

struct store {
  cell where;
  std::uint8_t what;
  auto operator<=>(const store&) const = default;
};

enum class step : std::uint8_t {
  // the raiser
  store_value,
  fence,
  look_at_parked,
  clear,
  wake,
  clear_late,
  // a waiter
  look,
  announce,
  look_again,
  sleep,
  asleep,
  // both
  done,
};

struct thread {
  step next = step::done;
  std::uint8_t goal = 0;  ///< the value that it raises or waits for
  std::uint8_t last_goal = 0;
  std::uint8_t saw_parked = 0;  ///< the `parked` that the raiser read or the waiter wrote
  std::vector<store> buffer;
  auto operator<=>(const thread&) const = default;
};

/// Thread 0 raises 1, 2, ...; the others wait for each of these values in turn.
struct machine {
  std::array<std::uint8_t, 2> memory{};
  std::vector<thread> threads;
  auto operator<=>(const machine&) const = default;
};

struct findings {
  std::size_t states = 0;
  std::size_t slept = 0;  ///< states with a sleeper, so that parking is known to occur
  std::size_t ended = 0;  ///< states in which all threads are done
  std::size_t lost_wake_ups = 0;
};

std::uint8_t load(const machine& m, const thread& t, cell where) {
  for (std::size_t i = t.buffer.size(); i-- != 0;)
    if (t.buffer[i].where == where) return t.buffer[i].what;
  return m.memory[static_cast<std::size_t>(where)];
}

class explorer {
 public:
  explicit explorer(protocol p) : p_{p} {}

  findings explore(std::size_t waiters, std::uint8_t raises, std::uint8_t first_goal) {
    machine start;
    start.threads.resize(1 + waiters);
    start.threads[0] = {p_.raiser_looks_before_storing ? step::look_at_parked : step::store_value,
                        1,
                        raises,
                        0,
                        {}};
    for (std::size_t i = 1; i <= waiters; ++i)
      start.threads[i] = {step::look, first_goal, raises, 0, {}};
    visit(start);
    while (!open_.empty()) {
      const machine m = open_.back();
      open_.pop_back();
      judge(m);
      for (std::size_t i = 0; i < m.threads.size(); ++i) {
        drain(m, i);
        advance(m, i);
      }
    }
    return found_;
  }

 private:
  void visit(const machine& m) {
    if (!seen_.insert(m).second) return;
    open_.push_back(m);
  }

  void judge(const machine& m) {
    ++found_.states;
    bool all_done = true;
    bool has_sleeper = false;
    bool is_drained = true;
    for (const thread& t : m.threads) {
      all_done = all_done && t.next == step::done;
      has_sleeper = has_sleeper || t.next == step::asleep;
      is_drained = is_drained && t.buffer.empty();
    }
    found_.ended += all_done ? 1 : 0;
    found_.slept += has_sleeper ? 1 : 0;
    // The raiser has finished, so every goal is reached and no thread will wake the sleeper. (In
    // the library it would wake at its next health check, but the protocol must not depend on
    // that.)
    if (m.threads[0].next == step::done && is_drained && has_sleeper) ++found_.lost_wake_ups;
  }

  /// Lets the oldest store of a thread reach memory.
  void drain(const machine& m, std::size_t i) {
    if (m.threads[i].buffer.empty()) return;
    machine next = m;
    auto& buffer = next.threads[i].buffer;
    next.memory[static_cast<std::size_t>(buffer.front().where)] = buffer.front().what;
    buffer.erase(buffer.begin());
    visit(next);
  }

  void advance(const machine& m, std::size_t i) {
    machine next = m;
    thread& t = next.threads[i];
    if (i == 0 ? raise(next, t) : wait(next, t)) visit(next);
  }

  void next_raise(thread& t) const {
    if (t.goal == t.last_goal) {
      t.next = step::done;
      return;
    }
    ++t.goal;
    t.next = p_.raiser_looks_before_storing ? step::look_at_parked : step::store_value;
  }

  /// Chooses the raiser's next step after it has read whether a waiter is parked.
  void wake_or_not(thread& t) const {
    if (t.saw_parked % 2 == 0)
      next_raise(t);
    else if (p_.raiser_clears && p_.raiser_clears_before_waking)
      t.next = step::clear;
    else
      t.next = step::wake;
  }

  [[nodiscard]] std::uint8_t after_wake_up(const thread& t) const {
    return p_.counts_wake_ups ? static_cast<std::uint8_t>(t.saw_parked + 1) : std::uint8_t{0};
  }

  /// Takes the next step of the raiser. Returns: whether the thread can take it now.
  bool raise(machine& m, thread& t) const {
    switch (t.next) {
      case step::store_value:
        t.buffer.push_back({cell::value, t.goal});
        if (p_.raiser_looks_before_storing)
          wake_or_not(t);
        else
          t.next = p_.raiser_fences ? step::fence : step::look_at_parked;
        return true;
      case step::fence: t.next = step::look_at_parked; return t.buffer.empty();
      case step::look_at_parked:
        t.saw_parked = load(m, t, cell::parked);
        if (p_.raiser_looks_before_storing)
          t.next = step::store_value;
        else
          wake_or_not(t);
        return true;
      case step::clear:
        t.buffer.push_back({cell::parked, after_wake_up(t)});
        t.next = step::wake;
        return true;
      case step::wake:
        if (p_.wake_is_a_barrier && !t.buffer.empty()) return false;
        for (thread& other : m.threads)
          if (other.next == step::asleep) other.next = step::look;
        if (p_.raiser_clears && !p_.raiser_clears_before_waking)
          t.next = step::clear_late;
        else
          next_raise(t);
        return true;
      case step::clear_late:
        t.buffer.push_back({cell::parked, after_wake_up(t)});
        next_raise(t);
        return true;
      default: return false;
    }
  }

  bool wait(machine& m, thread& t) const {
    switch (t.next) {
      case step::look:
        if (load(m, t, cell::value) >= t.goal)
          reached(t);
        else
          t.next = p_.waiter_announces ? step::announce : step::look_again;
        return true;
      case step::announce:
        t.saw_parked = load(m, t, cell::parked) | 1;
        if (p_.announcement_is_a_barrier)
          m.memory[static_cast<std::size_t>(cell::parked)] = t.saw_parked;
        else
          t.buffer.push_back({cell::parked, t.saw_parked});
        t.next = p_.waiter_looks_again ? step::look_again : step::sleep;
        return true;
      case step::look_again:
        if (load(m, t, cell::value) >= t.goal)
          reached(t);
        else
          t.next = step::sleep;
        return true;
      case step::sleep: {
        if (!t.buffer.empty()) return false;
        const bool falls_asleep = !p_.sleep_compares || load(m, t, cell::parked) == t.saw_parked;
        t.next = falls_asleep ? step::asleep : step::look;
        return true;
      }
      case step::asleep:
        t.next = step::look;  // A futex may return without a reason or because of its timeout.
        return true;
      default: return false;
    }
  }

  static void reached(thread& t) {
    t.saw_parked = 0;
    t.next = t.goal == t.last_goal ? step::done : step::look;
    if (t.goal != t.last_goal) ++t.goal;
  }

  protocol p_;
  std::set<machine> seen_;
  std::vector<machine> open_;
  findings found_;
};

findings explore(protocol p, std::size_t waiters = 1, std::uint8_t raises = 2,
                 std::uint8_t first_goal = 1) {
  return explorer{p}.explore(waiters, raises, first_goal);
}

}  // namespace

TEST_CASE("signal model: no interleaving loses a wake-up") {
  for (std::size_t waiters : {1U, 2U})
    for (std::uint8_t raises : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}})
      for (std::uint8_t first_goal = 1; first_goal <= raises; ++first_goal) {
        CAPTURE(waiters);
        CAPTURE(int{raises});
        CAPTURE(int{first_goal});
        const findings found = explore({}, waiters, raises, first_goal);
        CHECK(found.lost_wake_ups == 0);
        CHECK(found.ended > 0);
        CHECK(found.slept > 0);
      }
  // Three waiters on one word, and a single raise.
  CHECK(explore({}, 3, 1).lost_wake_ups == 0);
}

TEST_CASE("signal model: every broken protocol is caught") {
  const auto caught = [](const std::function<void(protocol&)>& breaks, std::size_t waiters = 1) {
    protocol broken;
    breaks(broken);
    return explore(broken, waiters).lost_wake_ups > 0;
  };
  CHECK(caught([](protocol& p) { p.raiser_looks_before_storing = true; }));
  CHECK(caught([](protocol& p) { p.raiser_fences = false; }));
  CHECK(caught([](protocol& p) { p.raiser_clears_before_waking = false; }));
  CHECK(caught([](protocol& p) { p.raiser_clears = false; }));
  CHECK(caught([](protocol& p) { p.wake_is_a_barrier = false; }));
  CHECK(caught([](protocol& p) { p.announcement_is_a_barrier = false; }));
  CHECK(caught([](protocol& p) { p.waiter_looks_again = false; }));
  CHECK(caught([](protocol& p) { p.sleep_compares = false; }));
  // If `parked` is a flag only, a second waiter can set it again, and a first waiter that has
  // missed its wake-up then falls asleep.
  CHECK(caught([](protocol& p) { p.counts_wake_ups = false; }, 2));
  CHECK_FALSE(caught([](protocol& p) { p.counts_wake_ups = false; }, 1));
  CHECK(caught([](protocol& p) { p.waiter_announces = false; }));
}

}  // namespace signal_model_test
