// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/signal.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>
#include <peerbus/transport/verbs/notice.hpp>

namespace verbs_notice_test {

// How a signal of 96 bits fits into 32, and in which order signals and fences are let through: the
// parts of verbs that need no device.

namespace {

using peerbus::signal_id;
using peerbus::detail::rdma::arrivals;
using peerbus::detail::rdma::notice;
using peerbus::detail::rdma::queue_set;
using peerbus::detail::rdma::raised_signal;
using peerbus::detail::rdma::short_notice;
using peerbus::detail::rdma::signal_names;

bool operator==(const raised_signal& a, const raised_signal& b) {
  return a.window == b.window && a.id == b.id && a.value == b.value;
}

}  // namespace

TEST_CASE("a short notice keeps its three parts apart") {
  for (const std::uint32_t name : {0U, 1U, 200U, 255U})
    for (const std::uint32_t after : {0U, 1U, 0x80U, 0xffU})
      for (const std::uint32_t growth : {0U, 1U, 0xffU, 0x8000U, 0xffffU}) {
        const auto back = short_notice::decode(short_notice{static_cast<std::uint8_t>(name),
                                                            static_cast<queue_set>(after),
                                                            static_cast<std::uint16_t>(growth)}
                                                   .encode());
        CHECK(back.name == name);
        CHECK(back.after == after);
        CHECK(back.growth == growth);
      }
}

TEST_CASE("both ends of a connection know the same signals by the same names") {
  signal_names raiser;
  signal_names raised;
  std::mt19937_64 random{7};
  // More signals than names, so that they take names from each other.
  std::vector<std::uint64_t> values(3 * 400);
  std::size_t in_short = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t of = random() % values.size();
    std::uint64_t& value = values[of];
    switch (random() % 8) {
      case 0: value += 0xffff; break;
      case 1: value += 0x10000; break;
      case 2: value += std::uint64_t{1} << (random() % 60); break;
      case 3: break;  // Once more what it is.
      default: ++value;
    }
    const raised_signal what{static_cast<std::uint32_t>(of / 400), static_cast<signal_id>(of % 400),
                             value};
    const std::uint8_t name = signal_names::name_of(what);
    const auto growth = raiser.update(what);
    raised_signal told;
    if (growth) {
      ++in_short;
      told = raised.resolve(short_notice::decode(short_notice{name, 0, *growth}.encode()));
    } else {
      told = raised.resolve(notice{what, name, 0});
    }
    REQUIRE(told == what);
  }
  CHECK(in_short > 1000);
}

TEST_CASE("a signal that falls raises nothing") {
  signal_names raiser;
  signal_names raised;
  const raised_signal high{1, signal_id{2}, 100};
  CHECK_FALSE(raiser.update(high));
  static_cast<void>(raised.resolve(notice{high, signal_names::name_of(high), 0}));
  const auto growth = raiser.update({1, signal_id{2}, 40});
  REQUIRE(growth);
  CHECK(*growth == 0);
  const auto next = raiser.update({1, signal_id{2}, 101});
  REQUIRE(next);
  CHECK(*next == 1);
}

TEST_CASE("the signals of an exchange seldom share a name") {
  // A rank raises those of three phases and some batches at each peer, `ranks` apart.
  for (const std::uint32_t ranks : {2U, 8U, 64U, 128U, 256U, 320U, 1024U})
    for (const std::uint32_t rank : {0U, 1U, ranks - 1}) {
      std::set<int> names;
      for (std::uint32_t group = 0; group < 12; ++group)
        names.insert(signal_names::name_of({3, static_cast<signal_id>(group * ranks + rank), 1}));
      CAPTURE(ranks);
      CHECK(names.size() >= 10);
    }
}

TEST_CASE("the very first signal is told in full, be it number 0 of window 0") {
  signal_names raiser;
  CHECK_FALSE(raiser.update({0, signal_id{0}, 1}));
  CHECK(raiser.update({0, signal_id{0}, 2}));
}

TEST_CASE("signals wait for the fences that they name, in order, whatever overtakes") {
  // Signals and fences in the order in which they were sent; queue pairs keep their own order, and
  // deliver in any order among each other.
  std::mt19937_64 random{11};
  for (int trial = 0; trial < 2000; ++trial) {
    constexpr std::size_t queues = 4;
    std::vector<std::deque<int>> on_the_way(queues);  // Of queue 0: numbers of signals.
    std::vector<queue_set> after;
    std::vector<std::vector<std::size_t>> needed;  // Fences of each queue before each signal.
    std::vector<std::size_t> sent(queues);
    const std::size_t signals = 1 + random() % 8;
    for (std::size_t s = 0; s < signals; ++s) {
      const auto set = static_cast<queue_set>(random() % 8);
      for (std::size_t q = 1; q < queues; ++q)
        if (((set >> (q - 1)) & 1U) != 0) {
          on_the_way[q].push_back(0);
          ++sent[q];
        }
      after.push_back(set);
      needed.push_back(sent);
      on_the_way[0].push_back(static_cast<int>(s));
    }
    arrivals coming;
    coming.open(signals);
    signal_names raiser;
    std::vector<std::size_t> came(queues);
    std::size_t raised = 0;
    const auto raise = [&](const raised_signal& what, std::uint32_t slot) noexcept {
      CHECK(what.value == raised + 1);
      CHECK(slot == raised + 7);
      for (std::size_t q = 1; q < queues; ++q) CHECK(came[q] >= needed[raised][q]);
      ++raised;
    };
    for (;;) {
      std::vector<std::size_t> ready;
      for (std::size_t q = 0; q < queues; ++q)
        if (!on_the_way[q].empty()) ready.push_back(q);
      if (ready.empty()) break;
      const std::size_t q = ready[random() % ready.size()];
      const int number = on_the_way[q].front();
      on_the_way[q].pop_front();
      if (q != 0) {
        ++came[q];
        coming.fence_came(q, raise);
        continue;
      }
      const auto s = static_cast<std::size_t>(number);
      const raised_signal what{3, signal_id{5}, s + 1};
      const std::uint8_t name = signal_names::name_of(what);
      const auto slot = static_cast<std::uint32_t>(s + 7);
      if (const auto growth = raiser.update(what))
        coming.signal_came(short_notice{name, after[s], *growth}, slot, raise);
      else
        coming.signal_came(notice{what, name, after[s]}, slot, raise);
    }
    REQUIRE(raised == signals);
  }
}

}  // namespace verbs_notice_test
