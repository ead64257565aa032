// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace phases_test {

// The halves of operations, called as they must not be.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::ticket;
using direct = test::threads_over<peerbus::loopback>;
using staged = test::threads_over<test::indirect<peerbus::loopback>>;

constexpr conformance::exchange_case shapes{7, 32, 3, 6};

/// One exchange and the inputs of its batches; what a rank does wrong, and that it leaves no trace.
template <peerbus::transport Transport>
class bench {
 public:
  bench(peerbus::communicator<Transport>& comm, std::size_t in_flight)
      : comm_{comm},
        moe{comm,
            {.experts = shapes.experts,
             .hidden = shapes.hidden,
             .top_k = shapes.top_k,
             .max_tokens = shapes.max_tokens,
             .in_flight = in_flight},
            int8_per_token{}} {
    for (std::uint64_t seed = 0; seed < 16; ++seed)
      inputs.push_back(conformance::make_scenario(shapes, comm.size(), seed));
  }

  const oracle::input& mine(std::uint64_t number) const {
    return inputs[number % inputs.size()].inputs[comm_.rank().index()];
  }
  ticket send(std::uint64_t number) {
    const oracle::input& one = mine(number);
    return moe.dispatch_send(one.tokens, {one.experts, one.weights});
  }
  auto receive(ticket begun) {
    const auto got = moe.dispatch_recv(begun);
    test::check_received(got, inputs[begun.number % inputs.size()], comm_.rank());
    test::run_experts(got);
    return got;
  }
  template <class Received>
  void finish(const Received& got) {
    const auto number = got.ticket().number;
    std::vector<bf16> out(mine(number).tokens.size());
    moe.combine_recv(got, out);
    const oracle::shape shape = inputs.front().shape;
    test::check_combined(out, oracle::combined<int8_per_token>(shape, mine(number)), shapes.hidden,
                         0);
  }
  template <class Received>
  void combine(const Received& got) {
    moe.combine_send(got);
    finish(got);
  }

  /// Each rank in turn makes a call that must fail there alone and change no byte anywhere.
  template <class Call>
  void expect_misuse(std::initializer_list<std::string_view> says, Call&& call) {
    for (const rank_id who : comm_.ranks()) {
      comm_.barrier();
      const auto part = moe.memory().local();
      const std::vector<std::byte> before{part.begin(), part.end()};
      comm_.barrier();
      if (comm_.rank() == who) test::expect_error(errc::invalid_argument, says, call);
      comm_.barrier();
      test::expect(std::equal(before.begin(), before.end(), part.begin()), "nothing to be written");
      comm_.barrier();
    }
  }

 private:
  peerbus::communicator<Transport>& comm_;

 public:
  peerbus::moe::exchange<Transport, int8_per_token> moe;
  std::vector<test::scenario> inputs;
};

}  // namespace

