// SPDX-License-Identifier: MIT
// ctest: tsan every_build waits
//
// What every bootstrap must do, whoever starts the ranks.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

#include "support.hpp"
#include "support/given_time.hpp"
#include "support/sanitized.hpp"
#include "support/silent_children.hpp"

namespace all_bootstraps_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::signal_word;
using peerbus::wait_thresholds;

namespace {

constexpr wait_thresholds park_at_once{0, 0, 0, std::chrono::milliseconds{2}};

std::string letter_of(std::size_t rank, std::size_t round) {
  // Of all lengths, zero included, and one that needs many reads.
  const std::size_t length = rank == 2 ? 300'000 : (rank * 37 + round * 11) % 200;
  return std::string(length, static_cast<char>('a' + (rank + round) % 26));
}

}  // namespace

TEST_CASE_TEMPLATE("bootstrap: everybody gets what everybody gave", Run, PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (const std::size_t n : sizes_for<Run>({1, 2, 3, 5, 8, 64})) {
    CAPTURE(n);
    const belongings before;
    const int status = Run::run(n, [n](bootstrap& boot) {
      require(boot.size() == n, "the size asked for");
      require(boot.ranks_here() == n, "all ranks here");
      require(boot.cores_here() >= 1, "a core");
      for (std::size_t round = 0; round < 4; ++round) {
        const auto given = boot.allgather({bytes_of(letter_of(boot.rank().index(), round)), {}},
                                          patience(), "letters");
        require(given.size() == n, "one contribution per rank");
        for (std::size_t rank = 0; rank < n; ++rank) {
          require(text_of(given[rank].bytes) == letter_of(rank, round), "the rank's own letter");
          require(!given[rank].fd, "no descriptor where none was given");
        }
      }
    });
    CHECK(status == 0);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("bootstrap: a rank that waits gets on with its own work", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  class counting final : public peerbus::idle_work::task {
   public:
    explicit counting(std::atomic<std::uint64_t>& count) : count_{count} {}
    void advance() noexcept override { ++count_; }

   private:
    std::atomic<std::uint64_t>& count_;
  };
  const time_limit limit;
  constexpr std::size_t n = 3;
  const shared<std::array<std::atomic<std::uint64_t>, n>> counts;
  const int status = Run::run(n, [&](bootstrap& boot) {
    const std::size_t me = boot.rank().index();
    counting mine{(*counts)[me]};
    boot.idle()->add(mine);
    for (std::size_t late = 0; late < n; ++late) {
      if (late == me)
        // The others wait for this rank, which comes once they have all worked meanwhile.
        for (std::size_t rank = 0; rank < n; ++rank)
          for (const std::uint64_t enough = (*counts)[rank] + 10;
               rank != me && (*counts)[rank] < enough;)
            std::this_thread::yield();
      (void)boot.allgather({}, patience(), "together");
    }
    boot.idle()->remove(mine);
    const std::uint64_t last = (*counts)[me];
    (void)boot.allgather({}, patience(), "removed");
    require((*counts)[me] == last, "no call of a task that was removed");
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("bootstrap: descriptors really pass", Run, as_threads, as_local, as_launched) {
  const time_limit limit;
  for (const std::size_t n : sizes_for<Run>({1, 2, 5, 64})) {
    CAPTURE(n);
    const belongings before;
    const int status = Run::run(n, [n](bootstrap& boot) {
      const std::size_t me = boot.rank().index();
      // Every third rank gives none.
      peerbus::unique_fd file;
      if (me % 3 != 2) file.reset(::memfd_create("letters", MFD_CLOEXEC));
      peerbus::unique_fd mine;
      if (file) mine.reset(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
      const auto given = boot.allgather({{}, std::move(file)}, patience(), "files");
      for (std::size_t rank = 0; rank < n; ++rank) {
        require(static_cast<bool>(given[rank].fd) == (rank % 3 != 2),
                "files where files were given");
        if (!given[rank].fd) continue;
        require((::fcntl(given[rank].fd.get(), F_GETFD) & FD_CLOEXEC) != 0, "close-on-exec");
        const char mark = static_cast<char>(me + 1);
        require(::pwrite(given[rank].fd.get(), &mark, 1, static_cast<off_t>(me)) == 1, "a write");
      }
      (void)boot.allgather({}, patience(), "all have written");
      if (!mine) return;
      for (std::size_t rank = 0; rank < n; ++rank) {
        char mark = 0;
        require(::pread(mine.get(), &mark, 1, static_cast<off_t>(rank)) == 1 &&
                    static_cast<std::size_t>(mark) == rank + 1,
                "the mark of every rank in my file");
      }
    });
    CHECK(status == 0);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("bootstrap: a rank that throws ends the waits of the others", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (std::size_t thrower : {0U, 2U}) {
    CAPTURE(thrower);
    const belongings before;
    shared<std::atomic<int>> told;
    int status = -1;
    const auto said = stderr_of([&] {
      status = Run::run(5, [&told, thrower](bootstrap& boot) {
        if (boot.rank().index() == thrower) throw std::runtime_error{"no more of this"};
        const auto caught =
            error_of([&] { (void)boot.allgather({}, patience(), "what never comes"); });
        require(caught.code() == errc::peer_dead, std::string{"peer_dead, not: "} + caught.what());
        const std::string who = peerbus::detail::concat(rank_id{thrower});
        require(contains(caught.what(), who), who + " in: " + caught.what());
        require(contains(caught.what(), "what never comes"), "the purpose");
        ++*told;
      });
    });
    CAPTURE(said);
    CHECK(status == 1);
    CHECK(told->load() == 4);
    CHECK(contains(said, "no more of this"));
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("bootstrap: a rank that has left is not waited for", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (std::size_t leaver : {0U, 1U}) {
    CAPTURE(leaver);
    const int status = Run::run(3, [leaver](bootstrap& boot) {
      (void)boot.allgather({}, patience(), "together");
      if (boot.rank().index() == leaver) return;
      const auto caught = error_of([&] { (void)boot.allgather({}, patience(), "alone"); });
      require(caught.code() == errc::peer_dead, std::string{"peer_dead, not: "} + caught.what());
      require(contains(caught.what(), peerbus::detail::concat(rank_id{leaver}, " left")),
              std::string{"who left, in: "} + caught.what());
    });
    CHECK(status == 0);
  }
}

TEST_CASE_TEMPLATE("bootstrap: who does not come is named to all, by the deadline", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  shared<std::array<signal_word, 8>> done;
  shared<std::array<std::atomic<std::int64_t>, 8>> begun;  // In nanoseconds; 0 before.
  constexpr auto allowed = 1s;  // Enough for a rank that runs, also on a busy machine.
  const int status = Run::run(6, [&done, &begun, allowed](bootstrap& boot) {
    const std::size_t me = boot.rank().index();
    const auto& members = boot.members();
    const auto healthy = [] { return errc::ok; };
    const auto now = [] {
      return std::chrono::nanoseconds{deadline::clock::now().time_since_epoch()};
    };
    if (me == 3 || me == 4) {
      // Busy until the others have given up on it.
      for (std::size_t peer : {0U, 1U, 2U, 5U})
        require((*done)[peer].wait_at_least(1, patience(), park_at_once, healthy) == errc::ok,
                "word from the others");
    } else {
      const auto before = now();
      (*begun)[me] = before.count();
      for (std::size_t peer : {0U, 1U, 2U, 5U})  // So that these are not late.
        while ((*begun)[peer] == 0) std::this_thread::yield();
      const auto caught =
          error_of([&] { (void)boot.allgather({}, deadline::after(allowed), "roll call"); });
      const auto ended = now();
      // A rank that came earlier may have given up earlier, and told this one.
      auto first = before;
      for (const auto& other : *begun)
        if (const std::chrono::nanoseconds at{other.load()}; at != 0ns) first = std::min(first, at);
      const bool there = members->state(rank_id{3}) == peerbus::rank_state::running;
      (*done)[me].raise(1);
      require(there, "rank 3 late, but running");
      require(caught.code() == errc::timed_out, std::string{"timed_out, not: "} + caught.what());
      require(contains(caught.what(), "ranks 3, 4 of 6"),
              std::string{"the missing ranks in: "} + caught.what());
      require(contains(caught.what(), "roll call") && contains(caught.what(), "come within "),
              std::string{"purpose and time in: "} + caught.what());
      require(ended - first >= allowed - 50ms, "no end before the first deadline");
      require(ended - before < 20s, "an end soon after the deadline");
    }
    // The group is out of step: nothing goes well afterwards, and nothing hangs.
    const auto after =
        error_of([&] { (void)boot.allgather({}, deadline::after(30s), "afterwards"); });
    const bool told_now = after.code() == errc::timed_out && contains(after.what(), "ranks 3, 4");
    require(after.code() == errc::poisoned || after.code() == errc::peer_dead || told_now,
            std::string{"an end of the group, not: "} + after.what());
  });
  CHECK(status == 0);
}

namespace {

/// Starts three ranks of four, which `join(rank, deadline)` makes ranks of the group, and the last
/// rank once the others have missed it. Returns: whether they named it, and met it when they called
/// again.
template <class Join>
bool late_rank_is_named_and_joins(Join join) {
  shared<std::atomic<int>> named;
  std::vector<pid_t> ranks;
  ranks.reserve(4);
  for (std::size_t rank = 0; rank < 4; ++rank)
    ranks.push_back(in_child([&, rank] {
      if (rank != 3) {
        const auto caught = error_of([&] { (void)join(rank, deadline::after(1s)); });
        require(caught.code() == errc::timed_out && contains(caught.what(), "3 of 4 did not join"),
                std::string{"the missing rank in: "} + caught.what());
        ++*named;
      }
      while (named->load() != 3) ::usleep(1000);
      auto boot = join(rank, patience());
      (void)boot.allgather({}, patience(), "together");
      return 0;
    }));
  bool all = true;
  for (const pid_t rank : ranks) all = status_of(rank) == 0 && all;
  return all;
}

}  // namespace

TEST_CASE("bootstrap: a rank that comes late is named, and joins if the deadline allows it") {
  const time_limit limit;
  const auto port = fresh_port();
  CHECK(late_rank_is_named_and_joins([port](std::size_t rank, deadline until) {
    peerbus::launch_settings seat;
    seat.rank = rank;
    seat.size = 4;
    seat.address = own_address();
    seat.port = port;
    return peerbus::environment_bootstrap{seat, until};
  }));
#ifdef PEERBUS_TEST_TCP
  const auto tcp_port = free_tcp_port();
  CHECK(late_rank_is_named_and_joins([tcp_port](std::size_t rank, deadline until) {
    return peerbus::tcp_bootstrap{tcp_seat(rank, 4, tcp_port), until};
  }));
#endif
}

TEST_CASE_TEMPLATE("bootstrap: without rank 0 the others time out all the same", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const auto is_named_within = [](std::chrono::milliseconds span) {
    shared<std::array<signal_word, 3>> done;
    return Run::run(3, [&done, span](bootstrap& boot) {
             const std::size_t me = boot.rank().index();
             if (me == 0) {
               for (std::size_t peer : {1U, 2U})
                 require((*done)[peer].wait_at_least(1, patience(), park_at_once,
                                                     [] { return errc::ok; }) == errc::ok,
                         "word from the others");
               // Their parts still lie there, but it must not succeed alone.
               const auto late =
                   error_of([&] { (void)boot.allgather({}, patience(), "roll call"); });
               require(late.code() == errc::timed_out || late.code() == errc::poisoned,
                       std::string{"too late, not: "} + late.what());
               return;
             }
             const auto caught =
                 error_of([&] { (void)boot.allgather({}, deadline::after(span), "roll call"); });
             (*done)[me].raise(1);
             require(caught.code() == errc::timed_out,
                     std::string{"timed_out, not: "} + caught.what());
             require(contains(caught.what(), "rank 0 of 3"),
                     std::string{"rank 0 in: "} + caught.what());
           }) == 0;
  };
  CHECK(given_time(100ms, is_named_within));
}

TEST_CASE_TEMPLATE("bootstrap: ranks in different collectives are told which", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const int status = Run::run(4, [](bootstrap& boot) {
    const bool other = boot.rank().index() == 2;
    const auto caught = error_of([&] {
      (void)boot.allgather({}, patience(), other ? "make a window" : "make an exchange");
    });
    require(caught.code() == errc::mismatch, std::string{"mismatch, not: "} + caught.what());
    for (const char* part : {"make a window", "make an exchange", "rank 2"})
      require(contains(caught.what(), part), std::string{part} + " in: " + caught.what());
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("bootstrap: too large a contribution is refused on all ranks", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (std::size_t giver : {0U, 1U}) {
    CAPTURE(giver);
    const int status = Run::run(2, [giver](bootstrap& boot) {
      std::vector<std::byte> much;
      if (boot.rank().index() == giver) much.resize(bootstrap::max_contribution_bytes + 1);
      const auto caught =
          error_of([&] { (void)boot.allgather({std::move(much), {}}, patience(), "much"); });
      require(caught.code() == errc::invalid_argument, caught.what());
      require(contains(caught.what(), "67108865") && contains(caught.what(), "67108864"),
              std::string{"both sizes in: "} + caught.what());
    });
    CHECK(status == 0);
  }
}

TEST_CASE_TEMPLATE("membership: who waits for a signal learns of a rank that throws", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  shared<signal_word> never;
  shared<std::atomic<int>> told;
  int status = -1;
  (void)stderr_of([&] {
    status = Run::run(4, [&](bootstrap& boot) {
      (void)boot.allgather({}, patience(), "together");
      if (boot.rank() == rank_id{1}) throw std::runtime_error{"enough"};
      const auto before = deadline::clock::now();
      const auto& members = boot.members();
      const errc found = never->wait_at_least(1, patience(), park_at_once,
                                              [&] { return members->health(std::nullopt); });
      require(found == errc::peer_dead, "peer_dead");
      require(deadline::clock::now() - before < 20s, "soon");
      require(contains(members->describe_missing(), "rank 1 failed"), "who: rank 1");
      require(members->first_failed() == rank_id{1}, "first failed: rank 1");
      ++*told;
      // All stay until all have seen it, or a rank that leaves would be another one missing.
      while (told->load() < 3 && deadline::clock::now() - before < 20s) std::this_thread::yield();
    });
  });
  CHECK(status == 1);
  CHECK(told->load() == 3);
}

TEST_CASE_TEMPLATE("membership: a rank that left is missed only by who waits for it", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const int status = Run::run(3, [](bootstrap& boot) {
    (void)boot.allgather({}, patience(), "together");
    const auto& members = boot.members();
    if (boot.rank() == rank_id{2}) return;
    const auto until = patience();
    while (members->state(rank_id{2}) == peerbus::rank_state::running && !until.expired())
      std::this_thread::yield();
    require(members->state(rank_id{2}) == peerbus::rank_state::left, "rank 2 left");
    require(members->health(rank_id{2}) == errc::peer_dead, "missed by who waits for it");
    require(members->health(rank_id{1 - boot.rank().index()}) == errc::ok ||
                members->state(rank_id{1 - boot.rank().index()}) != peerbus::rank_state::running,
            "not by others");
    require(contains(members->fate(rank_id{2}), "rank 2 left"), "its fate");
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("membership: signals that come all the time do not hide the end of a process",
                   Run, PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  const shared<std::atomic<int>> ticks;
  static std::atomic<int>* counted = nullptr;
  counted = &*ticks;
  const int status = Run::run(2, [&](bootstrap& boot) {
    (void)boot.allgather({}, patience(), "together");
    if (boot.rank() == rank_id{1}) {
      // Until rank 0 has been interrupted while it waits for the end of this one.
      for (const auto until = patience(); ticks->load() < 20 && !until.expired();)
        std::this_thread::yield();
      return;
    }
    // A profiler's timer, without SA_RESTART.
    struct sigaction action{};
    action.sa_handler = [](int) { ++*counted; };
    require(::sigaction(SIGALRM, &action, nullptr) == 0, "a handler");
    const itimerval often{{0, 1'000}, {0, 1'000}};
    require(::setitimer(ITIMER_REAL, &often, nullptr) == 0, "a timer");
    require(boot.members()->ends_within(rank_id{1}, 60s), "the end of rank 1");
    require(ticks->load() >= 20, "no end before it came");
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("daemon: what a rank logs without standard streams gets into no connection", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  const int status = status_of(in_child([] {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(standard);
    return Run::run(3, [](bootstrap& boot) {
      const auto log = [] {
        std::printf("a line\n");
        std::fflush(stdout);
        for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
          require(::fcntl(standard, F_GETFD) < 0, "no descriptor with the number of a stream");
      };
      log();
      bootstrap::contribution mine;
      if (boot.passes_descriptors()) mine.fd = peerbus::make_memory_file("given", 1);
      const auto given = boot.allgather(std::move(mine), patience(), "descriptors");
      log();
      const auto part = boot.subgroup({rank_id{0}, rank_id{1}, rank_id{2}}, patience());
      log();
      (void)part->allgather({}, patience(), "after the log");
    });
  }));
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("fork: a child that a rank forks does not speak for it", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  CHECK(Run::run(3, [](bootstrap& boot) { (void)test::is_silent_child(boot); }) == 0);
}

TEST_CASE_TEMPLATE("kill -9: who gathers is told at once who died", Run, PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  for (std::size_t victim : {0U, 2U}) {
    CAPTURE(victim);
    const belongings before;
    shared<std::atomic<int>> told;
    const auto start = deadline::clock::now();
    int status = -1;
    const auto said = stderr_of([&] {
      status = Run::run(5, [&told, victim](bootstrap& boot) {
        (void)boot.allgather({}, patience(), "together");
        if (boot.rank().index() == victim) ::kill(::getpid(), SIGKILL);
        const auto caught = error_of([&] { (void)boot.allgather({}, patience(), "alone"); });
        require(caught.code() == errc::peer_dead, std::string{"peer_dead, not: "} + caught.what());
        const std::string who = peerbus::detail::concat(rank_id{victim}, " died");
        require(contains(caught.what(), who), who + " in: " + caught.what());
        ++*told;
      });
    });
    CAPTURE(said);
    CHECK(status == 137);
    CHECK(told->load() == 4);
    CHECK(deadline::clock::now() - start < 20s);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("kill -9: while rank 0 is busy the others learn it without it", Run, as_local,
                   as_launched) {
  const time_limit limit;
  shared<std::array<signal_word, 4>> done;
  int status = -1;
  (void)stderr_of([&] {
    status = Run::run(4, [&done](bootstrap& boot) {
      (void)boot.allgather({}, patience(), "together");
      const std::size_t me = boot.rank().index();
      if (me == 3) ::kill(::getpid(), SIGKILL);
      if (me == 0) {
        for (std::size_t peer : {1U, 2U})
          require((*done)[peer].wait_at_least(1, patience(), park_at_once,
                                              [] { return errc::ok; }) == errc::ok,
                  "word from the others");
        return;
      }
      const auto caught = error_of([&] { (void)boot.allgather({}, patience(), "alone"); });
      (*done)[me].raise(1);
      require(caught.code() == errc::peer_dead, std::string{"peer_dead, not: "} + caught.what());
      require(contains(caught.what(), "rank 3 died"), std::string{"who in: "} + caught.what());
    });
  });
  CHECK(status == 137);
}

TEST_CASE_TEMPLATE("kill -9: who waits for a signal is told at once who died", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  for (std::size_t victim : {0U, 3U}) {
    CAPTURE(victim);
    shared<signal_word> never;
    shared<std::atomic<int>> told;
    int status = -1;
    (void)stderr_of([&] {
      status = Run::run(4, [&, victim](bootstrap& boot) {
        (void)boot.allgather({}, patience(), "together");
        if (boot.rank().index() == victim) ::kill(::getpid(), SIGKILL);
        const auto& members = boot.members();
        const auto before = deadline::clock::now();
        const errc found = never->wait_at_least(1, patience(), park_at_once,
                                                [&] { return members->health(std::nullopt); });
        require(found == errc::peer_dead, "peer_dead");
        require(deadline::clock::now() - before < 20s, "soon");
        require(contains(members->describe_missing(),
                         peerbus::detail::concat(rank_id{victim}, " died")),
                "who died in: " + members->describe_missing());
        ++*told;
      });
    });
    CHECK(status == 137);
    CHECK(told->load() == 3);
  }
}

TEST_CASE_TEMPLATE("kill -9: at any moment of many collectives, nobody hangs", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  for (unsigned attempt = 0; attempt < 12; ++attempt) {
    CAPTURE(attempt);
    const belongings before;
    shared<std::atomic<int>> victim_pid;
    int status = -1;
    (void)stderr_of([&] {
      const pid_t killer = start_killer(*victim_pid, attempt);
      status = Run::run(4, [&](bootstrap& boot) {
        if (boot.rank().index() == attempt % 4) *victim_pid = ::getpid();
        const auto until = patience();
        try {
          while (!until.expired()) {
            peerbus::unique_fd file;
            if (Run::descriptors) file.reset(::memfd_create("any", MFD_CLOEXEC));
            (void)boot.allgather({std::vector<std::byte>(1000), std::move(file)}, until, "again");
          }
        } catch (const peerbus::error& caught) {
          require(caught.code() == errc::peer_dead, caught.what());
          return;
        }
        throw std::runtime_error{"never learned of the death"};
      });
      CHECK(status_of(killer) == 0);
    });
    CHECK(status == 137);
    CHECK(belongings{} == before);
  }
}

}  // namespace all_bootstraps_test
