// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/window.hpp>

#include "support/given_time.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

// Whatever is built on transports and codecs asks for no more than the concepts say.
template class peerbus::window<peerbus::transport_archetype>;
template class peerbus::window<peerbus::direct_transport_archetype>;
template class peerbus::communicator<peerbus::transport_archetype>;
template class peerbus::communicator<peerbus::direct_transport_archetype>;
template class peerbus::moe::received<peerbus::codec::archetype>;
template class peerbus::moe::expert_rows<peerbus::codec::archetype>;
template class peerbus::moe::exchange<peerbus::transport_archetype, peerbus::codec::bf16>;
template class peerbus::moe::exchange<peerbus::transport_archetype, peerbus::codec::archetype>;
template class peerbus::moe::exchange<peerbus::direct_transport_archetype,
                                      peerbus::codec::archetype>;
template class peerbus::moe::exchange<peerbus::partly_direct_transport_archetype,
                                      peerbus::codec::archetype>;
template class peerbus::moe::exchange<peerbus::direct_transport_archetype, peerbus::codec::bf16>;

namespace communicator_test {

static_assert(peerbus::transport<test::indirect<peerbus::loopback>>);
static_assert(!peerbus::direct_transport<test::indirect<peerbus::loopback>>);
static_assert(!std::is_copy_constructible_v<peerbus::communicator<peerbus::loopback>>);
static_assert(!std::is_move_constructible_v<peerbus::communicator<peerbus::loopback>>);
static_assert(std::is_nothrow_move_constructible_v<peerbus::window<peerbus::loopback>>);

namespace {

using peerbus::declared;
using peerbus::errc;
using peerbus::rank_id;
using loopback = test::threads_over<peerbus::loopback>;
using staged = test::threads_over<test::indirect<peerbus::loopback>>;
using std::chrono::milliseconds;

}  // namespace

TEST_CASE_TEMPLATE("windows of different shapes are a mismatch on every rank", Group, loopback,
                   staged) {
  for (const std::size_t n : {2U, 5U})
    CHECK(Group::run(n, [](auto& comm) {
            const bool last = comm.rank().index() == comm.size() - 1;
            const std::string who = "rank " + std::to_string(comm.size() - 1);
            test::expect_error(errc::mismatch,
                               {"make_window", "bytes is 64 on rank 0 but 65 on", who},
                               [&] { (void)comm.make_window(last ? 65 : 64, 3); });
            test::expect_error(errc::mismatch,
                               {"make_window", "signals is 3 on rank 0 but 4 on", who},
                               [&] { (void)comm.make_window(64, last ? 4 : 3); });
            // No harm done.
            auto window = comm.make_window(64, 3);
            comm.barrier();
          }) == 0);
}

namespace {

/// A loopback whose device has no atomics.
struct without_atomics : peerbus::loopback {
  using basic_loopback::basic_loopback;
  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept { return {}; }
};

}  // namespace

TEST_CASE("a communicator that needs fetch_add is refused where the transport has none") {
  CHECK(peerbus::run_threads(3, [](peerbus::bootstrap& boot) {
          test::expect_error(errc::unsupported, {"communicator", "fetch_add"}, [&] {
            peerbus::communicator refused{without_atomics{boot}, {.needs_fetch_add = true}};
          });
          peerbus::communicator comm{peerbus::loopback{boot}, {.needs_fetch_add = true}};
          comm.barrier();
        }) == 0);
}

TEST_CASE("a window that no memory could hold is refused on every rank") {
  for (const std::size_t bytes : {std::size_t{1} << 50, ~std::size_t{0}, ~std::size_t{0} - 63})
    CHECK(loopback::run(3, [bytes](auto& comm) {
            test::expect_error(errc::out_of_memory, {"need ", "have ", "MiB"},
                               [&] { (void)comm.make_window(bytes, 1); });
            test::expect_error(errc::out_of_memory, {"need ", "have ", "MiB"},
                               [&] { (void)comm.make_window(1, bytes); });
            comm.barrier();
          }) == 0);
}

TEST_CASE("agree: equal values, different values, objections") {
  CHECK(loopback::run(4, [](auto& comm) {
          const std::uint64_t me = comm.rank().index();
          comm.agree("nothing", {});
          const std::array same{declared{"a", 7}, declared{"b", ~std::uint64_t{0}}};
          comm.agree("the same", same);
          const std::array differ{declared{"a", 7}, declared{"b", me < 2 ? 5U : 6U + me}};
          test::expect_error(errc::mismatch, {"differing", "b is 5 on rank 0 but 8 on rank 2"},
                             [&] { comm.agree("differing", differ); });
          const std::array more{declared{"a", 7}, declared{"b", ~std::uint64_t{0}},
                                declared{"c", 1}};
          test::expect_error(errc::mismatch, {"counts", "2 values", "3"}, [&] {
            if (me == 3)
              comm.agree("counts", more);
            else
              comm.agree("counts", same);
          });
          std::optional<peerbus::error> objection;
          if (me == 1) objection.emplace(errc::unsupported, "no such thing here");
          if (me == 3) objection.emplace(errc::system, "disk on fire");
          // On all ranks, also on the other objector, the lowest one's reason.
          test::expect_error(errc::unsupported, {"no such thing here"},
                             [&] { comm.agree("objected", same, objection); });
          comm.barrier();
        }) == 0);
}

namespace {

/// What a step may throw, and what all ranks make of it.
struct failing_step {
  errc code;
  std::string text;
  void (*fail)();
};
const failing_step failing_steps[] = {
    {errc::unsupported, "no queue left",
     [] { throw peerbus::error{errc::unsupported, "no queue left"}; }},
    {errc::out_of_memory, "no memory for a table", [] { throw std::bad_alloc{}; }},
    {errc::system, "table is locked", [] { throw std::runtime_error{"table is locked"}; }}};

}  // namespace

TEST_CASE("on_all_ranks: all ranks have a result, or none keeps one") {
  CHECK(loopback::run(3, [](auto& comm) {
          const auto until = peerbus::deadline::after(std::chrono::seconds{60});
          const auto made = comm.on_all_ranks(
              "a table", until, [&] { return std::make_unique<std::size_t>(comm.rank().index()); });
          test::expect_equal(*made, comm.rank().index(), "this rank's result");
          for (const failing_step& step : failing_steps) {
            auto kept = std::make_shared<int>();
            const auto make = [&] {
              if (comm.rank() == rank_id{1}) step.fail();
              return kept;
            };
            test::expect_error(step.code, {step.text},
                               [&] { (void)comm.on_all_ranks("a table", until, make); });
            test::expect_equal(kept.use_count(), 1L, "owners of the result");
          }
          comm.barrier();
        }) == 0);
}

TEST_CASE("collective_on_all_ranks: agreed errors and local ones reach all, others pass at once") {
  CHECK(loopback::run(3, [](auto& comm) {
          const auto until = peerbus::deadline::after(std::chrono::seconds{60});
          const auto make_by = [&](auto&& step) {
            return comm.collective_on_all_ranks("a table", until, [&] {
              auto memory = comm.make_window(64, 1, until);
              step();
              return memory;
            });
          };
          (void)make_by([] {});
          for (const failing_step& step : failing_steps) {
            if (step.code == errc::unsupported) continue;
            test::expect_error(step.code, {step.text}, [&] {
              (void)make_by([&] {
                if (comm.rank() == rank_id{1}) step.fail();
              });
            });
          }
          // A part of the ranks has agreed on an error that the others do not know of.
          test::expect_error(errc::mismatch, {"two parts"}, [&] {
            (void)make_by([&] {
              if (comm.rank() != rank_id{1})
                throw peerbus::agreed_error{errc::mismatch, "two parts"};
            });
          });
          comm.barrier();
          // Nobody waits for ranks that are out of step.
          test::expect_error(errc::peer_dead, {"rank 7 died"}, [&] {
            (void)make_by([] { throw peerbus::error{errc::peer_dead, "rank 7 died"}; });
          });
          test::expect_error(errc::poisoned, {"rank 7 died"}, [&] { comm.barrier(); });
        }) == 0);
}

TEST_CASE("ranks that call different collectives are told so") {
  CHECK(loopback::run(3, [](auto& comm) {
          test::expect_error(errc::mismatch, {"this", "that"},
                             [&] { comm.agree(comm.rank() == rank_id{1} ? "this" : "that", {}); });
        }) == 0);
}

TEST_CASE_TEMPLATE("a rank that does not come to a barrier", Group, loopback, staged) {
  CHECK(Group::run(2, [](auto& comm) {
          for (int i = 0; i < 3; ++i) comm.barrier();
          auto done = comm.make_window(0, 1);
          const peerbus::signal_id id{0};
          if (comm.rank() == rank_id{1}) {
            done.await(id, 1, peerbus::deadline::after(std::chrono::seconds{60}), rank_id{0});
            return;
          }
          test::expect_error(errc::timed_out,
                             {"barrier 4", ": waited ", " for rank 1 (epoch 3, expected 4; "},
                             [&] { comm.barrier(peerbus::deadline::after(milliseconds{30})); });
          test::expect_error(errc::poisoned, {"barrier 4", " for rank 1 ("},
                             [&] { comm.barrier(); });
          test::expect_error(errc::poisoned, {}, [&] { comm.agree("anything", {}); });
          test::expect_ok(done.signal(rank_id{1}, id, 1), "signal");
        }) == 0);
}

TEST_CASE("a rank that does not come to make_window: named, and the communicator is poisoned") {
  const auto rank_2_stays_away = [](auto& comm) {
    auto done = comm.make_window(0, 3);
    const auto patient = peerbus::deadline::after(std::chrono::seconds{60});
    if (comm.rank() == rank_id{2}) {
      for (const std::size_t peer : {0U, 1U})
        done.await(static_cast<peerbus::signal_id>(peer), 1, patient, rank_id{peer});
      return;
    }
    test::expect_error(errc::timed_out, {"make_window", "rank 2"},
                       [&] { (void)comm.make_window(64, 1); });
    test::expect_error(errc::poisoned, {"rank 2"}, [&] { comm.barrier(); });
    test::expect_ok(
        done.signal(rank_id{2}, static_cast<peerbus::signal_id>(comm.rank().index()), 1), "signal");
  };
  CHECK(test::given_time(milliseconds{100}, [&](auto span) {
    return loopback::run(3, rank_2_stays_away, {.timeout = span}) == 0;
  }));
}

TEST_CASE("await says what it waited for") {
  CHECK(loopback::run(2, [](auto& comm) {
          auto window = comm.make_window(0, 5);
          const peerbus::signal_id id{3};
          const rank_id other{1 - comm.rank().index()};
          test::expect_ok(window.signal(comm.rank(), id, 6), "signal");
          window.await(id, 6, peerbus::deadline::never(), other);
          const std::string who = "from rank " + std::to_string(other.index());
          test::expect_error(
              errc::timed_out,
              {"wait for signal 3 of 5", who, "expected at least 9, seen 6 after "},
              [&] { window.await(id, 9, peerbus::deadline::after(milliseconds{10}), other); });
          test::expect_error(errc::out_of_range, {"signal 5 of 5"}, [&] {
            window.await(peerbus::signal_id{5}, 1, peerbus::deadline::never(), other);
          });
          test::expect_error(errc::out_of_range, {"from rank 2"},
                             [&] { window.await(id, 9, peerbus::deadline::never(), rank_id{2}); });
          // Not poisoned: one rank's wait is no collective.
          comm.barrier();
          if (comm.rank() == rank_id{1}) return;
          test::expect_error(errc::peer_dead, {"expected at least 1, seen 0", "rank 1 left"}, [&] {
            window.await(peerbus::signal_id{0}, 1, peerbus::deadline::never(), other);
          });
        }) == 0);
}

TEST_CASE("run starts what the transport connects") {
  CHECK(peerbus::run<peerbus::loopback>(3, [](auto& comm) {
          test::expect_equal(comm.size(), 3U, "ranks");
          comm.barrier();
        }) == 0);
  CHECK(peerbus::run<peerbus::loopback>(
            3, [](auto& comm) { return static_cast<int>(comm.rank().index()) + 4; }) == 6);
  CHECK_THROWS_AS((void)peerbus::run<peerbus::loopback>(0, [](auto&) {}), peerbus::error);
}

TEST_CASE("run makes the communicators with the given options") {
  const auto has_long_timeout = [](auto& comm) {
    return comm.default_deadline().remaining() > std::chrono::hours{1} ? 0 : 1;
  };
  CHECK(peerbus::run<peerbus::loopback>(2, has_long_timeout) == 1);
  CHECK(peerbus::run<peerbus::loopback>(2, has_long_timeout, {},
                                        {.timeout = std::chrono::hours{2}}) == 0);
}

}  // namespace communicator_test
