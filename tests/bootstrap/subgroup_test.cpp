// SPDX-License-Identifier: MIT
// ctest: tsan every_build
//
// Subgroups, over every bootstrap that can make them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support.hpp"
#include "support/given_time.hpp"
#include "support/sanitized.hpp"

namespace subgroup_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::rank_state;
using peerbus::detail::concat;

namespace {

using rank_list = std::vector<rank_id>;

rank_list ranks_of(std::initializer_list<std::size_t> numbers) {
  rank_list list;
  for (const std::size_t number : numbers) list.emplace_back(number);
  return list;
}

/// `list` if the caller is in it, else the caller alone.
rank_list own_list(const bootstrap& boot, const rank_list& list) {
  for (const rank_id rank : list)
    if (rank == boot.rank()) return list;
  return {boot.rank()};
}

/// One collective of `group`, in which every member must find the numbers that `list` gives to all.
void check_collective(bootstrap& group, const rank_list& list, std::string_view doing = "numbers") {
  require(group.size() == list.size(), "the size of the list");
  const std::string mine = concat("of ", list[group.rank().index()]);
  const auto given = group.allgather({bytes_of(mine), {}}, patience(), doing);
  for (std::size_t member = 0; member < list.size(); ++member) {
    require(text_of(given[member].bytes) == concat("of ", list[member]), "members as listed");
    require(group.parent_rank(rank_id{member}) == list[member], "the number in the parent");
  }
}

/// Writes to every member's memory through a transport, and compares what all wrote.
void check_unified_bus(bootstrap& group) {
  peerbus::communicator comm{peerbus::unified_bus{group}};
  auto window = comm.make_window(group.size() * sizeof(std::uint64_t), 1);
  const std::uint64_t mine = 1000 + group.rank().index();
  for (const rank_id peer : comm.ranks()) {
    auto* const words = reinterpret_cast<std::uint64_t*>(window.peer(peer).data());
    words[group.rank().index()] = mine;
  }
  comm.barrier(patience());
  for (const rank_id peer : comm.ranks()) {
    std::uint64_t word = 0;
    std::memcpy(&word, window.local().data() + peer.index() * sizeof word, sizeof word);
    require(word == 1000 + peer.index(), "the word of every member");
  }
  comm.barrier(patience());
}

template <class F>
void wait_until(F holds, const std::string& what) {
  for (const auto until = patience(); !holds(); std::this_thread::yield())
    require(!until.expired(), what);
}

}  // namespace

