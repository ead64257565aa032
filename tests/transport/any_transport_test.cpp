// SPDX-License-Identifier: MIT
// ctest: tsan
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace any_transport_test {

using peerbus::any_direct_transport;
using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::put_piece;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::transport_decorator;

static_assert(std::constructible_from<any_transport, any_direct_transport>);
static_assert(!std::constructible_from<any_direct_transport, any_transport>);
static_assert(!std::constructible_from<any_direct_transport, test::indirect<peerbus::loopback>>);
static_assert(!std::constructible_from<any_transport, bootstrap&>);
static_assert(!std::convertible_to<peerbus::loopback, any_transport>);  // Explicit.
static_assert(std::is_nothrow_move_constructible_v<any_transport>);
static_assert(std::is_nothrow_move_constructible_v<any_direct_transport>);
static_assert(std::is_nothrow_move_constructible_v<any_direct_transport::window>);
static_assert(!std::is_copy_constructible_v<any_transport>);
static_assert(!std::is_copy_constructible_v<any_direct_transport::window>);
static_assert(!std::is_assignable_v<any_direct_transport&, any_direct_transport>);

namespace {

/// The calls that arrived at a `noting` transport, with their arguments.
using notes = std::vector<std::string>;

/// A transport without refinements that notes each call. Calls return different codes.
class noting : public peerbus::transport_archetype {
 public:
  noting(bootstrap& boot, notes& calls) : transport_archetype{boot}, calls_{&calls} {}

  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = true, .fetch_add = true};
  }
  [[nodiscard]] window make_window(peerbus::window_shape shape, deadline until) {
    note("make_window", shape.bytes, shape.signals, until.expired());
    return transport_archetype::make_window(shape, until);
  }
  [[nodiscard]] std::span<std::byte> local(const window&) const noexcept {
    return std::span{*memory_}.first(48);
  }
  [[nodiscard]] errc put(rank_id peer, const window&, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return note("put", peer, offset, source.data() - memory_->data(), source.size()),
           errc::timed_out;
  }
  [[nodiscard]] errc signal(rank_id peer, const window&, signal_id id,
                            std::uint64_t value) noexcept {
    return note("signal", peer, index(id), value), value < 100 ? errc::ok : errc::unreachable;
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window&, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return note("put_signal", peer, offset, source.size(), index(id), value), errc::out_of_range;
  }
  [[nodiscard]] errc get(rank_id peer, const window&, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return note("get", peer, offset, target.data() - memory_->data(), target.size()),
           errc::invalid_argument;
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window&, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    before = 77;
    return note("fetch_add", peer, offset, addend), errc::peer_dead;
  }
  [[nodiscard]] errc wait(const window&, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return note("wait", index(id), value, until.expired(), awaited ? awaited->index() : 99),
           errc::mismatch;
  }
  [[nodiscard]] std::uint64_t value(const window&, signal_id id) const noexcept {
    return note("value", index(id)), 4711;
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept { return note("flush", peer), errc::system; }
  [[nodiscard]] errc quiet() noexcept { return note("quiet"), errc::poisoned; }
  [[nodiscard]] errc progress() noexcept { return note("progress"), errc::refused; }

 protected:
  template <class... Arguments>
  void note(const char* call, const Arguments&... arguments) const {
    calls_->push_back(call);
    ((calls_->back() += peerbus::detail::concat(" ", arguments)), ...);
  }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_->data(); }

 private:
  notes* calls_;
  std::unique_ptr<std::array<std::byte, 64>> memory_ =
      std::make_unique<std::array<std::byte, 64>>();
};
static_assert(peerbus::transport<noting>);

/// Adds every refinement that a holder forwards.
class refined : public noting {
 public:
  static constexpr peerbus::transport_refinements refines{
      .peer_memory = true, .put_run = true, .signal_each = true, .describe_trouble = true};

