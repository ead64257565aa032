// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/search.hpp"
#include "support/survivors.hpp"

// Groups that lose ranks and take in others under load, by a plan: a list of phases, each the ranks
// that serve in it. A negative rank (-0.0 is rank 0) is killed in its phase as by `kill -9`, at any
// moment. A rank that the next phase does not name leaves by itself, and one that it names anew
// joins. A phase ends when each of its ranks that live has served some batches with exactly the
// others. Every row of every batch is checked.

namespace plan_test {
namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
namespace moe = peerbus::moe;

constexpr std::size_t most_ranks = 16;
constexpr std::uint32_t batches_of_phase = 6;

struct phase {
  std::vector<std::size_t> serve;  ///< those that live at its end
  std::vector<std::size_t> killed;

  [[nodiscard]] bool has(const std::vector<std::size_t>& set, std::size_t rank) const {
    return std::find(set.begin(), set.end(), rank) != set.end();
  }
};
using plan = std::vector<phase>;

/// Throws what says which phase is wrong: a rank beyond `most_ranks`, named twice, or nobody left.
plan read_plan(const nlohmann::json& phases) {
  plan made;
  for (const auto& numbers : phases) {
    phase& next = made.emplace_back();
    std::vector<std::size_t> named;
    test::expect(numbers.is_array(), "phase ", made.size(), ": expected a list of ranks");
    for (const double rank : numbers) {
      const auto number = static_cast<std::size_t>(std::fabs(rank));
      test::expect(number < most_ranks, "phase ", made.size(), ": rank ", rank,
                   ", expected less than ", most_ranks);
      test::expect(!next.has(named, number), "phase ", made.size(), ": rank ", number, " twice");
      named.push_back(number);
      (std::signbit(rank) ? next.killed : next.serve).push_back(number);
    }
    test::expect(!next.serve.empty(), "phase ", made.size(), ": expected a rank that lives");
    std::sort(next.serve.begin(), next.serve.end());
  }
  return made;
}

/// What the processes share with the one that started them.
struct board {
  std::atomic<std::size_t> phase{0};
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> batches{0};  ///< of all ranks
  struct progress {
    std::atomic<std::size_t> phase{0};
    std::atomic<std::uint32_t> batches{0};
  };
  std::array<progress, most_ranks> ranks;
};

/// What a rank serves with, until the group has others.
template <class Codec, class Layout>
struct serving {
  std::unique_ptr<peerbus::bootstrap> boot;
  peerbus::communicator<peerbus::any_transport> comm;
  peerbus::moe::exchange<peerbus::any_transport, Codec, Layout> moe;
  peerbus::admission door;