TEST_CASE_TEMPLATE("subgroup: disjoint ones at once, between collectives of the parent", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (const std::size_t n : sizes_for<Run>({1, 2, 5, 8})) {
    CAPTURE(n);
    const belongings before;
    const int status = Run::run(n, [n](bootstrap& boot) {
      const bool odd = boot.rank().index() % 2 != 0;
      rank_list list;
      // The odd ranks in reverse order.
      for (std::size_t i = 0; i < n; ++i)
        if ((i % 2 != 0) == odd) list.insert(odd ? list.begin() : list.end(), rank_id{i});
      const auto group = boot.subgroup(list);
      require(group->addresses() == boot.addresses(), "the address space of the parent");
      require(group->ranks_here() == n, "all ranks of the parent here");
      require(group->cores_here() == boot.cores_here(), "the cores of the parent");
      require(group->near_ranks().size() == list.size(), "all members near");
      for (std::size_t round = 0; round < 5; ++round) {
        for (std::size_t more = 0; more <= boot.rank().index() % 2; ++more)
          check_collective(*group, list);
        check_collective(boot, [&] {
          rank_list all;
          for (std::size_t i = 0; i < n; ++i) all.emplace_back(i);
          return all;
        }());
      }
    });
    CHECK(status == 0);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("subgroup: of one, of all, nested, overlapping", Run, PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const belongings before;
  const int status = Run::run(5, [](bootstrap& boot) {
    const auto alone = boot.subgroup({boot.rank()});
    check_collective(*alone, {boot.rank()});

    const auto reversed = ranks_of({4, 3, 2, 1, 0});
    const auto all = boot.subgroup(reversed);
    check_collective(*all, reversed);

    // Of the reversed: 0, 1, 2 are the ranks 4, 3, 2 of the world.
    const auto inner_list = own_list(*all, ranks_of({2, 0, 1}));
    const auto inner = all->subgroup(inner_list);
    check_collective(*inner, inner_list);
    if (inner->size() == 3)
      require(all->parent_rank(inner->parent_rank(rank_id{0})) == rank_id{2}, "rank 2 first");

    const auto left_list = own_list(boot, ranks_of({0, 1, 2}));
    const auto right_list = own_list(boot, ranks_of({3, 2, 1}));
    const auto left = boot.subgroup(left_list);
    const auto right = boot.subgroup(right_list);
    for (int round = 0; round < 5; ++round) {
      check_collective(*left, left_list, "left");
      check_collective(*right, right_list, "right");
      check_collective(*inner, inner_list);
      check_collective(*all, reversed);
    }
  });
  CHECK(status == 0);
  CHECK(belongings{} == before);
}

TEST_CASE_TEMPLATE("subgroup: ranks in as many subgroups as each has members", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  for (const std::size_t n : sizes_for<Run>({4, 64})) {
    CAPTURE(n);
    const std::size_t groups = n == 64 ? 8 : 2;
    const belongings before;
    const int status = Run::run(n, [n, groups](bootstrap& boot) {
      rank_list list;
      for (std::size_t i = boot.rank().index() % groups; i < n; i += groups) list.emplace_back(i);
      const auto group = boot.subgroup(list, patience());
      for (int round = 0; round < 3; ++round) check_collective(*group, list);
      (void)boot.allgather({}, patience(), "all are done");
    });
    CHECK(status == 0);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("subgroup: unified_bus runs over several at once", Run, PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const belongings before;
  const int status = Run::run(5, [](bootstrap& boot) {
    const auto near = boot.subgroup(boot.near_ranks());
    check_unified_bus(*near);
    const bool low = boot.rank().index() < 2;
    const auto group = boot.subgroup(low ? ranks_of({1, 0}) : ranks_of({2, 4, 3}));
    check_unified_bus(*group);
    check_unified_bus(*near);
  });
  CHECK(status == 0);
  CHECK(belongings{} == before);
}

TEST_CASE_TEMPLATE("subgroup: a bad list is refused on all ranks, and the parent goes on", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  struct bad_call {
    std::vector<std::vector<std::size_t>> lists;  ///< by rank
    errc code;
    std::vector<std::string> parts;
  };
  const std::vector<bad_call> calls{
      {{{0}, {}, {2}, {3}}, errc::invalid_argument, {"no ranks", "rank 1"}},
      {{{0}, {1}, {2, 4}, {3}}, errc::invalid_argument, {"ranks 2, 4", "ranks below 4"}},
      {{{0}, {1, 3, 1}, {2}, {3}}, errc::invalid_argument, {"names rank 1 twice"}},
      {{{0}, {1}, {2}, {1}}, errc::invalid_argument, {"by rank 3", "the caller among them"}},
      {{{0, 1}, {0, 1, 2}, {2}, {3}}, errc::mismatch, {"rank 0", "ranks 0, 1", "ranks 0-2"}},
      {{{0, 1}, {1, 0}, {2}, {3}}, errc::mismatch, {"ranks 0, 1", "ranks 1, 0", "same order"}},
      {{{0}, {1}, {2, 3}, {3}}, errc::mismatch, {"rank 2", "rank 3"}},
      {{{0}, {1}, {3, 2}, {3}}, errc::mismatch, {"rank 2", "rank 3"}},
  };
  const int status = Run::run(4, [&calls](bootstrap& boot) {
    const belongings before;
    for (const bad_call& call : calls) {
      rank_list list;
      for (const std::size_t number : call.lists[boot.rank().index()]) list.emplace_back(number);
      const auto caught = error_of([&] { (void)boot.subgroup(list); });
      require(caught.code() == call.code, std::string{"another code than of: "} + caught.what());
      for (const std::string& part : call.parts)
        require(contains(caught.what(), part), part + " in: " + caught.what());
    }
    if (!Run::are_threads) require(belongings{} == before, "nothing left of it");
    const auto group = boot.subgroup(own_list(boot, ranks_of({0, 1})));
    check_collective(*group, own_list(boot, ranks_of({0, 1})));
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("subgroup: a rank that does not call is named to all, by the deadline", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const auto is_named_within = [](std::chrono::milliseconds span) {
    shared<std::atomic<int>> told;
    return Run::run(3, [&told, span](bootstrap& boot) {
             if (boot.rank() == rank_id{1})
               return wait_until([&] { return told->load() == 2; }, "word from the others");
             const auto caught =
                 error_of([&] { (void)boot.subgroup({boot.rank()}, deadline::after(span)); });
             ++*told;
             require(caught.code() == errc::timed_out, caught.what());
             require(contains(caught.what(), "rank 1 of 3"), caught.what());
           }) == 0;
  };
  CHECK(given_time(100ms, is_named_within));
}

TEST_CASE_TEMPLATE("subgroup: a collective of its own times out by itself", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const auto is_named_within = [](std::chrono::milliseconds span) {
    return Run::run(4, [span](bootstrap& boot) {
             const auto list = own_list(boot, ranks_of({3, 1, 2}));
             const auto group = boot.subgroup(list);
             if (boot.rank().index() == 1 || boot.rank().index() == 3) {
               const auto caught = error_of(
                   [&] { (void)group->allgather({}, deadline::after(span), "roll call"); });
               require(caught.code() == errc::timed_out, caught.what());
               require(contains(caught.what(), "rank 2 of 3"), caught.what());
             }
             (void)boot.allgather({}, patience(), "the parent is as it was");
           }) == 0;
  };
  CHECK(given_time(100ms, is_named_within));
}

TEST_CASE_TEMPLATE("subgroup: a member leaves it and stays in the parent", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const int status = Run::run(4, [](bootstrap& boot) {
    auto group = boot.subgroup(own_list(boot, ranks_of({1, 2, 3})));
    if (boot.rank() == rank_id{2}) {
      group.reset();
    } else if (boot.rank() != rank_id{0}) {
      const auto& members = group->members();
      wait_until([&] { return members->state(rank_id{1}) == rank_state::left; }, "rank 1 left");
      require(members->health(rank_id{1}) == errc::peer_dead, "missed by who waits for it");
      const auto caught = error_of([&] { (void)group->allgather({}, patience(), "alone"); });
      require(caught.code() == errc::peer_dead, caught.what());
      require(contains(caught.what(), "rank 1 left"), caught.what());
    }
    require(boot.members()->state(rank_id{2}) == rank_state::running, "rank 2 in the parent");
    (void)boot.allgather({}, patience(), "all are in the parent");
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("subgroup: an exception that ends a member's part fails the subgroup alone", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const int status = Run::run(3, [](bootstrap& boot) {
    try {
      const auto group = boot.subgroup(own_list(boot, ranks_of({0, 2})));
      if (boot.rank() == rank_id{2}) throw std::runtime_error{"enough"};
      if (boot.rank() == rank_id{0}) {
        const auto caught = error_of([&] { (void)group->allgather({}, patience(), "alone"); });
        require(caught.code() == errc::peer_dead, caught.what());
        require(contains(caught.what(), "rank 1 failed"), caught.what());
      }
    } catch (const std::runtime_error& caught) {
      if (std::string{caught.what()} != "enough") throw;
    }
    (void)boot.allgather({}, patience(), "the parent is as it was");
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("subgroup: a member that ended with another is not named as the cause", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  // Either end of a connection: the member that follows is the first one or another.
  for (const std::size_t follower : {0U, 1U}) {
    CAPTURE(follower);
    const int status = Run::run(3, [follower](bootstrap& boot) {
      const rank_id witness{1 - follower};
      try {
        const auto group = boot.subgroup(ranks_of({0, 1, 2}));
        if (boot.rank() == rank_id{2}) throw std::runtime_error{"enough"};
        if (boot.rank() == witness) {
          const auto& members = *group->members();
          wait_until([&] { return members.state(rank_id{follower}) != rank_state::running; },
                     "the follower to end");
          require(members.describe_missing() == "rank 2 failed", members.describe_missing());
        } else {
          (void)group->allgather({}, patience(), "alone");
        }
      } catch (const std::runtime_error&) {
        if (boot.rank() == witness) throw;
      }
      (void)boot.allgather({}, patience(), "the parent is as it was");
    });
    CHECK(status == 0);
  }
}

TEST_CASE_TEMPLATE("subgroup: ranks outside are not needed, and may leave", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  // Of the parent's rank 0, too, over which all its collectives go.
  for (const std::size_t outside : {0U, 2U}) {
    CAPTURE(outside);
    const int status = Run::run(4, [outside](bootstrap& boot) {
      rank_list list;
      for (std::size_t i = 4; i-- > 0;)
        if (i != outside) list.emplace_back(i);
      const auto group = boot.subgroup(own_list(boot, list));
      if (boot.rank().index() == outside) return;
      wait_until([&] { return boot.members()->state(rank_id{outside}) == rank_state::left; },
                 "the other rank to leave");
      for (int round = 0; round < 10; ++round) check_collective(*group, list);
      require(group->members()->health(std::nullopt) == errc::ok, "no member missed");
      check_unified_bus(*group);
      // Leaves the parent while others may still be at work there.
      check_collective(*group, list);
    });
    CHECK(status == 0);
  }
}

TEST_CASE_TEMPLATE("subgroup: a rank that waits in the parent or a subgroup works for both", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  class counting final : public peerbus::idle_work::task {
   public:
    explicit counting(std::atomic<std::uint64_t>& count) : count_{count} {}
    void advance() noexcept override { ++count_; }

   private:
    std::atomic<std::uint64_t>& count_;
  };
  const time_limit limit;
  const shared<std::array<std::atomic<std::uint64_t>, 2>> counts;
  const int status = Run::run(2, [&](bootstrap& boot) {
    const std::size_t me = boot.rank().index();
    const auto group = boot.subgroup(ranks_of({0, 1}));
    counting mine{(*counts)[me]};
    for (const auto& [added, waiting] :
         {std::pair{group.get(), &boot}, std::pair{&boot, group.get()}}) {
      added->idle()->add(mine);
      if (me == 0) {
        const std::uint64_t enough = (*counts)[1] + 10;
        wait_until([&] { return (*counts)[1] >= enough; }, "work of rank 1");
      }
      (void)waiting->allgather({}, patience(), "together");
      added->idle()->remove(mine);
    }
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("subgroup: it may be used by a thread while its parent is used by another", Run,
                   PEERBUS_ALL_BOOTSTRAPS) {
  const time_limit limit;
  const int status = Run::run(3, [](bootstrap& boot) {
    const auto list = ranks_of({2, 0, 1});
    const auto group = boot.subgroup(list);
    std::string problem;
    std::thread other{[&] {
      try {
        for (int round = 0; round < 50; ++round) check_collective(*group, list);
      } catch (const std::exception& caught) {
        problem = caught.what();
      }
    }};
    for (int round = 0; round < 50; ++round) (void)boot.allgather({}, patience(), "in the parent");
    other.join();
    require(problem.empty(), "no problem in the subgroup: " + problem);
  });
  CHECK(status == 0);
}

TEST_CASE_TEMPLATE("kill -9: the other members and the rest of the parent are told who died", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  // First of its subgroup or not, and rank 0 of the parent or not.
  for (const std::size_t victim : {0U, 2U, 3U}) {
    CAPTURE(victim);
    const belongings before;
    shared<std::atomic<int>> told;
    const auto start = deadline::clock::now();
    int status = -1;
    (void)stderr_of([&] {
      status = Run::run(5, [&told, victim](bootstrap& boot) {
        const auto list = victim == 0 ? ranks_of({0, 2, 3}) : ranks_of({3, 1, 2});
        const auto group = boot.subgroup(own_list(boot, list));
        check_collective(*group, own_list(boot, list));
        if (boot.rank().index() == victim) ::kill(::getpid(), SIGKILL);
        if (group->size() > 1) {
          const auto caught = error_of([&] { (void)group->allgather({}, patience(), "alone"); });
          require(caught.code() == errc::peer_dead, caught.what());
          const auto place = std::find(list.begin(), list.end(), rank_id{victim}) - list.begin();
          const std::string who = concat("rank ", place, " died");
          require(contains(caught.what(), who), who + " in: " + caught.what());
        }
        wait_until([&] { return boot.members()->first_failed().has_value(); }, "a death");
        require(contains(boot.members()->describe_missing(), concat(rank_id{victim}, " died")),
                "who died, in: " + boot.members()->describe_missing());
        ++*told;
        // All stay until all know, as over TCP rank 0 passes the news on.
        for (const auto until = deadline::after(20s); told->load() < 4 && !until.expired();)
          (void)boot.members()->first_failed();
      });
    });
    CHECK(status == 137);
    CHECK(told->load() == 4);
    CHECK(deadline::clock::now() - start < 20s);
    CHECK(belongings{} == before);
  }
}

TEST_CASE_TEMPLATE("kill -9: the death of a rank outside ends the parent, not the subgroup", Run,
                   PEERBUS_ALL_OF_PROCESSES) {
  const time_limit limit;
  for (const std::size_t victim : {0U, 2U}) {
    CAPTURE(victim);
    shared<std::atomic<int>> done;
    int status = -1;
    (void)stderr_of([&] {
      status = Run::run(4, [&done, victim](bootstrap& boot) {
        rank_list list;
        for (std::size_t i = 4; i-- > 0;)
          if (i != victim) list.emplace_back(i);
        const auto group = boot.subgroup(own_list(boot, list));
        if (boot.rank().index() == victim) ::kill(::getpid(), SIGKILL);
        wait_until([&] { return boot.members()->first_failed() == rank_id{victim}; }, "the death");
        const auto caught = error_of([&] { (void)boot.allgather({}, patience(), "in vain"); });
        require(caught.code() == errc::peer_dead, caught.what());
        check_unified_bus(*group);
        for (int round = 0; round < 10; ++round) check_collective(*group, list);
        require(!group->members()->first_failed(), "no member failed");
        ++*done;
        (void)group->allgather({}, patience(), "all have looked");
      });
    });
    CHECK(status == 137);
    CHECK(done->load() == 3);
  }
}

TEST_CASE_TEMPLATE("kill -9: at any moment of making a subgroup, nobody hangs", Run,
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
          while (!until.expired()) (void)boot.subgroup(ranks_of({3, 1, 0, 2}), patience());
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

TEST_CASE("subgroup: members are not awaited for long once rank 0 cannot tell who has ended") {
  using peerbus::membership;
  using peerbus::detail::awaited_members;
  const auto states = std::make_shared<std::array<membership::state_word, 3>>();
  const auto parent = std::make_shared<membership>(rank_id{1}, 3, states->data(), states,
                                                   std::vector<peerbus::unique_fd>{});
  const auto end = [&](std::size_t rank, rank_state how) {
    membership::announce((*states)[rank], how);
  };
  awaited_members patient{parent, ranks_of({2, 1})};
  awaited_members impatient{parent, ranks_of({2, 1}), 0s};
  CHECK_FALSE(patient.has_ended(rank_id{0}));
  CHECK_FALSE(impatient.has_ended(rank_id{0}));
  end(0, rank_state::left);
  CHECK_FALSE(patient.has_ended(rank_id{0}));
  CHECK(impatient.has_ended(rank_id{0}));
  end(2, rank_state::died);
  CHECK(patient.has_ended(rank_id{0}));
  CHECK_FALSE(awaited_members{}.has_ended(rank_id{0}));
}

}  // namespace subgroup_test