TEST_CASE_TEMPLATE("dispatch_recv of what is not to be received", Group, direct, staged) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    const int worst_status = Group::run(n, [](auto& comm) {
      bench on{comm, 3};
      const auto misuse = [&](std::uint64_t number, std::string_view says) {
        on.expect_misuse({"dispatch_recv was given ticket " + std::to_string(number), says},
                         [&] { (void)on.moe.dispatch_recv(ticket{number, &on.moe}); });
      };
      misuse(0, "expected one that dispatch_send gave");
      misuse(1, "expected one that dispatch_send gave");
      const auto first = on.send(1);
      on.expect_misuse({"dispatch_recv was given a ticket of another exchange"},
                       [&] { (void)on.moe.dispatch_recv(ticket{1, &comm}); });
      misuse(0, "expected one that dispatch_send gave, of the latest 3");
      misuse(2, "expected one that dispatch_send gave");
      misuse(~std::uint64_t{0}, "expected one that dispatch_send gave");
      const auto a = on.receive(first);
      misuse(1, "which is received, expected one that is not received yet");
      on.moe.combine_send(a);
      misuse(1, "which is on its way home, expected one that is not received yet");
      on.finish(a);
      misuse(1, "which is combined already, expected one that is not received yet");
      const auto second = on.send(2);
      const auto third = on.send(3);
      const auto fourth = on.send(4);
      misuse(1, "expected one that dispatch_send gave, of the latest 3");
      misuse(5, "expected one that dispatch_send gave, of the latest 3");
      on.expect_misuse({"dispatch 5 needs the place of dispatch 2, which is not received yet",
                        "expected no more than in_flight batches, 3, on their way: call "
                        "dispatch_recv of 2 first"},
                       [&] { (void)on.send(5); });
      const auto c = on.receive(third);
      const auto b = on.receive(second);
      on.moe.combine_send(b);
      on.expect_misuse({"dispatch 5 needs the place of dispatch 2, which is on its way home"},
                       [&] { (void)on.send(5); });
      const auto d = on.receive(fourth);
      on.combine(d);
      on.finish(b);
      on.combine(c);
      // What failed was no call: this is the fifth.
      on.combine(on.receive(on.send(5)));
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("a ticket that was refused, and the batch before it", Group, direct, staged) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    const int worst_status = Group::run(n, [](auto& comm) {
      bench on{comm, 2};
      const bool bad = comm.rank().index() + 1 == comm.size();
      const auto a = on.receive(on.send(1));
      const auto b = on.receive(on.send(2));
      ticket third{};
      if (bad) {
        test::expect_error(errc::invalid_argument, {"dispatch 3", "attachment 1 of 8 bytes"}, [&] {
          const std::vector<std::byte> extra(8);
          const oracle::input& mine = on.mine(3);
          (void)on.moe.dispatch_send(mine.tokens, {mine.experts, mine.weights},
                                     {.attachments = {std::span<const std::byte>{}, extra}});
        });
      } else {
        third = on.send(3);
        // Until it is known that the dispatch did not happen, its place is taken.
        test::expect_error(errc::invalid_argument,
                           {"the rows of dispatch 1, which dispatch 3 has replaced"},
                           [&] { on.moe.combine_send(a); });
        test::expect_error(errc::refused, {"dispatch 3 did not happen", "attachment 1 of 8 bytes"},
                           [&] { (void)on.moe.dispatch_recv(third); });
      }
      on.expect_misuse({"dispatch_recv was given ticket 3"},
                       [&] { (void)on.moe.dispatch_recv(ticket{3, &on.moe}); });
      on.combine(b);
      on.combine(a);
      on.combine(on.receive(on.send(4)));
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("halves of combine in the wrong order, twice, or of the wrong rows", Group,
                   direct, staged) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    const int worst_status = Group::run(n, [](auto& comm) {
      bench on{comm, 2};
      bench other{comm, 2};
      std::vector<bf16> out(on.mine(1).tokens.size());
      const auto foreign = other.receive(other.send(1));
      const auto first = on.send(1);
      // No rows of its own to show yet: those of another exchange.
      on.expect_misuse({"combine_send was given the rows of another exchange"},
                       [&] { on.moe.combine_send(foreign); });
      const auto a = on.receive(first);
      on.expect_misuse({"combine was given the rows of another exchange"},
                       [&] { on.moe.combine(foreign, out); });
      on.expect_misuse(
          {"combine_recv was given the rows of dispatch 1, which is received, expected "
           "one that is on its way home"},
          [&] { on.moe.combine_recv(a, out); });
      on.moe.combine_send(a);
      on.expect_misuse({"combine_recv was given the rows of another exchange"},
                       [&] { on.moe.combine_recv(foreign, out); });
      on.expect_misuse({"combine_send was given the rows of dispatch 1, which is on its way home, "
                        "expected one that is received"},
                       [&] { on.moe.combine_send(a); });
      on.expect_misuse({"combine was given the rows of dispatch 1, which is on its way home"},
                       [&] { on.moe.combine(a, out); });
      // A bad `out` can be mended, any number of times.
      std::vector<bf16> wrong(out.size() + 32, bf16::from_bits(0xdead));
      on.expect_misuse({"combine 1 was given out with", "expected tokens x hidden"},
                       [&] { on.moe.combine_recv(a, wrong); });
      if (!out.empty())
        test::expect_error(errc::invalid_argument, {"combine 1 was given out that is null"}, [&] {
          on.moe.combine_recv(a, std::span<bf16>{static_cast<bf16*>(nullptr), out.size()});
        });
      for (const bf16 value : wrong) test::expect_equal(value.bits, 0xdeadU, "a value of out");
      on.finish(a);
      for (const std::string_view half : {"combine_send", "combine_recv", "combine"})
        on.expect_misuse(
            {std::string{half} + " was given the rows of dispatch 1, which is combined already"},
            [&] {
              if (half == "combine_send") on.moe.combine_send(a);
              if (half == "combine_recv") on.moe.combine_recv(a, out);
              if (half == "combine") on.moe.combine(a, out);
            });
      const auto b = on.receive(on.send(2));
      const auto c = on.receive(on.send(3));
      on.expect_misuse({"combine_send was given the rows of dispatch 1, which dispatch 3 has "
                        "replaced; expected those of the latest 2"},
                       [&] { on.moe.combine_send(a); });
      on.combine(c);
      on.combine(b);
      other.combine(foreign);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("a rank that does not come to a half is named", Group, direct, staged) {
  for (const std::size_t n : {2U, 3U})
    for (const bool combining : {false, true}) {
      const int worst_status = Group::run(n, [combining](auto& comm) {
        auto done = comm.make_window(0, comm.size());
        bench on{comm, 2};
        const bool absent = comm.rank() == rank_id{0};
        const auto soon = [] { return peerbus::deadline::after(std::chrono::milliseconds{50}); };
        const auto a = on.receive(on.send(1));
        if (absent) {
          for (const rank_id peer : comm.ranks())
            if (peer != comm.rank())
              done.await(peerbus::signal_id{static_cast<std::uint32_t>(peer.index())}, 1,
                         peerbus::deadline::after(std::chrono::seconds{60}), peer);
          return;
        }
        std::vector<bf16> out(on.mine(1).tokens.size());
        if (combining) {
          on.moe.combine_send(a);
          test::expect_error(
              errc::timed_out,
              {"combine 1: waited ", " for outputs of rank 0 (epoch 0, expected 1; "},
              [&] { on.moe.combine_recv(a, out, {.until = soon()}); });
          test::expect_error(errc::poisoned, {"combine_recv"},
                             [&] { on.moe.combine_recv(a, out); });
        } else {
          const auto second = on.send(2);
          test::expect_error(
              errc::timed_out,
              {"dispatch 2: waited ", " for counts of rank 0 (epoch 0, expected 2; "},
              [&] { (void)on.moe.dispatch_recv(second, {.until = soon()}); });
          test::expect_error(errc::poisoned, {"dispatch_recv"},
                             [&] { (void)on.moe.dispatch_recv(second); });
          test::expect_error(errc::poisoned, {"dispatch"}, [&] { (void)on.send(3); });
          test::expect_error(errc::poisoned, {"combine_send"}, [&] { on.moe.combine_send(a); });
        }
        test::expect_ok(
            done.signal(rank_id{0}, static_cast<peerbus::signal_id>(comm.rank().index()), 1),
            "signal");
      });
      CHECK(worst_status == 0);
    }
}

}  // namespace phases_test