  serving(std::unique_ptr<peerbus::bootstrap> met, const peerbus::launch_settings& place)
      : boot{std::move(met)},
        comm{peerbus::any_transport{peerbus::unified_bus{*boot}},
             {.timeout = std::chrono::minutes{1}}},
        moe{comm, survivors::config, Codec{}, Layout{}},
        door{comm, place} {}
};

template <class Codec, class Layout>
void live(const plan& phases, board& shared, const peerbus::launch_settings& place) {
  const auto make = [&](std::unique_ptr<peerbus::bootstrap> boot) {
    return std::make_unique<serving<Codec, Layout>>(std::move(boot), place);
  };
  const auto& first = phases.front();
  const std::size_t begun = shared.phase;
  std::unique_ptr<serving<Codec, Layout>> now;
  if (begun == 0) {
    std::vector<rank_id> all;
    for (const auto* set : {&first.serve, &first.killed})
      for (const std::size_t rank : *set) all.emplace_back(rank);
    std::sort(all.begin(), all.end());
    peerbus::launch_settings start = place;
    start.size = all.size();
    start.rank = static_cast<std::size_t>(std::find(all.begin(), all.end(), rank_id{place.rank}) -
                                          all.begin());
    now =
        make(peerbus::with_vacancies(std::make_unique<peerbus::environment_bootstrap>(
                                         start, peerbus::deadline::after(std::chrono::seconds{60})),
                                     all, place.size));
  } else {
    now = peerbus::join_running(place, make, peerbus::deadline::after(std::chrono::seconds{60}));
  }
  auto& progress = shared.ranks[place.rank];
  bool has_lost = false;
  while (!shared.is_over) {
    const std::size_t current = shared.phase;
    const phase& wanted = phases[current];
    if (current > begun && !wanted.has(wanted.serve, place.rank) &&
        !wanted.has(wanted.killed, place.rank))
      return;
    try {
      if (has_lost) {
        now->comm.continue_without_the_dead();
        static_cast<void>(now->moe.resume());
        has_lost = false;
      }
      const std::uint64_t number = now->moe.next_dispatch();
      if (number % 2 == 1)
        if (auto next = now->door.admit(make)) {
          now = std::move(*next);
          continue;
        }
      test::check_round(now->moe,
                        survivors::scenario_of(now->comm.view(), now->moe.placement(), number),
                        rank_id{place.rank}, Layout{});
      now->comm.barrier();
      ++shared.batches;
      const auto members = now->comm.view().members();
      if (std::equal(members.begin(), members.end(), wanted.serve.begin(), wanted.serve.end(),
                     [](rank_id member, std::size_t rank) { return member.index() == rank; })) {
        if (progress.phase.exchange(current) != current) progress.batches = 0;
        ++progress.batches;
      }
    } catch (const peerbus::error& problem) {
      if (problem.code() != errc::peer_dead && problem.code() != errc::poisoned) throw;
      has_lost = true;
    }
  }
}

/// Makes up `count` phases of up to six ranks. In each but the first, whose ranks all have to meet,
/// every rank that is there is killed or leaves with a chance of a sixth, and every other one
/// comes, or is killed on its way, with one of five in twelve.
plan draw_plan(std::size_t count, oracle::random& from) {
  plan made;
  while (made.size() < count) {
    phase next;
    for (std::size_t rank = 0; rank < 6; ++rank) {
      const bool is_there = !made.empty() && made.back().has(made.back().serve, rank);
      const std::size_t drawn = from.below(12);
      if (!made.empty() && (drawn == 0 || (!is_there && drawn == 1)))
        next.killed.push_back(rank);
      else if (is_there ? drawn > 1 : drawn < 5)
        next.serve.push_back(rank);
    }
    // Somebody is there all the time, to take in the others.
    if (!next.serve.empty() &&
        (made.empty() || std::any_of(next.serve.begin(), next.serve.end(), [&](std::size_t rank) {
           return made.back().has(made.back().serve, rank);
         })))
      made.push_back(std::move(next));
  }
  return made;
}

/// The processes of a plan, each started when a phase names it anew.
class job {
 public:
  /// `kind` chooses codec and layout; `seed` the moments of the kills.
  job(const plan& phases, std::uint64_t kind, std::uint64_t seed)
      : phases_{&phases}, kind_{kind % 3}, moments_{seed} {
    void* const page =
        ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    shared_ = ::new (page) board;
    for (const phase& each : phases)
      for (const auto* set : {&each.serve, &each.killed})
        for (const std::size_t rank : *set) place_.size = std::max(place_.size, rank + 1);
    place_.job = "plan_test/" + std::to_string(::getpid()) + "/" + std::to_string(seed);
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    for (const pid_t process : processes_)
      if (process != 0) {
        ::kill(process, SIGKILL);
        ::waitpid(process, nullptr, 0);
      }
    ::munmap(shared_, sizeof(board));
  }