  using noting::noting;
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window&, signal_id id,
                                 std::uint64_t value) noexcept {
    return note("signal_each", peers.size(), peers.back(), index(id), value), errc::timed_out;
  }
  [[nodiscard]] errc put_run(rank_id peer, const window&,
                             std::span<const peerbus::put_piece> pieces) noexcept {
    return note("put_run", peer, pieces.size(), pieces.back().offset, pieces.back().source.size()),
           errc::out_of_memory;
  }
  [[nodiscard]] std::string describe_trouble() const { return "a broken string"; }
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id peer) const noexcept {
    return peer == boot().rank() ? memory() : memory() + 16 * (peer.index() + 1);
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window&, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    return note("wait_at", owner, index(id), value, until.expired(),
                awaited ? awaited->index() : 99),
           errc::unreachable;
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window&, signal_id id) const noexcept {
    return note("value_at", owner, index(id)), 815;
  }
};
static_assert(peerbus::direct_transport<refined>);

/// Makes every call of `transport` once. Returns: what the calls returned.
template <class Bus>
std::vector<std::uint64_t> call_everything(Bus& bus) {
  const auto at = bus.make_window({.bytes = 48, .signals = 5}, deadline::never());
  const auto local = bus.local(at);
  std::vector<std::uint64_t> results{local.size(), bus.capabilities().any_local_memory,
                                     bus.capabilities().fetch_add, bus.boot().size()};
  std::uint64_t before = 0;
  const deadline gone = deadline::after(std::chrono::seconds{0});
  for (const errc code : {bus.put(rank_id{1}, at, 2, local.subspan(3, 4)),
                          bus.signal(rank_id{0}, at, signal_id{4}, 5),
                          bus.put_signal(rank_id{1}, at, 6, local.first(7), signal_id{3}, 9),
                          bus.get(rank_id{1}, at, 10, local.subspan(11, 12)),
                          bus.fetch_add(rank_id{1}, at, 16, 13, before),
                          bus.wait(at, signal_id{2}, 14, deadline::never(), rank_id{1}),
                          bus.wait(at, signal_id{1}, 15, gone, std::nullopt), bus.flush(rank_id{1}),
                          bus.quiet(), bus.progress()})
    results.push_back(static_cast<std::uint64_t>(code));
  results.push_back(before);
  results.push_back(bus.value(at, signal_id{1}));
  return results;
}

void expect_same(const notes& given, const notes& expected) {
  test::expect_equal(given.size(), expected.size(), "number of calls");
  for (std::size_t i = 0; i < given.size(); ++i)
    test::expect_equal(given[i], expected[i], "call ", i);
}

/// `Erased` over a `Held` makes the same calls, with the same results.
template <class Erased, class Held>
void check_forwarding(bootstrap& boot) {
  notes expected;
  Held plain{boot, expected};
  const auto results = call_everything(plain);
  test::expect(expected.size() >= 12, "each call to be noted");
  notes given;
  Erased erased{Held{boot, given}};
  test::expect(call_everything(erased) == results, "the results of the held transport");
  expect_same(given, expected);
}

constexpr std::array both{rank_id{1}, rank_id{0}};

deadline soon() { return deadline::after(std::chrono::seconds{30}); }

}  // namespace

TEST_CASE("each call arrives at the held transport, and its result comes back") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          check_forwarding<any_transport, noting>(boot);
          check_forwarding<any_transport, refined>(boot);
          check_forwarding<any_direct_transport, refined>(boot);
          check_forwarding<transport_decorator<noting>, noting>(boot);
          check_forwarding<transport_decorator<refined>, refined>(boot);
        }) == 0);
}

TEST_CASE_TEMPLATE("refinements are those of the held transport", Erased, any_transport,
                   any_direct_transport, transport_decorator<refined>) {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          notes calls;
          Erased bus{refined{boot, calls}};
          const auto at = bus.make_window({.bytes = 48, .signals = 5}, deadline::never());
          calls.clear();
          test::expect_code(bus.signal_each(both, at, signal_id{3}, 8), errc::timed_out,
                            "signal_each");
          expect_same(calls, {"signal_each 2 rank 0 3 8"});
          calls.clear();
          const std::array pieces{put_piece{1, bus.local(at).first(2)},
                                  put_piece{3, bus.local(at).first(4)}};
          test::expect_code(bus.put_run(rank_id{1}, at, pieces), errc::out_of_memory, "put_run");
          expect_same(calls, {"put_run rank 1 2 3 4"});
          test::expect_equal(bus.describe_trouble(), "a broken string", "trouble");
          test::expect(peerbus::describe_absence(bus).ends_with("a broken string"), "absence");
          if constexpr (peerbus::direct_transport<Erased>) {
            for (const rank_id peer : both)
              test::expect(
                  bus.peer_memory(at, peer) ==
                      bus.local(at).data() + (peer == boot.rank() ? 0 : 16 * (peer.index() + 1)),
                  "the memory of rank ", peer.index());
            calls.clear();
            test::expect_code(
                bus.wait_at(rank_id{1}, at, signal_id{2}, 14, deadline::never(), rank_id{0}),
                errc::unreachable, "wait_at");
            test::expect_equal(bus.value_at(rank_id{1}, at, signal_id{4}), 815U, "value_at");
            expect_same(calls, {"wait_at rank 1 2 14 0 0", "value_at rank 1 4"});
          }
        }) == 0);
}

