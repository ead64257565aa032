// SPDX-License-Identifier: MIT
// ctest: serial
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/local_admission_place.hpp>
#include <peerbus/bootstrap/detail/newcomers.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/process.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/silent_children.hpp"

// Who is taken in, who is refused and what happens to the group then. Groups under load are in
// plan_test.cpp.

namespace admission_test {
namespace {

using peerbus::bootstrap;
using peerbus::errc;
using peerbus::rank_id;
using test::expect;
using test::expect_equal;

constexpr std::size_t capacity = 4;
constexpr peerbus::moe::exchange_config tiny{
    .experts = 2, .hidden = 32, .top_k = 1, .max_tokens = 1};

/// Dispatches a token, and combines it.
template <class Exchange>
void do_batch(Exchange& exchange, std::uint64_t number) {
  const std::vector<peerbus::bf16> token(tiny.hidden, peerbus::bf16{1.0F});
  const std::vector<std::int32_t> ids{static_cast<std::int32_t>(number % 2)};
  const std::vector<float> weights{1.0F};
  std::vector<peerbus::bf16> out(tiny.hidden);
  const auto received = exchange.dispatch(token, {ids, weights});
  exchange.combine(received, out);
}

/// What members and newcomers make.
struct member {
  std::unique_ptr<bootstrap> boot;
  peerbus::communicator<peerbus::unified_bus> comm;

  explicit member(std::unique_ptr<bootstrap> met, std::size_t window_bytes = 64,
                  std::chrono::milliseconds timeout = std::chrono::seconds{30})
      : boot{std::move(met)}, comm{peerbus::unified_bus{*boot}, {.timeout = timeout}} {
    static_cast<void>(comm.make_window(window_bytes, 1));
  }
};

/// One place for all processes of this program.
const std::string job = "admission_test/" + std::to_string(::getpid());

peerbus::launch_settings place_of(std::size_t rank, std::size_t size = capacity) {
  peerbus::launch_settings place;
  place.rank = rank;
  place.size = size;
  place.job = job;
  return place;
}

auto made_with(std::size_t window_bytes) {
  return [window_bytes](std::unique_ptr<bootstrap> boot) {
    return std::make_unique<member>(std::move(boot), window_bytes);
  };
}

/// Forks a process that does `body`, without what the rank that calls has open.
template <class Body>
pid_t in_process(Body body) {
  const pid_t child = ::fork();
  expect(child >= 0, "a process");
  if (child != 0) return child;
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  int status = 1;
  try {
    body();
    status = 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "a process that joins: %s\n", problem.what());
  }
  ::_exit(status);
}

void expect_well(pid_t child) {
  int status = -1;
  expect(::waitpid(child, &status, 0) == child && status == 0, "a process that ends well");
}

/// Calls `call` and expects an error whose text contains `text`.
template <class Call>
void expect_refused(Call call, errc code, std::string_view text) {
  try {
    call();
  } catch (const peerbus::error& problem) {
    expect(problem.code() == code && problem.text().find(text) != std::string_view::npos, "is '",
           problem.what(), "', expected '", text, "'");
    return;
  }
  expect(false, "an error with '", text, "'");
}

/// The first rank starts a process that raises `signal` while it makes what it needs as rank 1.
/// Returns: the process, or 0 on other ranks.
pid_t start_newcomer(const member& now, int signal) {
  if (now.comm.rank().index() != 0) return 0;
  return in_process([signal] {
    static_cast<void>(peerbus::join_running(place_of(1), [signal](std::unique_ptr<bootstrap> boot) {
      ::raise(signal);
      return std::make_unique<member>(std::move(boot));
    }));
  });
}

/// Runs `body(group, admission)` on ranks 0 and 2 of a group of four. The first forks what joins.
template <class Body>
void run_two(Body body) {
  const int status = peerbus::run_local(2, [&](bootstrap& boot) {
    member now{
        peerbus::with_vacancies(peerbus::split(boot, 0), {rank_id{0}, rank_id{2}}, capacity)};
    expect_equal(now.comm.view().members().size(), std::size_t{2}, "members");
    peerbus::admission door{now.comm, place_of(0)};
    expect(!door.admit(made_with(64)), "nobody waits");
    expect_equal(door.refusal(), "", "refusal");
    body(now, door);
    now.comm.barrier();
  });
  CHECK(status == 0);
}

/// Calls `admit` until somebody is taken in or refused.
std::unique_ptr<member> admit_soon(peerbus::admission& door, std::size_t window_bytes = 64) {
  const auto until = peerbus::deadline::after(std::chrono::seconds{30});
  for (;;) {
    if (auto next = door.admit(made_with(window_bytes))) return std::move(*next);
    if (!door.refusal().empty()) return nullptr;
    expect(!until.expired(), "somebody who waits");
  }
}

/// What a rank serves with: two places for experts at each of four ranks. Experts 0 and 1 are at
/// rank 0, 2 and 0 at rank 2; the places of the other ranks are vacant.
struct server {
  explicit server(std::unique_ptr<bootstrap> met) : own{std::move(met)} {}

