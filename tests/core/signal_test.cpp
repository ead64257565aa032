// SPDX-License-Identifier: MIT
// ctest: tsan
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/align.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>

namespace signal_test {

using peerbus::deadline;
using peerbus::errc;
using peerbus::signal_word;
using peerbus::wait_thresholds;
using namespace std::chrono_literals;

namespace {

/// The health check comes so late that it cannot replace a lost wake-up.
constexpr wait_thresholds park_at_once{0, 0, 0, 1h};
constexpr wait_thresholds mixed{16, 16, 4, 1h};

deadline patience() { return deadline::after(60s); }
errc healthy() { return errc::ok; }

struct shared_signals {
  std::array<signal_word, 8> words;
};
/// Zeroed memory that is shared with children made by fork.
class shared_memory {
 public:
  shared_memory()
      : address_{::mmap(nullptr, sizeof(shared_signals), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
    REQUIRE(address_ != MAP_FAILED);
    signals_ = new (address_) shared_signals{};
  }
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;
  ~shared_memory() { ::munmap(address_, sizeof(shared_signals)); }
  signal_word& operator[](std::size_t i) { return signals_->words[i]; }

 private:
  void* address_;
  shared_signals* signals_ = nullptr;
};

/// Plays one side of a ping-pong. Returns: whether all rounds succeeded.
bool play(signal_word& own_word, signal_word& peer_word, bool begins, std::uint64_t rounds,
          const wait_thresholds& thresholds) {
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    if (begins) peer_word.raise(i);
    if (own_word.wait_at_least(i, patience(), thresholds, healthy) != errc::ok) return false;
    if (!begins) peer_word.raise(i);
  }
  return true;
}

int status_of(pid_t child) {
  int status = -1;
  while (::waitpid(child, &status, 0) < 0) {
  }
  return status;
}

}  // namespace

TEST_CASE("signal_word: starts at zero, and zero bytes are one") {
  const signal_word fresh;
  CHECK(fresh.value() == 0);
  alignas(signal_word) std::array<std::byte, sizeof(signal_word)> raw{};
  CHECK(std::launder(reinterpret_cast<const signal_word*>(raw.data()))->value() == 0);
  static_assert(sizeof(signal_word) % peerbus::cache_line_bytes == 0 &&
                alignof(signal_word) == peerbus::cache_line_bytes);
}

TEST_CASE("signal_word: a value that is there ends the wait at once, even past the deadline") {
  signal_word word;
  word.raise(5);
  for (std::uint64_t target : {0U, 4U, 5U})
    CHECK(word.wait_at_least(target, deadline::after(-1s), park_at_once, healthy) == errc::ok);
}

TEST_CASE("signal_word: the deadline is honoured, not before and not much after") {
  for (const auto& thresholds :
       {park_at_once, mixed, wait_thresholds{0, 0, 1U << 30, 1h}, wait_thresholds{0, 0, 0, 1ms}}) {
    signal_word word;
    word.raise(1);
    const auto until = deadline::after(50ms);
    CHECK(word.wait_at_least(2, until, thresholds, healthy) == errc::timed_out);
    const auto late = deadline::clock::now() - until.when();
    CHECK(late >= 0ns);
    CHECK(late < 10s);
  }
  signal_word word;
  CHECK(word.wait_at_least(1, deadline::after(-1h), park_at_once, healthy) == errc::timed_out);
}

TEST_CASE("signal_word: a sick group ends the wait with the code of the health check") {
  signal_word word;
  int asked = 0;
  const auto found = word.wait_at_least(1, patience(), wait_thresholds{0, 0, 0, 1ms},
                                        [&] { return ++asked < 5 ? errc::ok : errc::peer_dead; });
  CHECK(found == errc::peer_dead);
  CHECK(asked == 5);
}

TEST_CASE("signal_word: a wait that times out has asked for health, however short it was") {
  signal_word word;
  for (const auto span : {std::chrono::nanoseconds{-1s}, 0ns, std::chrono::nanoseconds{10us}}) {
    int asked = 0;
    const auto sick = [&] { return ++asked, errc::peer_dead; };
    CHECK(word.wait_at_least(1, deadline::after(span), park_at_once, sick) == errc::peer_dead);
    CHECK(asked == 1);
    const auto sound = [&] { return ++asked, errc::ok; };
    CHECK(word.wait_at_least(1, deadline::after(span), park_at_once, sound) == errc::timed_out);
    CHECK(asked == 2);
  }
}

TEST_CASE("signal_word: what was raised before the peer died still counts") {
  signal_word word;
  const auto found = word.wait_at_least(1, patience(), wait_thresholds{0, 0, 0, 1ms}, [&] {
    word.raise(1);
    return errc::peer_dead;
  });
  CHECK(found == errc::ok);
}

TEST_CASE("signal_word: threads pass a baton, however they wait") {
  for (const auto& thresholds : {park_at_once, mixed, wait_thresholds{0, 0, 2, 1h}}) {
    signal_word ping;
    signal_word pong;
    constexpr std::uint64_t rounds = 20'000;
    bool answered = false;
    std::thread other{[&] { answered = play(ping, pong, false, rounds, thresholds); }};
    const bool asked = play(pong, ping, true, rounds, thresholds);
    other.join();
    CHECK(asked);
    CHECK(answered);
  }
}

TEST_CASE("signal_word: a raise publishes what was written before") {
  signal_word ready;
  signal_word taken;
  std::array<std::uint64_t, 32> payload{};  // plain memory: ThreadSanitizer watches over it
  constexpr std::uint64_t rounds = 2'000;
  std::atomic<bool> torn{false};
  std::thread reader{[&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      if (ready.wait_at_least(i, patience(), mixed, healthy) != errc::ok) torn = true;
      for (const auto word : payload)
        if (word != i) torn = true;
      taken.raise(i);
    }
  }};
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    payload.fill(i);
    ready.raise(i);
    if (taken.wait_at_least(i, patience(), mixed, healthy) != errc::ok) torn = true;
  }
  reader.join();
  CHECK_FALSE(torn);
}

