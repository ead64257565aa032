// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/reduce_scatter_v.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/process.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

// A rank is killed as by `kill -9`; the others are told who it was and nothing is left behind. No
// wait here has a deadline short of minutes: only the death ends it. The bound on how long that
// takes is there to tell an end from a hang.

namespace {

using peerbus::errc;
using peerbus::rank_id;
using communicator = peerbus::communicator<peerbus::unified_bus>;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int killed = 128 + SIGKILL;
constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{10}};
constexpr seconds hang{20};

/// Runs `body(communicator&)` on `ranks` processes; the one that is `victim` gets killed in
/// it, and the others must get peer_dead naming it. Afterwards nothing is left.
template <class Body>
void check_death(std::size_t ranks, std::size_t victim, Body body) {
  CAPTURE(ranks);
  CAPTURE(victim);
  const test::belongings before;
  REQUIRE(before.no_children);
  const test::tally told;
  const auto start = steady_clock::now();
  const int worst_status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::unified_bus{boot}, patient};
    test::expect_error(errc::peer_dead, {"rank " + std::to_string(victim) + " died"},
                       [&] { body(comm); });
    told.add();
  });
  CHECK(worst_status == killed);
  CHECK(told.count() == ranks - 1);
  CHECK((steady_clock::now() - start < hang));
  CAPTURE(test::list_open_files());
  CHECK(test::belongings{} == before);

  // The machine is as good as before: the same ranks, all of them, do a round.
  const int next = peerbus::run_local(ranks, [](peerbus::bootstrap& boot) {
    communicator comm{peerbus::unified_bus{boot}, patient};
    comm.barrier();
  });
  CHECK(next == 0);
}

void die(const communicator& comm, std::size_t victim) {
  if (comm.rank() == rank_id{victim}) ::raise(SIGKILL);
}

constexpr peerbus::moe::exchange_config config{
    .experts = 9, .hidden = 32, .top_k = 3, .max_tokens = 8};
constexpr peerbus::moe::exchange_config in_flight_config{
    .experts = 9, .hidden = 32, .top_k = 3, .max_tokens = 8, .in_flight = 2};
using exchange = peerbus::moe::exchange<peerbus::unified_bus, peerbus::codec::int8_per_token>;

test::scenario make_scenario(std::size_t ranks, std::uint64_t seed) {
  test::scenario made{{ranks, config.experts, config.hidden, config.top_k}, {}};
  for (std::size_t r = 0; r < ranks; ++r)
    made.inputs.push_back(
        oracle::make_input(made.shape, r, (r + seed) % 9, oracle::routes::uniform, seed));
  return made;
}

struct group {
  std::size_t ranks;
  std::size_t victim;
};
constexpr group groups[] = {{2, 0}, {2, 1}, {4, 0}, {4, 2}, {8, 7}, {8, 0}};

}  // namespace

TEST_CASE("killed in a barrier") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      for (int i = 0;; ++i) {
        if (i == 17) die(comm, victim);
        comm.barrier();
      }
    });
}

TEST_CASE("killed in a reduction, several operations later") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      peerbus::collective::team on{comm};
      std::vector<float> data(std::size_t{1} << 18U);
      std::size_t added = 0;
      const auto add = [&](float a, float b) noexcept {
        if (++added == 700'000) die(comm, victim);
        return a + b;
      };
      for (;;) peerbus::collective::all_reduce(on, data, add);
    });
}

TEST_CASE("killed between the halves of a reduction") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      peerbus::collective::team on{comm, {.scratch_bytes = std::size_t{1} << 14U}};
      std::vector<float> data(20'000);
      for (int i = 0;; ++i) {
        auto half = peerbus::collective::start_all_reduce(on, data, peerbus::collective::sum{});
        if (i == 5) die(comm, victim);
        half.finish();
      }
    });
}

TEST_CASE("killed between the rounds of a variable form") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      peerbus::collective::team on{comm, {.scratch_bytes = std::size_t{1} << 14U}};
      const std::vector<std::uint64_t> counts(comm.size(), 20'000);
      const std::vector<float> input(20'000 * comm.size());
      std::vector<float> output(20'000);
      std::size_t added = 0;
      const auto add = [&](float a, float b) noexcept {
        if (++added == 30'000) die(comm, victim);
        return a + b;
      };
      for (;;) peerbus::collective::reduce_scatter_v(on, input, {counts}, output, add);
    });
}

TEST_CASE("killed between batches of messages, and in one") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      namespace coll = peerbus::collective;
      coll::channels on{comm, {.scratch_bytes = std::size_t{1} << 14U}};
      const std::vector<float> input(9'000);
      std::vector<std::vector<float>> outputs(comm.size(), input);
      std::vector<coll::transfer> messages;
      for (const rank_id peer : comm.peers()) {
        messages.push_back(coll::send_to(peer, input));
        messages.push_back(coll::recv_from(peer, outputs[peer.index()]));
      }
      for (int i = 0; i < 5; ++i) coll::batch_send_recv(on, messages);
      // The others send in slices that the victim does not take.
      die(comm, victim);
      for (;;) coll::batch_send_recv(on, messages);
    });
}