  [[nodiscard]] static peerbus::moe::exchange_config config() {
    using peerbus::moe::vacant;
    static constexpr std::array<std::uint32_t, 2 * capacity> table{0, 1, vacant, vacant,
                                                                   2, 0, vacant, vacant};
    peerbus::moe::exchange_config made{.experts = 3, .hidden = 32, .top_k = 1, .max_tokens = 1};
    made.physical_to_logical = table;
    return made;
  }

  /// Dispatches a token to an expert, whose output is the first byte of its weights.
  void do_batch(std::uint64_t number) {
    const std::vector<peerbus::bf16> token(32, peerbus::bf16{1.0F});
    const std::vector<std::int32_t> ids{static_cast<std::int32_t>(number % 3)};
    const std::vector<float> ones{1.0F};
    const auto received = exchange.dispatch(token, {ids, ones});
    std::size_t place = 0;
    for (const auto& rows : received.experts()) {
      const auto value = std::to_integer<std::uint8_t>(weights.tensor(place++, 0)[0]);
      for (std::size_t row = 0; row < rows.count(); ++row)
        std::ranges::fill(rows.output(row), peerbus::bf16{static_cast<float>(value)});
    }
    std::vector<peerbus::bf16> out(token.size());
    exchange.combine(received, out);
    expect_equal(static_cast<float>(out.back()), static_cast<float>(number % 3 + 1), "a sum");
  }
  /// Calls `visit(bytes, expert)` for each tensor here.
  template <class Visit>
  void each_tensor(Visit visit) {
    const rank_id rank = own.comm.rank();
    for (std::size_t place = 0; place < 2; ++place)
      if (const auto expert = weights.experts().held_by(rank)[place];
          expert != peerbus::moe::vacant)
        for (const std::size_t i : {0U, 1U}) visit(weights.tensor(place, i), expert);
  }
  /// Gives the busiest expert a second place, while batches go on.
  void move_busiest() {
    const auto plan =
        plan_incremental(std::vector<double>{1, 1, 100}, weights.experts(), {.most_moves = 1});
    expect_equal(weights.begin(plan), std::size_t{1}, "rounds");
    for (std::uint64_t number = 0; weights.is_moving(); ++number) {
      static_cast<void>(weights.advance(300));
      do_batch(number);
      weights.commit({}, exchange);
    }
    const auto held = weights.experts().held_by(rank_id{1});
    expect_equal(std::ranges::count(held, 2U), 1, "places of the busiest expert at the newcomer");
    each_tensor([](std::span<std::byte> bytes, std::uint32_t expert) {
      expect_equal(std::ranges::count(bytes, std::byte(expert + 1)),
                   static_cast<std::ptrdiff_t>(bytes.size()), "bytes of an expert");
    });
    for (std::uint64_t number = 0; number < 6; ++number) do_batch(number);
    own.comm.barrier();
  }