TEST_CASE("the held transport is found by its type, also after a move") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          notes calls;
          any_transport bus{noting{boot, calls}};
          auto* const held = bus.find_held<noting>();
          test::expect(held != nullptr && &held->boot() == &boot, "what was given");
          test::expect(bus.find_held<peerbus::loopback>() == nullptr, "no other type");
          any_transport moved{std::move(bus)};
          test::expect(moved.find_held<noting>() == held, "the same place");
        }) == 0);
}

TEST_CASE("without a refinement, calls do what its users would do without it") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          notes calls;
          any_transport bus{noting{boot, calls}};
          const auto at = bus.make_window({.bytes = 48, .signals = 5}, deadline::never());
          calls.clear();
          test::expect_ok(bus.signal_each(both, at, signal_id{3}, 8), "signal_each");
          expect_same(calls, {"signal rank 1 3 8", "signal rank 0 3 8"});
          calls.clear();
          test::expect_code(bus.signal_each(both, at, signal_id{3}, 800), errc::unreachable,
                            "signal_each to a peer that is gone");
          expect_same(calls, {"signal rank 1 3 800"});
          calls.clear();
          const std::array one_too_far{rank_id{1}, rank_id{2}};
          test::expect_code(bus.signal_each(one_too_far, at, signal_id{3}, 8), errc::out_of_range,
                            "signal_each to nobody");
          expect_same(calls, {});
          std::array pieces{put_piece{47, bus.local(at).first(1)},
                            put_piece{48, bus.local(at).first(1)}};
          test::expect_code(bus.put_run(rank_id{1}, at, pieces), errc::out_of_range,
                            "a run that ends outside");
          expect_same(calls, {});
          pieces[1].offset = 46;
          test::expect_code(bus.put_run(rank_id{1}, at, pieces), errc::timed_out,
                            "a run whose first put fails");
          expect_same(calls, {"put rank 1 47 0 1"});
          test::expect(bus.describe_trouble().empty(), "no trouble");
        }) == 0);
}

namespace {
/// Rank 1 has no memory left once the window is made.
class out_of_memory_on_1 : public transport_decorator<peerbus::loopback> {
 public:
  using transport_decorator::transport_decorator;
  [[nodiscard]] window make_window(peerbus::window_shape shape, deadline until) {
    window made = transport_decorator::make_window(shape, until);
    if (boot().rank() == rank_id{1}) throw std::bad_alloc{};
    return made;
  }
};

template <class Any>
void check_no_rank_has_a_window() {
  CHECK(peerbus::run_threads(3, [](bootstrap& boot) {
          Any bus{out_of_memory_on_1{boot}};
          test::expect_error(errc::out_of_memory, {"no memory for a window"}, [&] {
            static_cast<void>(bus.make_window({.bytes = 64, .signals = 1}, soon()));
          });
          static_cast<void>(boot.allgather({}, soon(), "the ranks are in step"));
        }) == 0);
}
}  // namespace

TEST_CASE("a window for which one rank has no memory is made on no rank") {
  check_no_rank_has_a_window<any_transport>();
  check_no_rank_has_a_window<any_direct_transport>();
}

