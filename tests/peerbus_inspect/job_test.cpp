// SPDX-License-Identifier: MIT
// ctest: waits timeout=300
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/observed_group.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "chain.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

namespace job_test {
namespace {

using namespace std::chrono_literals;
using peerbus::bf16;
using peerbus::errc;
using peerbus::group_operation;
using peerbus::observed_group;
using peerbus::observed_rank;
using peerbus::rank_id;
using peerbus_inspect::diagnosis;
using peerbus_inspect::finding;
using places = std::vector<std::size_t>;

constexpr std::size_t ranks = 8;
constexpr std::size_t victim = 3;
constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{2}};

/// A process that runs a group of ranks, as something to look at. It ends with the test.
class job {
 public:
  template <class Body>
  explicit job(Body body) : process_{test::in_child(body)} {}
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);  // Its ranks die with it.
    (void)test::status_of(process_);
  }

  [[nodiscard]] pid_t process() const noexcept { return process_; }
  /// Waits until the process has ended. Returns its exit status.
  [[nodiscard]] int end() { return test::status_of(std::exchange(process_, 0)); }

  /// Returns the group of all ranks, once `are_there` holds for what is seen of them.
  [[nodiscard]] observed_group attach(
      const std::function<bool(const std::vector<observed_rank>&)>& are_there) const {
    for (const auto until = test::patience();; std::this_thread::yield()) {
      REQUIRE(!until.expired());
      try {
        auto groups = observed_group::attach(process_);
        if (are_there(groups.front().read())) return groups.front();
      } catch (const peerbus::error& caught) {
        REQUIRE(caught.code() == errc::unsupported);  // It has not begun.
      }
    }
  }

 private:
  pid_t process_;
};

/// Returns whether all ranks have come to dispatch 3.
bool are_dispatching(const std::vector<observed_rank>& seen) {
  for (const observed_rank& each : seen)
    if (!each.latest || each.latest->wait.number < 3) return false;
  return true;
}
bool are_there(const std::vector<observed_rank>& seen) {
  for (const observed_rank& each : seen)
    if (each.process == 0) return false;
  return true;
}
bool have_waited(const std::vector<observed_rank>& seen) {
  for (const observed_rank& each : seen)
    if (!each.latest || each.latest->wait.operation == group_operation::allgather) return false;
  return true;
}

/// Looks at the group until `is_answer` holds.
template <class IsAnswer>
diagnosis await(const observed_group& group, IsAnswer is_answer) {
  for (const auto until = test::patience();; std::this_thread::yield()) {
    const auto seen = group.read();
    const std::vector<bool> nowhere_else(seen.size());
    auto answer = peerbus_inspect::diagnose(seen, seen.size() == group.size(), nowhere_else, 100ms);
    if (is_answer(answer)) return answer;
    REQUIRE(!until.expired());
  }
}

/// Sends a token to an expert of each rank, again and again, and checks the sums that come back,
/// until `enough` has been told to rank 0.
void dispatch_until(peerbus::bootstrap& boot, const test::tally& enough) {
  peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}, patient};
  peerbus::moe::exchange moe{comm,
                             {.experts = ranks, .hidden = 64, .top_k = ranks, .max_tokens = 1},
                             peerbus::codec::int8_per_token{}};
  peerbus::collective::team team{comm};
  const std::vector<bf16> tokens(64, bf16{1.0F});
  const std::vector<std::int32_t> experts{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<float> weights(ranks, 1.0F);
  std::vector<bf16> out(64);
  for (std::size_t round = 0;; ++round) {
    const auto value = static_cast<float>(round % 64);
    auto received = moe.dispatch(tokens, {experts, weights});
    for (auto& expert : received.experts())
      for (bf16& output : expert.outputs()) output = bf16{value};
    moe.combine(received, out);
    for (const bf16 sum : out) test::expect_equal(static_cast<float>(sum), ranks * value, "a sum");
    std::vector<std::int32_t> is_last{enough.count() == 0 ? 0 : 1};
    peerbus::collective::broadcast(team, is_last, rank_id{0});
    if (is_last[0] != 0) return;
  }
}