  void run() {
    for (std::size_t p = 0; p < phases_->size(); ++p) {
      CAPTURE(p);
      const phase& now = (*phases_)[p];
      shared_->phase = p;
      for (const auto* set : {&now.serve, &now.killed})
        for (const std::size_t rank : *set)
          if (processes_[rank] == 0) start(rank);
      if (!now.killed.empty())
        std::this_thread::sleep_for(std::chrono::microseconds{moments_.below(30'000)});
      for (const std::size_t rank : now.killed) {
        ::kill(processes_[rank], SIGKILL);
        expect_end(rank, SIGKILL);
      }
      if (p > 0)
        for (const auto* set : {&(*phases_)[p - 1].serve})
          for (const std::size_t rank : *set)
            if (!now.has(now.serve, rank) && !now.has(now.killed, rank)) expect_end(rank, 0);
      await(p);
    }
    shared_->is_over = true;
    for (const std::size_t rank : phases_->back().serve) expect_end(rank, 0);
  }
  /// Returns how many batches all ranks together have served.
  [[nodiscard]] std::uint64_t batches() const { return shared_->batches; }

 private:
  void start(std::size_t rank) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child != 0) {
      processes_[rank] = child;
      return;
    }
    int status = 1;
    try {
      peerbus::launch_settings mine = place_;
      mine.rank = mine.local_rank = rank;
      switch (kind_) {
        case 0: live<int8_per_token, moe::compact>(*phases_, *shared_, mine); break;
        case 1: live<peerbus::codec::bf16, moe::expert_slots>(*phases_, *shared_, mine); break;
        default: live<int8_per_token, moe::padded>(*phases_, *shared_, mine);
      }
      status = 0;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "rank %zu, phase %zu: %s\n", rank, shared_->phase.load(),
                   problem.what());
    }
    ::_exit(status);
  }

  void expect_end(std::size_t rank, int by_signal) {
    int status = 0;
    REQUIRE(::waitpid(std::exchange(processes_[rank], 0), &status, 0) > 0);
    CAPTURE(rank);
    CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)) == by_signal);
  }

  /// Waits until the ranks of phase `p` have served enough.
  void await(std::size_t p) {
    const auto until = peerbus::deadline::after(std::chrono::seconds{60});
    for (const std::size_t rank : (*phases_)[p].serve) {
      CAPTURE(rank);
      const auto& progress = shared_->ranks[rank];
      while (progress.phase != p || progress.batches < batches_of_phase) {
        int status = 0;
        if (::waitpid(processes_[rank], &status, WNOHANG) != 0) {
          processes_[rank] = 0;
          FAIL("it ended with status ", status);
        }
        if (until.expired()) FAIL("it served ", progress.batches.load(), " batches");
        std::this_thread::sleep_for(std::chrono::microseconds{200});
      }
    }
  }

  const plan* phases_;
  std::uint64_t kind_;
  oracle::random moments_;
  peerbus::launch_settings place_;
  board* shared_ = nullptr;
  std::array<pid_t, most_ranks> processes_{};
};

}  // namespace

TEST_CASE("plans") {
  const auto folder = std::filesystem::path{__FILE__}.parent_path() / "plans";
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    std::ifstream text{entry.path()};
    const auto plans = nlohmann::json::parse(text);
    for (const auto& each : plans.items()) {
      CAPTURE(each.key());
      const plan read = read_plan(each.value());
      const std::uint64_t seeds = std::max<std::uint64_t>(1, test::soak_repetitions(2));
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        CAPTURE(seed);
        job{read, seed, seed}.run();
      }
      ++found;
    }
  }
  CHECK(found >= 8);
}

TEST_CASE("plans that a seed makes up") {
  const std::uint64_t first = test::number_from_environment("PEERBUS_SEED", 1);
  std::uint64_t batches = 0, kills = 0, arrivals = 0;
  const std::uint64_t last = first + std::max<std::uint64_t>(1, test::soak_repetitions(4)) - 1;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    CAPTURE(seed);
    oracle::random from{seed};
    const plan drawn = draw_plan(12, from);
    job served{drawn, seed, seed};
    served.run();
    batches += served.batches();
    for (std::size_t p = 0; p < drawn.size(); ++p) {
      kills += drawn[p].killed.size();
      for (const std::size_t rank : drawn[p].serve)
        arrivals += p != 0 && !drawn[p - 1].has(drawn[p - 1].serve, rank) ? 1U : 0U;
    }
  }
  MESSAGE(batches, " batches, ", kills, " kills, ", arrivals, " ranks that came");
}

TEST_CASE("a plan that names nobody, or unknown ranks") {
  for (const char* const text :
       {"[[0, 1], []]", "[[0, 1], [-1]]", "[[0, 99]]", "[[0, 0]]", "[[0], 1]"}) {
    CAPTURE(text);
    CHECK_THROWS(read_plan(nlohmann::json::parse(text)));
  }
}

}  // namespace plan_test