TEST_CASE("windows go on with the transport that theirs was moved to") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          std::optional<any_direct_transport> first{peerbus::unified_bus{boot}};
          auto made = first->make_window({.bytes = 128, .signals = 2}, soon());
          any_direct_transport bus{std::move(*first)};
          first.reset();
          const auto at = std::move(made);
          const rank_id peer{1 - boot.rank().index()};
          bus.peer_memory(at, peer)[3] = std::byte{42};
          test::expect_ok(bus.signal(peer, at, signal_id{1}, 6), "signal");
          test::expect_ok(bus.wait(at, signal_id{1}, 6, soon(), peer), "wait");
          test::expect(bus.local(at)[3] == std::byte{42}, "the byte that the peer stored");
          test::expect(bus.peer_memory(at, boot.rank()) == bus.local(at).data(), "the own part");
          static_cast<void>(boot.allgather({}, soon(), "end"));
        }) == 0);
}

TEST_CASE("an any_transport reaches the memory that its transport does") {
  const int status = peerbus::run_threads(4, [](bootstrap& boot) {
    const auto check = [&](any_transport bus, peerbus::peer_reach reach, auto is_near) {
      test::expect(bus.reach() == reach && peerbus::reach_of(bus) == reach, "the reach");
      const auto at = bus.make_window({.bytes = 64, .signals = 1}, soon());
      for (const rank_id peer : peerbus::all_ranks{4}) {
        std::byte* const part = bus.find_peer_memory(at, peer);
        test::expect((part != nullptr) == is_near(peer), "the memory of rank ", peer.index());
        if (part != nullptr) part[boot.rank().index()] = std::byte{7};
      }
      for (const rank_id peer : peerbus::all_ranks{4})
        test::expect_ok(bus.signal(peer, at, signal_id{0}, 1), "signal");
      static_cast<void>(boot.allgather({}, soon(), "all have written"));
      for (const rank_id peer : peerbus::all_ranks{4})
        test::expect((bus.local(at)[peer.index()] == std::byte{7}) == is_near(peer), "stores of ",
                     peer.index());
      const errc code = bus.wait_at(rank_id{0}, at, signal_id{0}, 1, soon(), std::nullopt);
      const bool is_waited_for = reach == peerbus::peer_reach::all || boot.rank() == rank_id{0};
      test::expect_code(code, is_waited_for ? errc::ok : errc::unsupported, "a signal of rank 0");
      test::expect_equal(bus.value_at(rank_id{0}, at, signal_id{0}), is_waited_for ? 1U : 0U,
                         "its value");
      static_cast<void>(boot.allgather({}, soon(), "end"));
    };
    const rank_id own = boot.rank();
    check(any_transport{peerbus::loopback{boot}}, peerbus::peer_reach::all,
          [](rank_id) { return true; });
    check(any_transport{test::partly_direct<peerbus::loopback>{boot}}, peerbus::peer_reach::near,
          [own](rank_id peer) { return peer.index() % 2 == own.index() % 2; });
    check(any_transport{test::indirect<peerbus::loopback>{boot}}, peerbus::peer_reach::none,
          [own](rank_id peer) { return peer == own; });
    check(any_transport{any_transport{peerbus::loopback{boot}}}, peerbus::peer_reach::all,
          [](rank_id) { return true; });
  });
  CHECK(status == 0);
}

TEST_CASE("an any_transport takes over what an any_direct_transport holds") {
  CHECK(peerbus::run_threads(1, [](bootstrap& boot) {
          notes calls;
          any_transport bus{any_direct_transport{refined{boot, calls}}};
          test::expect_equal(call_everything(bus).size(), 16U, "results");
          test::expect_equal(calls.front(), "make_window 48 5 0", "the first call");
          test::expect_equal(bus.describe_trouble(), "a broken string", "trouble");
        }) == 0);
}

TEST_CASE("a communicator is made of a transport that is chosen at run time") {
  for (const bool shared_file : {false, true})
    CHECK(peerbus::run_threads(3, [shared_file](bootstrap& boot) {
            peerbus::communicator comm{shared_file ? any_transport{peerbus::unified_bus{boot}}
                                                   : any_transport{peerbus::loopback{boot}}};
            static_assert(std::same_as<decltype(comm), peerbus::communicator<any_transport>>);
            auto window = comm.make_window(64, 1);
            comm.barrier();
            test::expect_equal(window.local().size(), 64U, "bytes");
          }) == 0);
}

}  // namespace any_transport_test
