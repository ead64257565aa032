// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/simulated.hpp>

#include "conformance/exchange_suite.hpp"
#include "simulated/support.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

// Virtual time, by formula, and what a search for bad orders finds.

namespace simulated_test {

namespace {

using peerbus::any_transport;
using peerbus::communicator;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::simulated;
using peerbus::simulation_options;
using std::chrono::nanoseconds;

constexpr signal_id arrival{0};

/// A machine of two nodes of two ranks, which share a network card each; round numbers.
simulation_options two_nodes() {
  simulation_options options;
  options.platform = {.name = "two nodes",
                      .ports = {{"bus", 1}, {"card", 2}},
                      .levels = {{"node", 2, 100, 100, 1, 0}, {"network", 0, 1000, 10, 5, 1}},
                      .costs = {.put_ns = 30, .signal_ns = 7, .poll_ns = 1, .token_ns = 0}};
  return options;
}

/// Returns when each receiver saw what each of `senders` puts to the rank `distance` further on,
/// all of them from the same moment on, `bytes` long.
std::vector<nanoseconds> times_of_puts(std::size_t senders, std::size_t distance, std::size_t bytes,
                                       const simulation_options& options = two_nodes()) {
  std::vector<nanoseconds> seen(4);
  const int status = peerbus::run_simulated(
      4,
      [&](peerbus::bootstrap& boot) {
        communicator<simulated> comm{simulated{boot}};
        auto win = comm.make_window(2 * bytes, 1);
        const std::size_t me = comm.rank().index();
        const nanoseconds start{100'000};
        simulated::advance(start - simulated::now());
        if (me < senders)
          test::expect_ok(
              win.put_signal(rank_id{me + distance}, 0, win.local().subspan(bytes), arrival, 1),
              "put_signal");
        if (me >= distance && me < senders + distance) {
          test::expect_ok(win.wait(arrival, 1, deadline::after(std::chrono::seconds{1})), "wait");
          seen[me] = simulated::now() - start;
        }
      },
      options);
  CHECK(status == 0);
  return seen;
}

/// Links that carry each message for `span`, whatever else they carry, or up to three times as long
/// by its number, so that messages overtake each other. They have 8 ranks at most.
class fixed_links final : public peerbus::simulated_links {
 public:
  explicit fixed_links(nanoseconds span, std::uint32_t spans = 1) : span_{span}, spans_{spans} {}

  void begin(std::size_t ranks) override {
    if (ranks > 8) throw peerbus::error{errc::invalid_argument, "more than 8 ranks"};
    latest_ = time{0};
  }
  void start(const message& started, time now) noexcept override {
    is_misused |= !under_way_.empty() && now != latest_;
    under_way_.push_back({now + span_ * (1 + started.number % spans_), started.number});
  }
  [[nodiscard]] time advance(time until, std::vector<std::uint32_t>& arrived) noexcept override {
    is_misused |= under_way_.empty() || until < latest_;
    const auto first = std::ranges::min_element(under_way_, {}, &flight::end);
    latest_ = until;
    if (is_broken || first->end > until) return until;
    latest_ = first->end;
    arrived.push_back(first->number);
    under_way_.erase(first);
    return latest_;
  }

  bool is_broken = false;   ///< nothing arrives
  bool is_misused = false;  ///< a call was not as `simulated_links` says

 private:
  struct flight {
    time end;
    std::uint32_t number;
  };
  time span_;
  std::uint32_t spans_;
  time latest_{0};  ///< that `advance` returned
  std::vector<flight> under_way_;
};

}  // namespace

TEST_CASE("a message takes the time that the model says") {
  // The sender's work, then the message leaves; its first byte arrives; the rest follows.
  const auto expected = [](double latency, double rate, double gap, double bytes) {
    return nanoseconds{static_cast<std::int64_t>(30 + 7 + latency + gap + (bytes + 8) / rate)};
  };
  for (const std::size_t bytes : {std::size_t{992}, std::size_t{99'992}}) {
    const auto size = static_cast<double>(bytes);
    CHECK(times_of_puts(1, 1, bytes)[1] == expected(100, 100, 1, size));
    CHECK(times_of_puts(1, 2, bytes)[2] == expected(1000, 10, 5, size));
  }
}

TEST_CASE("ranks share a card, and have a bus each") {
  constexpr std::size_t bytes = 99'992;
  const auto alone = times_of_puts(1, 2, bytes);
  const auto together = times_of_puts(2, 2, bytes);
  CHECK(std::min(together[2], together[3]) == alone[2]);
  // The second message leaves once the card has sent the first, 5 ns and 10 us later.
  CHECK(std::max(together[2], together[3]) == alone[2] + nanoseconds{10'005});
}

TEST_CASE("a time-out of a minute passes at once, and a dead rank is seen before it") {
  const auto begin = std::chrono::steady_clock::now();
  const int status = peerbus::run<simulated>(3, [](communicator<simulated>& comm) {
    auto win = comm.make_window(0, 2);
    const auto start = deadline::now();
    test::expect_error(errc::timed_out, {"after 60 s"},
                       [&] { win.await(arrival, 1, deadline::after(std::chrono::minutes{1})); });
    test::expect(deadline::now() - start >= std::chrono::minutes{1}, "a minute of virtual time");
    comm.barrier();
    if (comm.rank() == rank_id{2}) return;
    const auto left = deadline::now();
    test::expect_code(win.wait(arrival, 1, deadline::never(), rank_id{2}), errc::peer_dead,
                      "wait for a rank that left");
    test::expect(deadline::now() - left < std::chrono::milliseconds{10}, "seen in milliseconds");
    // Both wait for what nobody does, without a deadline.
    test::expect_code(win.wait(signal_id{1}, 1, deadline::never(), comm.rank()), errc::timed_out,
                      "a wait that can never end");
  });
  CHECK(status == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{20});
}

TEST_CASE("a transport that ends waits for the answer of a get") {
  const int worst_status = peerbus::run_simulated(
      2,
      [](peerbus::bootstrap& boot) {
        std::vector<std::byte> target(4096);
        const bool asks = boot.rank() == rank_id{0};
        const auto until = deadline::after(std::chrono::minutes{1});
        {
          simulated bus{boot};
          const auto win = bus.make_window({.bytes = target.size(), .signals = 1}, until);
          std::ranges::fill(bus.local(win), std::byte{7});
          static_cast<void>(boot.allgather({}, until, "all bytes"));
          if (asks) {
            const auto sent = simulated::bytes_sent();
            test::expect_ok(bus.get(rank_id{1}, win, 0, target), "get");
            while (simulated::bytes_sent() == sent) static_cast<void>(deadline::now());
            test::expect_equal(simulated::bytes_sent() - sent, target.size(), "bytes of an answer");
            test::expect(target.back() == std::byte{0}, "the answer is on its way");
          }
        }
        if (asks) test::expect(std::ranges::count(target, std::byte{7}) == 4096, "the answer");
      },
      two_nodes());
  CHECK(worst_status == 0);
}

TEST_CASE("an allgather for which a rank does not come times out in virtual time") {
  const int status = peerbus::run_simulated(3, [](peerbus::bootstrap& boot) {
    if (boot.rank() == rank_id{1}) {
      simulated::advance(std::chrono::minutes{5});
      static_cast<void>(deadline::now());  // Lets the others go on.
      return;
    }
    test::expect_error(errc::timed_out, {"rank 1 of 3 did not come within 60"}, [&] {
      static_cast<void>(
          boot.allgather({}, deadline::after(std::chrono::minutes{1}), "what is missing"));
    });
  });
  CHECK(status == 0);
}

TEST_CASE("an exchange names a rank that left or is late, and its view does not change") {
  const auto run = [](bool leaves, errc expected) {
    const int worst_status = peerbus::run_simulated(
        4,
        [&](peerbus::bootstrap& boot) {
          communicator<any_transport> comm{any_transport{simulated{boot}},
                                           {.timeout = std::chrono::seconds{1}}};
          peerbus::moe::exchange moe{comm,
                                     {.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 4},
                                     peerbus::codec::int8_per_token{}};
          const std::vector<peerbus::bf16> tokens(64);
          const std::vector<std::int32_t> experts{0, 1, 2, 3};
          const std::vector<float> weights(4, 1.0F);
          static_cast<void>(moe.dispatch(tokens, {experts, weights}));
          if (comm.rank() == rank_id{2}) {
            if (!leaves) simulated::advance(std::chrono::minutes{1});
            static_cast<void>(deadline::now());  // Lets the others go on.
            return;
          }
          const auto begin = deadline::now();
          test::expect_error(expected, {"dispatch", "rank 2"},
                             [&] { static_cast<void>(moe.dispatch(tokens, {experts, weights})); });
          const auto waited = deadline::now() - begin;
          test::expect(leaves ? waited < std::chrono::milliseconds{10}
                              : waited >= std::chrono::seconds{1} &&
                                    waited < std::chrono::milliseconds{1010},
                       "the time until the refusal");
          // Ranks do not reach the memory of all, and this bootstrap carries no messages.
          test::expect_error(errc::unsupported, {"continue_without_the_dead: expected"},
                             [&] { comm.continue_without_the_dead(); });
        },
        two_nodes());
    CHECK(worst_status == 0);
  };
  run(true, errc::peer_dead);
  run(false, errc::timed_out);
}

TEST_CASE("exceptions of fibres do not mix") {
  const int status = peerbus::run<simulated>(4, [](communicator<simulated>& comm) {
    for (int i = 0; i < 3; ++i) {
      try {
        throw std::runtime_error{std::to_string(comm.rank().index())};
      } catch (const std::exception& caught) {
        comm.barrier();  // All ranks are in their handlers now.
        test::expect_equal(caught.what(), std::to_string(comm.rank().index()), "the text");
        try {
          throw;
        } catch (const std::runtime_error& again) {
          test::expect_equal(again.what(), std::to_string(comm.rank().index()), "thrown again");
        }
      }
    }
  });
  CHECK(status == 0);
}

namespace {

/// Returns the virtual times at which the ranks end a few rounds of an exchange.
std::vector<nanoseconds> ends_of_rounds(const simulation_options& options) {
  std::vector<nanoseconds> ends(6);
  const int status = peerbus::run_simulated(
      6,
      [&](peerbus::bootstrap& boot) {
        communicator<any_transport> comm{any_transport{simulated{boot}}};
        conformance::run_case<peerbus::codec::int8_per_token>(
            comm, {12, 64, 4, 8, oracle::routes::zipf}, peerbus::moe::compact{}, 3);
        ends[comm.rank().index()] = simulated::now();
      },
      options);
  CHECK(status == 0);
  return ends;
}

}  // namespace

TEST_CASE("the same seed gives the same times") {
  const auto in_order = ends_of_rounds({});
  CHECK(ends_of_rounds({}) == in_order);
  const auto by_seed = ends_of_rounds(delayed(nanoseconds{5000}, 7));
  CHECK(ends_of_rounds(delayed(nanoseconds{5000}, 7)) == by_seed);
  CHECK(ends_of_rounds(delayed(nanoseconds{5000}, 8)) != by_seed);
  CHECK(by_seed != in_order);
}

TEST_CASE("links carry messages instead of ports") {
  fixed_links links{nanoseconds{5000}};
  simulation_options options = two_nodes();
  options.links = &links;
  // Two ranks that share a card do not wait for each other, nor does a message for its bytes.
  for (const nanoseconds& seen : times_of_puts(2, 2, 99'992, options))
    CHECK((seen == nanoseconds{0} || seen == nanoseconds{30 + 7 + 1000 + 5000}));
  CHECK(times_of_puts(1, 1, 8, options)[1] == nanoseconds{30 + 7 + 100 + 5000});
  const int status = peerbus::run_simulated(
      2,
      [](peerbus::bootstrap& boot) {
        simulated bus{boot};
        const auto until = deadline::after(std::chrono::minutes{1});
        const auto win = bus.make_window({.bytes = 16, .signals = 1}, until);
        if (boot.rank() != rank_id{0}) return;
        const nanoseconds start = simulated::now();
        test::expect_ok(bus.put(rank_id{1}, win, 0, bus.local(win).subspan(8)), "put");
        test::expect_ok(bus.flush(rank_id{1}), "flush");
        test::expect(simulated::now() - start == nanoseconds{30 + 100}, "sources are read");
        test::expect_ok(bus.quiet(), "quiet");
        test::expect(simulated::now() - start == nanoseconds{30 + 100 + 5000}, "it has arrived");
      },
      options);
  CHECK(status == 0);
}

TEST_CASE("messages that overtake each other in links keep what the contract promises") {
  fixed_links links{nanoseconds{2000}, 3};
  simulation_options options;
  options.links = &links;
  const auto without_jitter = ends_of_rounds(options);
  CHECK(ends_of_rounds(options) == without_jitter);
  options.jitter = nanoseconds{5000};
  CHECK(ends_of_rounds(options) != without_jitter);
  CHECK(!links.is_misused);
}

TEST_CASE("links that lose all messages end waits, and those for too few ranks are refused") {
  fixed_links links{nanoseconds{1}};
  links.is_broken = true;
  simulation_options options;
  options.links = &links;
  const int status = peerbus::run_simulated(
      2,
      [](peerbus::bootstrap& boot) {
        simulated bus{boot};
        const auto until = deadline::after(std::chrono::minutes{1});
        const auto win = bus.make_window({.bytes = 0, .signals = 1}, until);
        const rank_id peer{1 - boot.rank().index()};
        test::expect_ok(bus.signal(peer, win, arrival, 1), "signal");
        test::expect_code(bus.wait(win, arrival, 1, deadline::never(), {}), errc::timed_out,
                          "wait");
      },
      options);
  CHECK(status == 0);
  test::expect_error(errc::invalid_argument, {"more than 8 ranks"}, [&options] {
    static_cast<void>(peerbus::run_simulated(9, [](peerbus::bootstrap&) {}, options));
  });
}

namespace {

/// A transport that breaks requirement 5: every signal overtakes the puts before it that no signal
/// has followed yet.
class overtaken : public peerbus::transport_decorator<simulated, peerbus::transport_refinements{}> {
 public:
  using transport_decorator::transport_decorator;
  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    const errc code = inner().put(peer, memory, offset, source.first(source.size() / 2));
    held_.push_back({peer, &memory, offset + source.size() / 2, source.subspan(source.size() / 2)});
    return code;
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    const errc code = inner().signal(peer, memory, id, value);
    for (const held& late : held_)
      static_cast<void>(inner().put(late.peer, *late.memory, late.offset, late.source));
    held_.clear();
    return code;
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    const errc code = put(peer, memory, offset, source);
    return code == errc::ok ? signal(peer, memory, id, value) : code;
  }

 private:
  struct held {
    rank_id peer;
    const window* memory;
    std::size_t offset;
    std::span<const std::byte> source;
  };
  std::vector<held> held_;
};

/// A ring of slots whose writer does not wait until a slot is free.
void write_without_permission(communicator<any_transport>& comm) {
  constexpr std::size_t slots = 4;
  auto win = comm.make_window(slots * 8 + 100 * 8, 1);
  const auto words = win.local<std::uint64_t>();
  for (std::uint64_t n = 1; n <= 100; ++n) {
    if (comm.rank() == rank_id{0}) {
      words[slots + n - 1] = n;
      test::expect_ok(
          win.put_signal(rank_id{1}, n % slots * 8, words.subspan(slots + n - 1, 1), arrival, n),
          "put_signal");
      simulated::advance(nanoseconds{400});
    } else {
      test::expect_ok(win.wait(arrival, n, deadline::never()), "wait");
      test::expect_equal(words[n % slots], n, "the word of a slot");
      simulated::advance(nanoseconds{100});
    }
  }
}

/// Runs `body` in several orders. Returns in how many it failed.
template <class Transport, class Body>
int failures(std::size_t ranks, nanoseconds jitter, Body body) {
  int count = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    count += peerbus::run_simulated(
        ranks,
        [&](peerbus::bootstrap& boot) {
          communicator<any_transport> comm{any_transport{Transport{boot}},
                                           {.timeout = std::chrono::seconds{1}}};
          body(comm);
        },
        delayed(jitter, seed));
  return count;
}

}  // namespace

TEST_CASE("a transport whose signals overtake puts is found out") {
  const auto rounds = [](auto& comm) {
    conformance::run_case<peerbus::codec::int8_per_token>(
        comm, {4, 64, 2, 8, oracle::routes::uniform, conformance::counts::full},
        peerbus::moe::compact{}, 2);
  };
  CHECK(failures<simulated>(3, nanoseconds{3000}, rounds) == 0);
  CHECK(failures<overtaken>(3, nanoseconds{3000}, rounds) == 5);
}

TEST_CASE("a protocol that only works by good luck is found out") {
  CHECK(failures<simulated>(2, nanoseconds{0}, write_without_permission) == 0);
  CHECK(failures<simulated>(2, nanoseconds{5000}, write_without_permission) > 0);
}

TEST_CASE("ranks of a node begin with different ranks of the next") {
  simulation_options options = two_nodes();
  options.platform.levels[0].ranks = 3;
  std::vector<std::vector<std::size_t>> orders(9);
  const int status = peerbus::run_simulated(
      9,
      [&](peerbus::bootstrap& boot) {
        const communicator<any_transport> comm{any_transport{simulated{boot}}};
        for (const rank_id peer : comm.peers()) orders[comm.rank().index()].push_back(peer.index());
      },
      options);
  CHECK(status == 0);
  CHECK(orders[0] == std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(orders[4] == std::vector<std::size_t>{5, 3, 7, 8, 0, 1, 2, 6});
  CHECK(orders[8] == std::vector<std::size_t>{6, 7, 2, 3, 4, 5, 0, 1});
  for (std::size_t step = 0; step < 8; ++step) {
    std::set<std::size_t> visited;
    for (const auto& order : orders) visited.insert(order[step]);
    CHECK(visited.size() == 9);
  }
}

TEST_CASE("lanes of a rank run at the same time, and share what they throw") {
  CHECK(peerbus::run_simulated(1, [](peerbus::bootstrap&) {
          using peerbus::simulated;
          const auto begin = simulated::now();
          simulated::run_lanes(3, [](peerbus::lane own) {
            simulated::advance(std::chrono::nanoseconds{100 * (own.index + 1)});
          });
          CHECK(simulated::now() - begin == std::chrono::nanoseconds{300});
          try {
            simulated::run_lanes(3, [](peerbus::lane own) {
              if (own.index != 0) throw std::runtime_error{std::to_string(own.index)};
            });
            FAIL("expected an exception");
          } catch (const std::runtime_error& thrown) {
            CHECK(std::string{thrown.what()} == "1");
          }
          CHECK_THROWS_WITH(simulated::run_lanes(0, [](peerbus::lane) {}),
                            doctest::Contains("run_lanes: 0 lanes, expected 1 to"));
        }) == 0);
}

TEST_CASE("rows that are not carried take the time of rows that are") {
  const auto run = [](std::size_t most_carried) {
    simulation_options options = two_nodes();
    options.most_carried_bytes = most_carried;
    nanoseconds end{0};
    const int status = peerbus::run_simulated(
        4,
        [&](peerbus::bootstrap& boot) {
          communicator<simulated> comm{simulated{boot}};
          auto win = comm.make_window(20'000, 1);
          std::ranges::fill(win.local().first(10'000), std::byte{1});
          comm.barrier();
          const rank_id next{(comm.rank().index() + 1) % comm.size()};
          test::expect_ok(win.put_signal(next, 10'000, win.local().first(10'000), arrival, 1),
                          "put_signal");
          test::expect_ok(win.wait(arrival, 1, deadline::never()), "wait");
          test::expect_equal(win.local()[10'000] == std::byte{1}, most_carried >= 10'008,
                             "whether the bytes came");
          end = std::max(end, simulated::now());
        },
        options);
    CHECK(status == 0);
    return end;
  };
  CHECK(run(1000) == run(100'000));
}

TEST_CASE("impossible platforms and callers are refused by name") {
  const auto refused_options = [](auto change, std::initializer_list<std::string_view> texts) {
    simulation_options options = two_nodes();
    change(options);
    test::expect_error(errc::invalid_argument, texts, [&] {
      static_cast<void>(peerbus::run_simulated(1, [](peerbus::bootstrap&) {}, options));
    });
  };
  const auto refused = [&](auto change, std::initializer_list<std::string_view> texts) {
    refused_options([&](simulation_options& options) { change(options.platform); }, texts);
  };
  refused([](auto& given) { given.levels.clear(); }, {"platform 'two nodes': no levels"});
  refused([](auto& given) { given.levels[0].ranks = 0; }, {"level 'node': ranks is 0, expected"});
  refused([](auto& given) { given.levels[1].ranks = 4; }, {"level 'network': ranks is 4"});
  refused([](auto& given) { given.levels[1].port = 2; }, {"port is 2, expected less than 2"});
  refused([](auto& given) { given.levels[1].gb_per_s = 0; }, {"gb_per_s is 0.0", "expected 1e-6"});
  refused([](auto& given) { given.ports[1].ranks = 0; }, {"port 'card': ranks is 0"});
  refused([](auto& given) { given.costs.poll_ns = 0; }, {"costs: poll_ns is 0.0"});
  refused([](auto& given) { given.costs.copy_gb_per_s = -1; }, {"costs: copy_gb_per_s is -1.0"});
  refused_options([](auto& given) { given.jitter = nanoseconds{-5}; }, {"jitter is -5 ns"});
  refused_options([](auto& given) { given.jitter = nanoseconds::max(); }, {"jitter is 92233"});
  refused_options([](auto& given) { given.stack_bytes = 0; }, {"stack_bytes is 0, expected at"});
  CHECK(peerbus::run_threads(1, [](peerbus::bootstrap& boot) {
          test::expect_error(errc::unsupported, {"run_simulated has started"},
                             [&] { const simulated bus{boot}; });
        }) == 0);
}

}  // namespace simulated_test