TEST_CASE("killed before dispatch") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      exchange moe{comm, config};
      const auto from = make_scenario(comm.size(), 1);
      die(comm, victim);
      static_cast<void>(test::dispatch(moe, from, comm.rank()));
    });
}

TEST_CASE("killed while the others measure whom they wait for") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      exchange moe{comm, config};
      const auto from = make_scenario(comm.size(), 1);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      std::vector<std::int64_t> waited(comm.size());
      die(comm, victim);
      static_cast<void>(
          moe.dispatch(mine.tokens, {mine.experts, mine.weights}, {.waited = waited}));
    });
}

TEST_CASE("killed while the others wait again and again, each time for a moment") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      auto window = comm.make_window(0, 1);
      comm.barrier();
      die(comm, victim);
      errc code = errc::timed_out;
      while (code == errc::timed_out)
        code =
            window.wait(peerbus::signal_id{0}, 1,
                        peerbus::deadline::after(std::chrono::microseconds{10}), rank_id{victim});
      test::expect_code(code, errc::peer_dead, "the last of many short waits");
      window.await(peerbus::signal_id{0}, 1, peerbus::deadline::never());
    });
}

TEST_CASE("killed between operations, after many") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      exchange moe{comm, config};
      for (std::uint64_t i = 0;; ++i) {
        if (i == 30) die(comm, victim);
        test::check_round(moe, make_scenario(comm.size(), i), comm.rank());
      }
    });
}

TEST_CASE("killed while its experts run") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      exchange moe{comm, config};
      const auto from = make_scenario(comm.size(), 3);
      const auto got = test::dispatch(moe, from, comm.rank());
      die(comm, victim);
      test::run_experts(got);
      std::vector<peerbus::bf16> out(from.inputs[comm.rank().index()].tokens.size());
      moe.combine(got, out);
      // Ranks that needed nothing of it learn of it next time.
      comm.barrier();
    });
}

TEST_CASE("killed between the halves of a dispatch") {
  for (const auto& [ranks, victim] : groups)
    for (const bool gives_counts : {false, true})
      check_death(ranks, victim, [victim = victim, gives_counts](communicator& comm) {
        exchange moe{comm, in_flight_config};
        const auto from = make_scenario(comm.size(), 3);
        const oracle::input& mine = from.inputs[comm.rank().index()];
        const auto send = [&] {
          return moe.dispatch_send(mine.tokens, {mine.experts, mine.weights});
        };
        const auto first = send();
        if (!gives_counts) die(comm, victim);
        const auto second = send();
        // Its counts of both are out, perhaps its rows of the first; there is no third.
        die(comm, victim);
        static_cast<void>(moe.dispatch_recv(first));
        static_cast<void>(moe.dispatch_recv(second));
        static_cast<void>(moe.dispatch_recv(send()));
      });
}

TEST_CASE("killed between the halves of a combine") {
  for (const auto& [ranks, victim] : groups)
    for (const bool announces : {false, true})
      check_death(ranks, victim, [victim = victim, announces](communicator& comm) {
        exchange moe{comm, in_flight_config};
        const auto from = make_scenario(comm.size(), 3);
        const oracle::input& mine = from.inputs[comm.rank().index()];
        const auto send = [&] {
          return moe.dispatch_send(mine.tokens, {mine.experts, mine.weights});
        };
        const auto got = moe.dispatch_recv(send());
        test::run_experts(got);
        const auto second = send();
        if (!announces) die(comm, victim);
        moe.combine_send(got);
        die(comm, victim);
        std::vector<peerbus::bf16> out(mine.tokens.size());
        moe.combine_recv(got, out);
        // The announced outputs of the dead still count; its rows of the second may be missing.
        static_cast<void>(moe.dispatch_recv(second));
        comm.barrier();
      });
}

