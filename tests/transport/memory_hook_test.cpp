// SPDX-License-Identifier: MIT
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/ranks.hpp"

namespace memory_hook_test {

namespace {

constexpr std::size_t ranks = 3;

/// How many hooks each rank has come to the end of; processes share it as well.
class counters {
 public:
  counters()
      : at_{::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
    REQUIRE(at_ != MAP_FAILED);
    for (std::size_t i = 0; i < ranks; ++i) ::new (&(*this)[i]) std::atomic<int>{0};
  }
  counters(const counters&) = delete;
  counters& operator=(const counters&) = delete;
  ~counters() { ::munmap(at_, bytes); }

  std::atomic<int>& operator[](std::size_t rank) const {
    return static_cast<std::atomic<int>*>(at_)[rank];
  }

 private:
  static constexpr std::size_t bytes = ranks * sizeof(std::atomic<int>);
  void* at_;
};

bool untouched(std::span<std::byte> part) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((part.size() + page - 1) / page);
  if (::mincore(part.data(), part.size(), present.data()) != 0) return false;
  return std::all_of(present.begin(), present.end(),
                     [](unsigned char one) { return (one & 1U) == 0; });
}

template <class Transport>
void check_hook(peerbus::bootstrap& boot, const counters& finished) {
  std::vector<std::span<std::byte>> seen;
  peerbus::communicator comm{Transport{boot, {}, [&](std::span<std::byte> part) {
                                         test::expect(untouched(part), "memory that is new");
                                         // Gives peers that do not wait for us the time to show it.
                                         std::this_thread::sleep_for(std::chrono::milliseconds{5});
                                         seen.push_back(part);
                                         ++finished[boot.rank().index()];
                                       }}};
  const auto all_finished = [&](int count) {
    for (std::size_t r = 0; r < ranks; ++r)
      test::expect(finished[r] >= count, "the hook of rank ", r, " to have ended ", count,
                   " times");
  };
  all_finished(1);
  test::expect_equal(seen.size(), std::size_t{1}, "hooks for the communicator's own window");

  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, (std::size_t{2} << 20) + 1}) {
    const auto made = comm.make_window(bytes, 3);
    all_finished(static_cast<int>(seen.size()));
    const auto part = seen.back();
    if (bytes != 0)
      test::expect(part.data() == made.local().data(), "the span to begin with the data");
    test::expect(part.size() >= bytes + 3 * sizeof(peerbus::signal_word),
                 "the span to hold data and signals, but it has ", part.size(), " bytes");
    test::expect_equal(part.size() % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
                       std::size_t{0}, "what the span has beyond whole pages");
  }
  test::expect_equal(seen.size(), std::size_t{4}, "hooks for four windows");
}

template <class Transport>
void check_refusal(peerbus::bootstrap& boot) {
  std::function<void()> on_rank_1 = [] {};
  peerbus::communicator comm{Transport{boot, {}, [&](std::span<std::byte>) {
                                         if (boot.rank().index() == 1) on_rank_1();
                                       }}};
  on_rank_1 = [] { throw peerbus::error{peerbus::errc::unsupported, "no lock"}; };
  test::expect_error(peerbus::errc::unsupported, {"no lock"},
                     [&] { (void)comm.make_window(64, 1); });
  on_rank_1 = [] { throw std::bad_alloc{}; };
  test::expect_error(peerbus::errc::out_of_memory, {"no memory for a window's "},
                     [&] { (void)comm.make_window(64, 1); });
  on_rank_1 = [] { throw std::runtime_error{"no node"}; };
  test::expect_error(peerbus::errc::system, {"no node"}, [&] { (void)comm.make_window(64, 1); });
  on_rank_1 = [] {};
  (void)comm.make_window(64, 1);
  comm.barrier();
}

}  // namespace

TEST_CASE("the memory hook sees each part of unified_bus whole, before peers can touch it") {
  const counters finished;
  CHECK(peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
          check_hook<peerbus::unified_bus>(boot, finished);
        }) == 0);
}

TEST_CASE("the memory hook sees each part of loopback whole, before peers can touch it") {
  const counters finished;
  CHECK(peerbus::run_threads(ranks, [&](peerbus::bootstrap& boot) {
          check_hook<peerbus::loopback>(boot, finished);
        }) == 0);
}

TEST_CASE(
    "an exception of the memory hook refuses the window on all ranks, and the next one works") {
  CHECK(peerbus::run_local(ranks, check_refusal<peerbus::unified_bus>) == 0);
  CHECK(peerbus::run_threads(ranks, check_refusal<peerbus::loopback>) == 0);
}

}  // namespace memory_hook_test