  member own;
  peerbus::moe::exchange<peerbus::unified_bus, peerbus::codec::bf16> exchange{own.comm, config()};
  peerbus::moe::expert_weights weights{own.comm, exchange.placement(), {.bytes = {700, 9}}};
};

}  // namespace

TEST_CASE("a newcomer gets experts while all serve") {
  const auto made = [](std::unique_ptr<bootstrap> boot) {
    return std::make_unique<server>(std::move(boot));
  };
  const int status = peerbus::run_local(2, [&](bootstrap& boot) {
    auto now =
        made(peerbus::with_vacancies(peerbus::split(boot, 0), {rank_id{0}, rank_id{2}}, capacity));
    now->each_tensor([](std::span<std::byte> bytes, std::uint32_t expert) {
      std::ranges::fill(bytes, std::byte(expert + 1));
    });
    now->own.comm.barrier();
    pid_t child = 0;
    if (now->own.comm.rank().index() == 0)
      child = in_process([&] { peerbus::join_running(place_of(1), made)->move_busiest(); });
    peerbus::admission door{now->own.comm, place_of(0)};
    std::unique_ptr<server> larger;
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    for (std::uint64_t number = 0; !larger; ++number) {
      now->do_batch(number);
      if (auto next = door.admit(made)) larger = std::move(*next);
      expect_equal(door.refusal(), "", "refusal");
      expect(!until.expired(), "somebody who comes");
    }
    // Nothing has moved since: the members bring their weights along.
    for (const std::size_t place : {0U, 1U})
      for (const std::size_t i : {0U, 1U})
        std::ranges::copy(now->weights.tensor(place, i), larger->weights.tensor(place, i).begin());
    larger->move_busiest();
    if (child != 0) expect_well(child);
    now->own.comm.barrier();
  });
  CHECK(status == 0);
}

TEST_CASE("a full group is as one that started with all ranks") {
  const auto fill = [](std::unique_ptr<member> mine, const peerbus::launch_settings& place) {
    while (mine->comm.view().members().size() < capacity) {
      peerbus::admission door{mine->comm, place};
      mine = admit_soon(door);
      expect(mine != nullptr, "no refusal");
    }
    expect_equal(mine->comm.view().number(), std::uint64_t{0}, "view");
    mine->comm.barrier();
    peerbus::collective::team team{mine->comm};
    float sum = 1;
    peerbus::collective::all_reduce(team, std::span{&sum, 1}, peerbus::collective::sum{});
    expect_equal(sum, 4.0F, "sum");
    if (test::is_silent_child(*mine->boot)) {
      mine.reset();
      ::_exit(0);
    }
    mine->comm.barrier();
  };
  run_two([&](member& now, peerbus::admission& door) {
    std::vector<pid_t> children;
    for (const std::size_t rank : {1U, 3U})
      if (now.comm.rank().index() == 0)
        children.push_back(in_process([&, place = place_of(rank)] {
          fill(peerbus::join_running(place, made_with(64)), place);
        }));
    fill(admit_soon(door), place_of(0));
    for (const pid_t child : children) expect_well(child);
  });
}

TEST_CASE("who cannot be taken in is told why, and the group goes on") {
  run_two([](member& now, peerbus::admission& door) {
    const auto soon = [] { return peerbus::deadline::after(std::chrono::seconds{20}); };
    const auto try_one = [&](const peerbus::launch_settings& place, std::string_view text) {
      // Who is refused at the place is none who waits.
      pid_t child = 0;
      if (now.comm.rank().index() == 0)
        child = in_process([&] {
          expect_refused(
              [&] { static_cast<void>(peerbus::join_running(place, made_with(64), soon())); },
              errc::mismatch, text);
        });
      int status = 0;
      for (bool is_over = false; !is_over;) {
        expect(!door.admit(made_with(64)), "nobody is taken in");
        is_over = child == 0 || ::waitpid(child, &status, WNOHANG) == child;
        // Both ranks stop together.
        const auto over = now.boot->allgather({{std::byte{is_over}}, {}}, soon(), "over");
        is_over = over[0].bytes[0] == std::byte{1};
      }
      expect_equal(status, 0, "status");
    };
    try_one(place_of(2), "runs in the group: expected a rank that is not there");
    try_one(place_of(1, 7), "world size of 7, and the group has 4");
  });
}