TEST_CASE("killed while its lanes carry a stream of operations") {
  for (const auto& [ranks, victim] : groups)
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      exchange moe{comm, in_flight_config};
      const auto from = make_scenario(comm.size(), 3);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      const auto carry = [&](peerbus::moe::lane as) {
        for (int i = 0;; ++i) {
          if (i == 20 && as.index == 1) die(comm, victim);
          static_cast<void>(moe.dispatch(mine.tokens, {mine.experts, mine.weights}, {.as = as}));
        }
      };
      std::string other;
      std::thread second{[&] {
        try {
          carry({1, 2});
        } catch (const std::exception& thrown) {
          other = thrown.what();
        }
      }};
      std::exception_ptr own;
      try {
        carry({0, 2});
      } catch (...) {
        own = std::current_exception();
      }
      second.join();
      test::expect(other.find("rank " + std::to_string(victim) + " died") != std::string::npos,
                   "lane 1 to be told as well, not '", other, "'");
      std::rethrow_exception(own);
    });
}

TEST_CASE("killed at a moment that nobody chose, in a stream of operations") {
  // The signal comes from outside, whatever the rank is doing.
  for (const std::chrono::microseconds after :
       {std::chrono::microseconds{200}, std::chrono::microseconds{900},
        std::chrono::microseconds{3'100}, std::chrono::microseconds{7'300}})
    check_death(4, 1, [after](communicator& comm) {
      exchange moe{comm, config};
      const auto when = steady_clock::now() + after;
      pid_t killer = -1;
      if (comm.rank() == rank_id{1}) {
        const pid_t target = ::getpid();
        killer = ::fork();
        if (killer == 0) {
          while (steady_clock::now() < when) {
          }
          ::kill(target, SIGKILL);
          ::_exit(0);
        }
      }
      for (std::uint64_t i = 0;; ++i)
        test::check_round(moe, make_scenario(comm.size(), i % 8), comm.rank());
    });
}

TEST_CASE("killed while a window is made") {
  for (const auto& [ranks, victim] : groups) {
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      auto kept = comm.make_window(1U << 20, 4);
      die(comm, victim);
      auto window = comm.make_window(1U << 20, 4);
      // Rank 0's death may come to light only here.
      comm.barrier();
    });
    check_death(ranks, victim, [victim = victim](communicator& comm) {
      for (int i = 0;; ++i) {
        if (i == 5) die(comm, victim);
        exchange moe{comm, config};
      }
    });
  }
}

TEST_CASE("a wait for the dead, and for somebody who waits for the dead") {
  check_death(3, 2, [](communicator& comm) {
    auto window = comm.make_window(0, 2);
    comm.barrier();
    die(comm, 2);
    const rank_id awaited{comm.rank() == rank_id{0} ? 1U : 2U};
    const errc code = window.wait(peerbus::signal_id{0}, 1,
                                  peerbus::deadline::after(std::chrono::minutes{5}), awaited);
    test::expect_code(code, errc::peer_dead, "wait");
    window.await(peerbus::signal_id{1}, 7, peerbus::deadline::never());
  });
}

TEST_CASE("several die at once") {
  const test::belongings before;
  REQUIRE(before.no_children);
  const test::tally told;
  const int worst_status = peerbus::run_local(6, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::unified_bus{boot}, patient};
    exchange moe{comm, config};
    if (comm.rank().index() % 2 == 1) ::raise(SIGKILL);
    test::expect_error(errc::peer_dead, {" died"}, [&] {
      for (std::uint64_t i = 0;; ++i)
        test::check_round(moe, make_scenario(comm.size(), i), comm.rank());
    });
    told.add();
  });
  CHECK(worst_status == killed);
  CHECK(told.count() == 3);
  CAPTURE(test::list_open_files());
  CHECK(test::belongings{} == before);
}

TEST_CASE("a rank that throws takes the others along, and is told from one that was killed") {
  const test::tally told;
  const int worst_status = peerbus::run_local(4, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::unified_bus{boot}, patient};
    exchange moe{comm, config};
    if (comm.rank() == rank_id{2}) test::fail("as it should");
    test::expect_error(errc::peer_dead, {"rank 2 failed"}, [&] {
      test::check_round(moe, make_scenario(comm.size(), 0), comm.rank());
      comm.barrier();
    });
    told.add();
  });
  CHECK(worst_status == 1);
  CHECK(told.count() == 3);
}

TEST_CASE("a rank that leaves in good order is missed by those who wait for it") {
  const int worst_status = peerbus::run_local(3, [](peerbus::bootstrap& boot) {
    communicator comm{peerbus::unified_bus{boot}, patient};
    comm.barrier();
    if (comm.rank() == rank_id{1}) return;
    test::expect_error(errc::peer_dead, {"rank 1 left"}, [&] {
      for (;;) comm.barrier();
    });
  });
  CHECK(worst_status == 0);
}