TEST_CASE("a rank that is stopped amid dispatches is named, and the job goes on after SIGCONT") {
  const test::tally enough;
  job seen{[&] {
    return peerbus::run_local(ranks,
                              [&](peerbus::bootstrap& boot) { dispatch_until(boot, enough); });
  }};
  const auto group = seen.attach(are_dispatching);
  CHECK(group.size() == ranks);
  const pid_t process = group.read()[victim].process;
  REQUIRE(process > 0);
  REQUIRE(::kill(process, SIGSTOP) == 0);
  const auto answer = await(group, [](auto& found) {
    return found.found == finding::stopped && found.waiters.size() == ranks - 1;
  });
  CHECK(answer.culprits == places{victim});
  // A rank that is asked finds the same group.
  CHECK(observed_group::attach(process).front() == group);
  REQUIRE(::kill(process, SIGCONT) == 0);
  enough.add();
  CHECK(seen.end() == 0);
  CHECK(await(group, [](auto&) { return true; }).found == finding::ended);
}

TEST_CASE("a rank that is killed is named, also after the others have ended because of it") {
  const test::tally enough;
  job seen{[&] {
    return peerbus::run_local(ranks,
                              [&](peerbus::bootstrap& boot) { dispatch_until(boot, enough); });
  }};
  const auto group = seen.attach(are_dispatching);
  const pid_t process = group.read()[victim].process;
  REQUIRE(process > 0);
  REQUIRE(::kill(process, SIGKILL) == 0);
  const auto is_gone = [](auto& found) { return found.found == finding::gone; };
  CHECK(await(group, is_gone).culprits == places{victim});
  CHECK(seen.end() == 128 + SIGKILL);
  CHECK(await(group, is_gone).culprits == places{victim});
}

TEST_CASE("ranks that call different operations are a mismatch") {
  job seen{[] {
    return peerbus::run_local(ranks, [](peerbus::bootstrap& boot) {
      peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}, patient};
      peerbus::collective::team team{comm};
      std::vector<float> data(16);
      if (comm.rank().index() == 1) return comm.barrier();
      peerbus::collective::all_reduce(team, data, peerbus::collective::sum{});
    });
  }};
  const auto group = seen.attach(have_waited);
  const auto is_mismatch = [](auto& found) { return found.found == finding::mismatch; };
  CHECK(await(group, is_mismatch).culprits.size() == ranks);
  const auto latest = group.read();
  CHECK(latest[1].latest->wait.operation == group_operation::barrier);
  CHECK(latest[2].latest->wait.operation == group_operation::all_reduce);
}

TEST_CASE("ranks that are threads, one of which computes") {
  const test::tally enough;
  job seen{[&] {
    return peerbus::run_threads(ranks, [&](peerbus::bootstrap& boot) {
      peerbus::communicator<peerbus::loopback> comm{peerbus::loopback{boot}, patient};
      while (comm.rank().index() == victim && enough.count() == 0) std::this_thread::sleep_for(1ms);
      comm.barrier();
    });
  }};
  const auto group = seen.attach(are_there);
  const auto answer = await(group, [](auto& found) {
    return found.found == finding::busy && found.waiters.size() == ranks - 1;
  });
  CHECK(answer.culprits == places{victim});
  for (const observed_rank& each : group.read()) CHECK(each.process == seen.process());
  enough.add();
  CHECK(seen.end() == 0);
}

TEST_CASE("each of the groups that a process is in is found") {
  const test::tally enough;
  job seen{[&] {
    return peerbus::run_local(4, [&](peerbus::bootstrap& boot) {
      const auto half = peerbus::split(boot, boot.rank().index() % 2);
      peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{*half}, patient};
      while (boot.rank().index() == victim && enough.count() == 0) std::this_thread::yield();
      comm.barrier();
    });
  }};
  const auto whole = seen.attach(are_there);
  const pid_t process = whole.read()[1].process;
  auto groups = observed_group::attach(process);
  for (const auto until = test::patience(); groups.size() < 2; std::this_thread::yield()) {
    REQUIRE(!until.expired());
    groups = observed_group::attach(process);
  }
  CHECK(groups[0] == whole);
  const auto& half = groups[1];
  CHECK(half.size() == 2);
  const auto answer = await(half, [](auto& found) { return found.found == finding::busy; });
  CHECK(answer.culprits == places{1});  // Rank 3 is rank 1 of its half.
  enough.add();
  CHECK(seen.end() == 0);
}