TEST_CASE("two that claim one rank") {
  run_two([](member& now, peerbus::admission& door) {
    std::vector<pid_t> children;
    if (now.comm.rank().index() == 0) {
      for (int i = 0; i < 2; ++i)
        children.push_back(in_process([] {
          try {
            const auto mine = peerbus::join_running(place_of(3), made_with(64));
            mine->comm.barrier();
          } catch (const peerbus::error& problem) {
            if (problem.text().find("came twice") == std::string_view::npos &&
                problem.text().find("runs in the group") == std::string_view::npos)
              throw;
          }
        }));
    }
    const auto next = admit_soon(door);
    expect(next != nullptr, "one is taken in");
    expect_equal(next->comm.view().members().size(), std::size_t{3}, "members");
    next->comm.barrier();
    if (!children.empty()) {
      // The other one calls at the place of the group that is now.
      peerbus::admission of_next{next->comm, place_of(0)};
      expect(::waitpid(-1, nullptr, 0) > 0, "the one that was taken in ends");
      ::kill(children[0], SIGKILL);
      ::kill(children[1], SIGKILL);
      static_cast<void>(::waitpid(-1, nullptr, 0));
    }
  });
}

TEST_CASE("what a newcomer makes differs") {
  run_two([](member& now, peerbus::admission& door) {
    pid_t child = 0;
    if (now.comm.rank().index() == 0)
      child = in_process([] {
        expect_refused(
            [] { static_cast<void>(peerbus::join_running(place_of(1), made_with(128))); },
            errc::mismatch, "bytes is 64 on rank 0 but 128 on rank 1");
      });
    expect(admit_soon(door) == nullptr, "a refusal");
    expect(door.refusal().find("bytes is 64 on rank 0 but 128 on rank 1") != std::string::npos,
           "is '", door.refusal(), "'");
    if (child != 0) expect_well(child);
  });
}

TEST_CASE("one that dies while it makes what it needs") {
  run_two([](member& now, peerbus::admission& door) {
    const pid_t child = start_newcomer(now, SIGKILL);
    expect(admit_soon(door) == nullptr, "a refusal");
    // The ranks of the new group meet in the order of their slots.
    expect(door.refusal().find("rank 1 died") != std::string::npos, "is '", door.refusal(), "'");
    if (child != 0) expect(::waitpid(child, nullptr, 0) == child, "its end");
  });
}

TEST_CASE("one that is stopped while it makes what it needs") {
  run_two([](member& now, peerbus::admission& door) {
    const pid_t child = start_newcomer(now, SIGSTOP);
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    while (door.refusal().empty()) {
      const auto next = door.admit([](std::unique_ptr<bootstrap> boot) {
        return std::make_unique<member>(std::move(boot), 64, std::chrono::milliseconds{300});
      });
      expect(!next && !until.expired(), "a refusal");
    }
    expect(door.refusal().find("timed out") != std::string::npos, "is '", door.refusal(), "'");
    now.comm.barrier();
    if (child != 0) {
      ::kill(child, SIGKILL);
      expect(::waitpid(child, nullptr, 0) == child, "its end");
    }
  });
}

TEST_CASE("members that give different places") {
  run_two([](member& now, peerbus::admission&) {
    peerbus::launch_settings place = place_of(0);
    if (now.comm.rank().index() != 0) place.port = 29'501;
    peerbus::admission another{now.comm, place};
    expect_refused([&] { static_cast<void>(another.admit(made_with(64))); }, errc::mismatch,
                   "rank 2 gives another place than rank 0");
  });
}