TEST_CASE("signal_word: one raise wakes all waiters") {
  signal_word start;
  std::array<signal_word, 6> arrived;
  constexpr std::uint64_t rounds = 500;
  std::atomic<int> failures{0};
  std::vector<std::thread> waiters;
  waiters.reserve(arrived.size());
  for (auto& answer : arrived)
    waiters.emplace_back([&] {
      for (std::uint64_t i = 1; i <= rounds; ++i) {
        if (start.wait_at_least(i, patience(), park_at_once, healthy) != errc::ok) ++failures;
        answer.raise(i);
      }
    });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    start.raise(i);
    for (auto& answer : arrived)
      if (answer.wait_at_least(i, patience(), park_at_once, healthy) != errc::ok) ++failures;
  }
  for (auto& waiter : waiters) waiter.join();
  CHECK(failures == 0);
}

TEST_CASE("signal_word: raise_each raises and wakes every word that it is given, and no other") {
  std::array<signal_word, 5> words;
  std::array<signal_word, 5> seen;
  constexpr std::uint64_t rounds = 500;
  std::array<std::uint64_t, 5> payload{};  // plain memory: ThreadSanitizer watches over it
  std::atomic<int> failures{0};
  std::vector<std::thread> waiters;
  for (std::size_t w = 0; w < 4; ++w)
    waiters.emplace_back([&, w] {
      for (std::uint64_t i = 1; i <= rounds; ++i) {
        if (words[w].wait_at_least(i, patience(), park_at_once, healthy) != errc::ok) ++failures;
        if (payload[w] != i) ++failures;
        seen[w].raise(i);
      }
    });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    payload.fill(i);
    signal_word::raise_each(4, [&](std::size_t w) -> signal_word& { return words[w]; }, i);
    for (std::size_t w = 0; w < 4; ++w)
      if (seen[w].wait_at_least(i, patience(), park_at_once, healthy) != errc::ok) ++failures;
  }
  for (auto& waiter : waiters) waiter.join();
  CHECK(failures == 0);
  CHECK(words[4].value() == 0);
  signal_word::raise_each(0, [&](std::size_t) -> signal_word& { return words[4]; }, 7);
  CHECK(words[4].value() == 0);
}

TEST_CASE("signal_word: processes pass a baton through shared memory") {
  for (const auto& thresholds : {park_at_once, mixed}) {
    shared_memory signals;
    constexpr std::uint64_t rounds = 20'000;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(play(signals[0], signals[1], false, rounds, thresholds) ? 0 : 1);
    CHECK(play(signals[1], signals[0], true, rounds, thresholds));
    CHECK(status_of(child) == 0);
  }
}

TEST_CASE("signal_word: a waiter that is killed while parked hinders nobody") {
  shared_memory signals;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signals[1].raise(1);
    (void)signals[0].wait_at_least(1, patience(), park_at_once, healthy);
    ::_exit(0);
  }
  REQUIRE(signals[1].wait_at_least(1, patience(), park_at_once, healthy) == errc::ok);
  ::kill(child, SIGKILL);
  status_of(child);
  signals[0].raise(1);
  CHECK(signals[0].wait_at_least(1, patience(), park_at_once, healthy) == errc::ok);
}

TEST_CASE("adaptive_wait: spins only with a core for each rank") {
  const peerbus::adaptive_wait policy;
  CHECK(policy.thresholds(2, 2).tight > policy.thresholds(3, 2).tight);
  CHECK(policy.thresholds(64, 2).paused == 0);
  CHECK(policy.thresholds(1, 1).tight > 0);
  CHECK(policy.thresholds(64, 2).check_interval == 2ms);
  CHECK(policy.thresholds(320, 2).check_interval == 10ms);
  CHECK(policy.thresholds(1024, 2).check_interval == 32ms);
  CHECK(policy.thresholds(64, 0).check_interval == 4ms);
  CHECK(peerbus::usable_cores() >= 1);
}

}  // namespace signal_test