/// Returns the code of the error with which looking at `process` fails.
errc refusal_of(pid_t process) {
  try {
    (void)observed_group::attach(process);
  } catch (const peerbus::error& caught) {
    INFO(caught.what());
    return caught.code();
  }
  return errc::ok;
}

TEST_CASE("what cannot be looked at is refused") {
  CHECK(refusal_of(0) == errc::invalid_argument);
  CHECK(refusal_of(-1) == errc::invalid_argument);
  const pid_t ended = test::in_child([] { return 0; });
  siginfo_t about{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(ended), &about, WEXITED | WNOWAIT) == 0);
  CHECK(refusal_of(ended) == errc::invalid_argument);  // It has a number still.
  (void)test::status_of(ended);
  CHECK(refusal_of(ended) == errc::invalid_argument);
  CHECK(refusal_of(::getpid()) == errc::unsupported);
  // A file of the file system is no page of states, whatever it is called and holds.
  std::string path = "/tmp/memfd:peerbus-statesXXXXXX";
  {
    const peerbus::unique_fd file{::mkstemp(path.data())};
    REQUIRE(file);
    CHECK(::unlink(path.c_str()) == 0);
    const peerbus::detail::state_page_header header{.group_size = 1, .ranks = 1};
    CHECK(::pwrite(file.get(), &header, sizeof header, 0) == sizeof header);
    CHECK(refusal_of(::getpid()) == errc::unsupported);
  }
  if (::geteuid() == 0) {
    const pid_t own = ::getpid();
    CHECK(test::status_of(test::in_child([own] {
            if (::setuid(65534) != 0) return 2;
            return refusal_of(own) == errc::system ? 0 : 1;
          })) == 0);
  }
}

TEST_CASE("a process that ends while it is looked at is refused as one that has ended") {
  using peerbus::detail::state_page;
  for (int i = 0; i < 100; ++i) {
    const test::tally enough;
    job seen{[&]() -> int {
      const auto page = state_page::make_named(state_page::name_of_ranks, 1);
      // With more files to look through and to close, more can come in between.
      std::vector<peerbus::unique_fd> others;
      for (int n = 0; n < 200; ++n) others.push_back(peerbus::unique_fd{::dup(STDIN_FILENO)});
      while (enough.count() == 0) std::this_thread::yield();
      ::_exit(0);  // With all files open.
    }};
    (void)seen.attach([](const auto&) { return true; });
    enough.add();
    errc found = errc::ok;
    for (const auto until = test::patience(); found == errc::ok && !until.expired();)
      found = refusal_of(seen.process());
    REQUIRE(found == errc::invalid_argument);
  }
}

TEST_CASE("a page of another layout, or of which a part is missing, is refused") {
  using peerbus::detail::state_page;
  peerbus::detail::state_page_header header{.group_size = 1, .ranks = 1};
  const auto page = state_page::make_named(state_page::name_of_ranks, header);
  CHECK(refusal_of(::getpid()) == errc::ok);
  const auto refuses = [&](errc expected) {
    const auto file = peerbus::make_memory_file(state_page::name_of_ranks, 4096);
    REQUIRE(::pwrite(file.get(), &header, sizeof header, 0) == sizeof header);
    CHECK(refusal_of(::getpid()) == expected);
  };
  header.ranks = 1'000'000;
  refuses(errc::system);
  header.layout = header.expected_layout + 1;
  refuses(errc::mismatch);
  header.magic[0] = 'P';
  refuses(errc::ok);  // It is another's.
}

}  // namespace
}  // namespace job_test
