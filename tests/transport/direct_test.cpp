// SPDX-License-Identifier: MIT
// ctest: tsan
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/direct.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/lent.hpp"
#include "support/ranks.hpp"

namespace direct_test {

using peerbus::deadline;
using peerbus::direct_window;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::window_shape;

static_assert(direct_window::mapped_bytes({0, 0}) == 0);
static_assert(direct_window::mapped_bytes({1, 0}) == 64);
static_assert(direct_window::mapped_bytes({64, 1}) == 192);
static_assert(direct_window::mapped_bytes({65, 2}) == 384);

namespace {

/// Each byte of the windows of a group, as rank 0 sees them.
std::vector<std::byte> all_bytes(const direct_window& window) {
  std::vector<std::byte> result;
  for (std::size_t r = 0; r < window.ranks(); ++r)
    result.insert(result.end(), window.data(rank_id{r}),
                  window.data(rank_id{r}) + window.shape().bytes);
  return result;
}

template <class Transport>
int on_ranks(std::size_t ranks, void (*body)(Transport&, direct_window&)) {
  return peerbus::run_threads(ranks, [body](peerbus::bootstrap& boot) {
    Transport bus{boot};
    auto window = bus.make_window({200, 3}, deadline::after(std::chrono::seconds{30}));
    body(bus, window);
    static_cast<void>(boot.allgather({}, deadline::after(std::chrono::seconds{30}), "end"));
  });
}

}  // namespace

// Every offset and length around the edges of a part of 200 bytes, against plain arithmetic.
TEST_CASE_TEMPLATE("direct_path moves exactly the ranges that lie inside a part", Transport,
                   peerbus::loopback, peerbus::unified_bus) {
  CHECK(on_ranks<Transport>(1, [](Transport& bus, direct_window& window) {
          constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
          const std::vector<std::byte> source(256, std::byte{0x77});
          std::vector<std::byte> expected(200);
          for (const std::size_t offset :
               {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{199}, std::size_t{200},
                std::size_t{201}, std::size_t{1} << 32, most - 255, most - 1, most})
            for (std::size_t count = 0; count <= 256; ++count) {
              const bool inside = offset <= 200 && count <= 200 - offset;
              const errc code = bus.put(rank_id{0}, window, offset, {source.data(), count});
              test::expect_code(code, inside ? errc::ok : errc::out_of_range, "put");
              if (inside)
                for (std::size_t i = 0; i < count; ++i) expected[offset + i] = std::byte{0x77};
              test::expect(all_bytes(window) == expected, "put of ", count, " bytes at ", offset,
                           " to write those only");
              if (inside && count > 0) {
                std::vector<std::byte> target(count);
                test::expect_ok(bus.get(rank_id{0}, window, offset, target), "get");
                test::expect(target == std::vector<std::byte>(count, std::byte{0x77}), "got bytes");
                for (std::size_t i = 0; i < count; ++i) {
                  expected[offset + i] = std::byte{0};
                  window.data(rank_id{0})[offset + i] = std::byte{0};
                }
              }
            }
        }) == 0);
}

TEST_CASE_TEMPLATE("peers are other memory, and signals lie beyond the data", Transport,
                   peerbus::loopback, peerbus::unified_bus) {
  CHECK(on_ranks<Transport>(3, [](Transport& bus, direct_window& window) {
          test::expect(bus.capabilities().any_local_memory, "puts from any memory");
          test::expect(bus.capabilities().fetch_add, "fetch_add");
          test::expect_equal(window.ranks(), 3U, "parts");
          for (std::size_t r = 0; r < 3; ++r) {
            test::expect(bus.peer_memory(window, rank_id{r}) == window.data(rank_id{r}), "part");
            const auto* const word =
                reinterpret_cast<const std::byte*>(&window.signal(rank_id{r}, signal_id{0}));
            test::expect(word >= window.data(rank_id{r}) + 200, "signals beyond the data");
          }
          test::expect(bus.local(window).data() == window.data(window.mine()), "the local part");
          test::expect(window.data(rank_id{0}) != window.data(rank_id{1}), "different memory");
          for (std::uint32_t id = 0; id < 3; ++id)
            test::expect_ok(bus.signal(window.mine(), window, signal_id{id}, id + 5), "signal");
          for (std::uint32_t id = 0; id < 3; ++id)
            test::expect_equal(bus.value(window, signal_id{id}), id + 5U, "value");
          for (const std::byte byte : bus.local(window))
            test::expect(byte == std::byte{0}, "signals to leave the data alone");
        }) == 0);
}

TEST_CASE_TEMPLATE("signal_each raises at all peers or, if one does not exist, at none", Transport,
                   peerbus::loopback, peerbus::unified_bus) {
  CHECK(on_ranks<Transport>(3, [](Transport& bus, direct_window& window) {
          constexpr signal_id own{0};
          constexpr signal_id from_0{1};
          const auto until = deadline::after(std::chrono::seconds{30});
          if (window.mine() == rank_id{0}) {
            const std::array peers{rank_id{2}, rank_id{1}, rank_id{0}};
            const std::array one_too_far{rank_id{1}, rank_id{3}};
            test::expect_code(bus.signal_each(one_too_far, window, from_0, 9), errc::out_of_range,
                              "a rank that does not exist");
            test::expect_code(bus.signal_each(peers, window, signal_id{3}, 9), errc::out_of_range,
                              "a signal that does not exist");
            test::expect_ok(bus.signal_each({}, window, own, 9), "no peers");
            test::expect_ok(bus.signal_each(peers, window, from_0, 7), "signal_each");
          }
          test::expect_ok(bus.wait(window, from_0, 7, until, rank_id{0}), "wait");
          test::expect_equal(bus.value(window, from_0), 7U, "value");
          test::expect_equal(bus.value(window, own), 0U, "another signal");
        }) == 0);
}

TEST_CASE_TEMPLATE("get_private reads memory that lies in no window", Transport, peerbus::loopback,
                   peerbus::unified_bus) {
  CHECK(on_ranks<Transport>(3, [](Transport& bus, direct_window& window) {
          const std::size_t mine = window.mine().index();
          const std::vector<std::byte> own(10'000, static_cast<std::byte>(mine + 1));
          const std::uint64_t address = reinterpret_cast<std::uintptr_t>(own.data());
          test::expect_ok(bus.put(window.mine(), window, 0, std::as_bytes(std::span{&address, 1})),
                          "the address");
          const auto meet = [&](std::uint64_t value) {
            const auto until = deadline::after(std::chrono::seconds{30});
            for (std::uint32_t r = 0; r < 3; ++r)
              test::expect_ok(bus.signal(rank_id{r}, window, static_cast<signal_id>(mine), value),
                              "signal");
            for (std::uint32_t r = 0; r < 3; ++r)
              test::expect_ok(bus.wait(window, signal_id{r}, value, until, rank_id{r}), "wait");
          };
          meet(1);
          for (std::size_t r = 0; r < 3; ++r) {
            std::uint64_t theirs = 0;
            std::vector<std::byte> read(9'999);
            test::expect_ok(
                bus.get(rank_id{r}, window, 0, std::as_writable_bytes(std::span{&theirs, 1})),
                "the peer's address");
            test::expect_ok(bus.get_private(rank_id{r}, window, theirs + 1, read), "get_private");
            test::expect(read == std::vector(read.size(), static_cast<std::byte>(r + 1)), "bytes");
          }
          test::expect_code(bus.get_private(rank_id{3}, window, address, {}), errc::out_of_range,
                            "a rank that does not exist");
          meet(2);
        }) == 0);
}

TEST_CASE("memory that no window can be made of is refused on all ranks") {
  const int worst_status = peerbus::run_threads(3, [](peerbus::bootstrap& boot) {
    peerbus::loopback bus{boot};
    test::check_refused_memory(bus);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("memory_limit is no more than the machine has, and shapes are judged by it") {
  const std::size_t limit = peerbus::detail::memory_limit();
  CHECK(limit > (std::size_t{16} << 20));
  CHECK_FALSE(peerbus::detail::objection_to({0, 0}).has_value());
  CHECK_FALSE(peerbus::detail::objection_to({limit / 2, 8}).has_value());
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const window_shape shape : {window_shape{limit + 1, 0},
                                   {most, 0},
                                   {0, most},
                                   {most, most},
                                   {0, limit / 64 + 1},
                                   {most / 4, most / 256},
                                   {0, most / 64 + 2}}) {
    const auto objection = peerbus::detail::objection_to(shape);
    REQUIRE(objection.has_value());
    CHECK(objection->code() == errc::out_of_memory);
  }
}

TEST_CASE("the archetypes do nothing and say so") {
  CHECK(peerbus::run_threads(1, [](peerbus::bootstrap& boot) {
          peerbus::direct_transport_archetype bus{boot};
          const auto window = bus.make_window({8, 1}, deadline::never());
          std::uint64_t before = 0;
          for (const errc code :
               {bus.put({}, window, 0, {}), bus.get({}, window, 0, {}),
                bus.signal({}, window, {}, 1), bus.put_signal({}, window, 0, {}, {}, 1),
                bus.fetch_add({}, window, 0, 1, before),
                bus.wait(window, {}, 1, deadline::never(), std::nullopt), bus.flush({}),
                bus.quiet(), bus.progress()})
            test::expect_code(code, errc::unsupported, "a call of the archetype");
          test::expect(&bus.boot() == &boot, "its bootstrap");
          test::expect(!bus.capabilities().any_local_memory, "no foreign memory");
          test::expect(!bus.capabilities().fetch_add, "no fetch_add");
        }) == 0);
}

}  // namespace direct_test