TEST_CASE("a place that another process has") {
  run_two([](member& now, peerbus::admission&) {
    peerbus::launch_settings place = place_of(0);
    place.job += "/taken";
    peerbus::detail::local_admission_place taken{place};
    peerbus::detail::newcomers other{taken.calls(), capacity};
    if (now.comm.rank().index() == 0) other.open();
    peerbus::admission door{now.comm, place};
    expect(!door.admit(made_with(64)), "nobody is taken in");
    expect(door.refusal().find("rank 0: system error: admission: another process listens") !=
               std::string::npos,
           "is '", door.refusal(), "'");
  });
}

TEST_CASE("ranks that come and go leave nothing behind") {
  run_two([&](member& first, peerbus::admission& first_door) {
    std::unique_ptr<member> now;
    test::expect_nothing_left(test::soak_repetitions(1'000), [&](std::uint64_t) {
      pid_t child = 0;
      if (first.comm.rank().index() == 0)
        child =
            in_process([] { peerbus::join_running(place_of(1), made_with(64))->comm.barrier(); });
      if (now) {
        peerbus::admission door{now->comm, place_of(0)};
        now = admit_soon(door);
      } else {
        now = admit_soon(first_door);
      }
      expect(now != nullptr, "no refusal");
      now->comm.barrier();
      if (child != 0) expect_well(child);
      while (now->comm.view().members().size() == 3) now->comm.continue_without_the_dead();
    });
  });
}

TEST_CASE("a thousand groups leave nothing behind") {
  const int status = peerbus::run_local(2, [](bootstrap& boot) {
    test::expect_nothing_left(test::repetitions(990), [&](std::uint64_t turn) {
      peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}};
      peerbus::moe::exchange exchange{comm, tiny, peerbus::codec::bf16{}};
      do_batch(exchange, turn);
      comm.barrier();
    });
  });
  CHECK(status == 0);
}

TEST_CASE("a million small operations leave nothing behind") {
  const int status = peerbus::run_local(2, [](bootstrap& boot) {
    peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}};
    peerbus::moe::exchange exchange{comm, tiny, peerbus::codec::bf16{}};
    peerbus::collective::team team{comm};
    auto window = comm.make_window(64, 1);
    const rank_id other{1 - comm.rank().index()};
    std::vector<float> sum(2);
    const auto turn = [&](std::uint64_t number) {
      do_batch(exchange, number);
      peerbus::collective::all_reduce(team, sum, peerbus::collective::sum{});
      test::expect_ok(window.put_signal(other, 0, sum, peerbus::signal_id{0}, number + 1), "put");
      window.await(peerbus::signal_id{0}, number + 1, peerbus::deadline::never(), other);
      comm.barrier();
    };
    test::expect_nothing_left(test::soak_repetitions(200'000), turn, 1'000);
  });
  CHECK(status == 0);
}

TEST_CASE("numbers that cannot be") {
  const int status = peerbus::run_local(2, [](bootstrap& boot) {
    const auto with = [&](std::vector<rank_id> ranks_of_met) {
      return [&boot, ranks_of_met] {
        static_cast<void>(peerbus::with_vacancies(peerbus::split(boot, 0), ranks_of_met, 4));
      };
    };
    expect_refused(with({rank_id{0}}), errc::invalid_argument, "1 numbers given, expected one for");
    expect_refused(with({rank_id{1}, rank_id{1}}), errc::invalid_argument, "below 4, each once");
    expect_refused(with({rank_id{0}, rank_id{4}}), errc::invalid_argument, "below 4, each once");
    expect_refused(with({rank_id{0}, rank_id{boot.rank().index() + 2}}), errc::mismatch,
                   "the numbers is ranks 0, 2 on rank 0 but ranks 0, 3 on rank 1");
  });
  CHECK(status == 0);
  const int of_threads = peerbus::run_threads(2, [](bootstrap& boot) {
    expect_refused(
        [&] {
          static_cast<void>(
              peerbus::with_vacancies(peerbus::split(boot, 0), {rank_id{0}, rank_id{1}}, 4));
        },
        errc::unsupported, "expected processes of one host");
  });
  CHECK(of_threads == 0);
}

}  // namespace admission_test
