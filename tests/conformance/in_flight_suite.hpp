// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// Several batches of one exchange between dispatch and combine, by halves of operations, in any
/// order that the contract allows.
namespace conformance {

/// What all ranks do next with batch `number`.
struct action {
  enum class kind : char {
    send = 'S',          ///< dispatch_send
    send_bad = 'X',      ///< the same, refused by one rank; taken up by `receive`
    receive = 'R',       ///< dispatch_recv
    dispatch = 'D',      ///< both, on some ranks as one call
    dispatch_bad = 'Y',  ///< both, refused by one rank
    run = 'E',           ///< the experts
    announce = 's',      ///< combine_send
    announce_bad = 'x',  ///< the same, but one rank calls combine with a bad `out`
    finish = 'r',        ///< combine_recv
    finish_bad = 'y',    ///< the same, with a bad `out` on one rank first
    combine = 'C',       ///< both, on some ranks as one call
    combine_bad = 'c',   ///< both, refused by one rank
  };
  kind what;
  std::uint64_t number;
};

/// "S1 S2 R1" as actions.
inline std::vector<action> actions_of(std::string_view text) {
  std::vector<action> result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    result.push_back(
        {static_cast<action::kind>(text[0]), std::stoull(std::string{text.substr(1, end - 1)})});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

inline std::string describe(const action& one) {
  return static_cast<char>(one.what) + std::to_string(one.number);
}

/// `count` actions, drawn from what the contract allows at each point, then what brings all batches
/// home. The same on all ranks. With `slots`, a dispatch takes the rows of the batch that had its
/// set, even if it is refused.
inline std::vector<action> random_actions(std::size_t in_flight, std::size_t count,
                                          std::uint64_t seed, bool slots) {
  using kind = action::kind;
  enum class stage { free, sent, received, run, announced, doomed };
  struct set {
    stage at = stage::free;
    std::uint64_t number = 0;
    std::uint64_t refused = 0;  ///< a bad dispatch that is to be received
  };
  std::vector<set> sets(in_flight);
  std::vector<action> result;
  std::uint64_t latest = 0;
  oracle::random numbers{seed};
  const auto add = [&](kind what, std::uint64_t number) { result.push_back({what, number}); };

  const auto begin = [&] {
    set& one = sets[(latest + 1) % in_flight];
    if (one.refused != 0 || one.at == stage::sent || one.at == stage::announced ||
        one.at == stage::doomed)
      return false;
    ++latest;
    switch (numbers.below(10)) {
      case 0:
        add(kind::send_bad, latest);
        one.refused = latest;
        if (slots) one.at = stage::free;
        break;
      case 1:
        add(kind::dispatch_bad, latest);
        if (slots) one.at = stage::free;
        break;
      case 2:
        add(kind::dispatch, latest);
        one = {stage::received, latest, 0};
        break;
      default:
        add(kind::send, latest);
        one = {stage::sent, latest, 0};
        break;
    }
    return true;
  };
  const auto move_on = [&](set& one) {
    if (one.refused != 0) {
      add(kind::receive, std::exchange(one.refused, 0));
      return true;
    }
    switch (one.at) {
      case stage::free: return false;
      case stage::sent:
        add(kind::receive, one.number);
        one.at = stage::received;
        return true;
      case stage::received:
        add(kind::run, one.number);
        one.at = stage::run;
        return true;
      case stage::run:
        switch (numbers.below(6)) {
          case 0:
            add(kind::combine, one.number);
            one.at = stage::free;
            break;
          case 1: add(kind::combine_bad, one.number); break;
          case 2:
            add(kind::announce_bad, one.number);
            one.at = stage::doomed;
            break;
          default:
            add(kind::announce, one.number);
            one.at = stage::announced;
            break;
        }
        return true;
      case stage::announced:
        add(numbers.below(4) == 0 ? kind::finish_bad : kind::finish, one.number);
        one.at = stage::free;
        return true;
      case stage::doomed:
        add(kind::finish, one.number);
        one.at = stage::run;
        return true;
    }
    return false;
  };
  while (result.size() < count) {
    if (numbers.below(3) == 0 && begin()) continue;
    move_on(sets[numbers.below(in_flight)]);
  }
  for (set& one : sets)
    while (move_on(one)) {
    }
  return result;
}

/// Carries out actions on one rank and checks all that comes of them.
template <class Exchange, class Codec, class Layout>
class pipeline {
 public:
  pipeline(Exchange& moe, const exchange_case& shapes, std::size_t ranks, peerbus::rank_id rank,
           std::uint64_t seed)
      : moe_{moe},
        shapes_{shapes},
        ranks_{ranks},
        rank_{rank},
        seed_{seed},
        own_{seed * 77 + rank.index()} {}

  void carry_out(const action& now) {
    using kind = action::kind;
    // Ranks drift apart, by luck and by this.
    for (std::size_t i = own_.below(4); i > 0; --i) std::this_thread::yield();
    switch (now.what) {
      case kind::send: send(now.number, own_.below(2) == 0); break;
      case kind::send_bad: send_bad(now.number); break;
      case kind::receive: receive(now.number); break;
      case kind::dispatch: dispatch(now.number); break;
      case kind::dispatch_bad:
        if (own_.below(2) == 0) {
          send_bad(now.number);
          receive(now.number);
        } else {
          dispatch_bad(now.number);
        }
        break;
      case kind::run: test::run_experts(*at(now.number).got); break;
      case kind::announce: moe_.combine_send(*at(now.number).got); break;
      case kind::announce_bad:
        if (bad(now.number))
          expect_bad_out(now.number, [&](auto out) { moe_.combine(*at(now.number).got, out); });
        else
          moe_.combine_send(*at(now.number).got);
        at(now.number).doomed = true;
        break;
      case kind::finish: finish(now.number); break;
      case kind::finish_bad:
        if (bad(now.number))
          expect_bad_out(now.number,
                         [&](auto out) { moe_.combine_recv(*at(now.number).got, out); });
        finish(now.number);
        break;
      case kind::combine:
        if (own_.below(2) == 0) {
          combine(now.number, [this](const auto& got, auto out) { moe_.combine(got, out); });
        } else {
          moe_.combine_send(*at(now.number).got);
          finish(now.number);
        }
        break;
      case kind::combine_bad: {
        const auto& got = *at(now.number).got;
        if (bad(now.number))
          expect_bad_out(now.number, [&](auto out) { moe_.combine(got, out); });
        else
          expect_refused("combine", now.number,
                         [&] { moe_.combine(got, scratch(at(now.number).tokens.size())); });
        break;
      }
    }
  }

 private:
  struct batch {
    std::uint64_t number = 0;
    test::scenario from;
    std::vector<peerbus::bf16> tokens;
    peerbus::moe::ticket begun{};
    std::optional<typename Exchange::received_type> got;
    bool refused = false;
    bool doomed = false;
  };

  batch& at(std::uint64_t number) { return batches_.at(number); }
  batch& make(std::uint64_t number) {
    batch& one = batches_[number];
    one.number = number;
    one.from = make_scenario(shapes_, ranks_, seed_ + number);
    one.tokens = one.from.inputs[rank_.index()].tokens;
    return one;
  }
  /// Whether this rank is the one that spoils what all do with a batch.
  [[nodiscard]] std::size_t bad_rank(std::uint64_t number) const {
    return static_cast<std::size_t>(number * 5 + seed_) % ranks_;
  }
  [[nodiscard]] bool bad(std::uint64_t number) const { return bad_rank(number) == rank_.index(); }
  std::span<peerbus::bf16> scratch(std::size_t values) {
    out_.assign(values, peerbus::bf16::from_bits(0xdead));
    return out_;
  }

  void send(std::uint64_t number, bool narrow) {
    batch& one = make(number);
    // The routing is read during the call only.
    std::vector<std::int64_t> experts = one.from.inputs[rank_.index()].experts;
    std::vector<float> weights = one.from.inputs[rank_.index()].weights;
    if (narrow) {
      const std::vector<std::int32_t> ids(experts.begin(), experts.end());
      one.begun = moe_.dispatch_send(one.tokens, {ids, weights});
    } else {
      one.begun = moe_.dispatch_send(one.tokens, {experts, weights});
    }
    test::expect_equal(one.begun.number, number, "ticket");
    std::fill(experts.begin(), experts.end(), 0);
    std::fill(weights.begin(), weights.end(), -3.0F);
  }
  void check_rows(batch& one) {
    // The tokens are free again.
    std::fill(one.tokens.begin(), one.tokens.end(), peerbus::bf16::from_bits(0x5555));
    test::expect_equal(one.got->ticket().number, one.number, "ticket of the rows");
    check_received(one);
  }
  void check_received(const batch& one) const {
    // With outputs at home, `outputs()` is not to be had; what combine gives tells all the same.
    if (moe_.config().outputs == peerbus::moe::outputs_at::expert)
      test::check_received(*one.got, one.from, rank_, {.slots = shapes_.max_tokens});
  }
  void receive(std::uint64_t number) {
    batch& one = at(number);
    if (one.refused) {
      if (!bad(number))
        expect_refused("dispatch", number, [&] { (void)moe_.dispatch_recv(one.begun); });
      return;
    }
    one.got = moe_.dispatch_recv(one.begun);
    check_rows(one);
  }
  void dispatch(std::uint64_t number) {
    if (own_.below(2) == 0) {
      send(number, false);
      return receive(number);
    }
    batch& one = make(number);
    const oracle::input& mine = one.from.inputs[rank_.index()];
    one.got = moe_.dispatch(one.tokens, {mine.experts, mine.weights});
    check_rows(one);
  }

  void send_bad(std::uint64_t number) {
    if (!bad(number)) {
      send(number, false);
      at(number).refused = true;
      return;
    }
    batch& one = make(number);
    one.refused = true;
    expect_bad_input(
        one, [&](auto tokens, const auto& route) { (void)moe_.dispatch_send(tokens, route); });
  }
  void dispatch_bad(std::uint64_t number) {
    batch& one = make(number);
    one.refused = true;
    const oracle::input& mine = one.from.inputs[rank_.index()];
    if (bad(number))
      expect_bad_input(one,
                       [&](auto tokens, const auto& route) { (void)moe_.dispatch(tokens, route); });
    else
      expect_refused("dispatch", number,
                     [&] { (void)moe_.dispatch(one.tokens, {mine.experts, mine.weights}); });
  }

  void finish(std::uint64_t number) {
    batch& one = at(number);
    if (!one.doomed)
      return combine(
          number, [this](const auto& got, auto out) { moe_.combine_recv(got, out); },
          !peerbus::moe::slot_layout<Layout>);
    one.doomed = false;
    if (!bad(number))
      expect_refused("combine", number,
                     [&] { moe_.combine_recv(*one.got, scratch(one.tokens.size())); });
  }
  template <class Combine>
  void combine(std::uint64_t number, Combine&& bring_home, bool rows_are_kept = true) {
    batch& one = at(number);
    // Rows stay as they are while later batches come and go, unless `combine_send` gives them up.
    if (rows_are_kept) check_received(one);
    const oracle::input& mine = one.from.inputs[rank_.index()];
    bring_home(*one.got, scratch(mine.tokens.size()));
    test::check_combined(out_, test::expected_of<Codec, Layout>(one.from.shape, mine),
                         shapes_.hidden, 0);
  }

  template <class Dispatch>
  void expect_bad_input(batch& one, Dispatch&& call) {
    const oracle::input& mine = one.from.inputs[rank_.index()];
    one.tokens.emplace_back();
    test::expect_error(
        peerbus::errc::invalid_argument,
        {"dispatch " + std::to_string(one.number), "values, expected a multiple of hidden"}, [&] {
          call(std::span<const peerbus::bf16>{one.tokens},
               peerbus::moe::routing{mine.experts, mine.weights});
        });
  }
  template <class Combine>
  void expect_bad_out(std::uint64_t number, Combine&& call) {
    const std::size_t values = at(number).tokens.size() + 1;
    test::expect_error(peerbus::errc::invalid_argument,
                       {"combine " + std::to_string(number),
                        "out with " + std::to_string(values) + " values, expected tokens x hidden"},
                       [&] { call(scratch(values)); });
    expect_untouched();
  }
  template <class Call>
  void expect_refused(std::string_view what, std::uint64_t number, Call&& call) {
    out_.clear();
    test::expect_error(peerbus::errc::refused,
                       {std::string{what} + ' ' + std::to_string(number) + " did not happen",
                        "rank " + std::to_string(bad_rank(number)) + " was given"},
                       call);
    expect_untouched();
  }
  void expect_untouched() const {
    for (const peerbus::bf16 value : out_)
      test::expect_equal(value.bits, 0xdeadU, "a value of out");
  }

  Exchange& moe_;
  exchange_case shapes_;
  std::size_t ranks_;
  peerbus::rank_id rank_;
  std::uint64_t seed_;
  std::map<std::uint64_t, batch> batches_;
  std::vector<peerbus::bf16> out_;
  oracle::random own_;  ///< what ranks do differently
};

template <class Group, class Codec, class Layout = peerbus::moe::compact>
void check_actions(std::size_t ranks, std::size_t in_flight, const std::vector<action>& actions,
                   std::uint64_t seed = 0,
                   peerbus::moe::outputs_at outputs = peerbus::moe::outputs_at::expert) {
  CAPTURE(ranks);
  CAPTURE(in_flight);
  CAPTURE(seed);
  const exchange_case one{7, 32, 3, 6,
                          seed % 2 == 0 ? oracle::routes::zipf : oracle::routes::holes};
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    auto config = config_of(one);
    config.in_flight = in_flight;
    config.outputs = outputs;
    config.stream_from = stream_from(comm.rank(), seed);
    peerbus::moe::exchange moe{comm, config, oracle::codec_of<Codec>::make(), Layout{}};
    pipeline<decltype(moe), Codec, Layout> all{moe, one, comm.size(), comm.rank(), seed};
    std::string done;
    for (const action& now : actions) {
      done += ' ' + describe(now);
      try {
        all.carry_out(now);
      } catch (const std::exception& caught) {
        const std::size_t shown = std::min<std::size_t>(done.size(), 200);
        test::fail("seed ", seed, ", in_flight ", in_flight, ", after …",
                   done.substr(done.size() - shown), ": ", caught.what());
      }
    }
  });
  CHECK(worst_status == 0);
}

/// Orders that somebody would write on purpose.
template <class Group, class Codec>
void check_chosen_orders(std::size_t ranks) {
  struct chosen {
    std::size_t in_flight;
    std::string_view actions;
  };
  for (const chosen& one : {
           chosen{1, "S1 R1 E1 s1 r1 S2 R2 E2 s2 r2 D3 E3 C3"},
           {1, "S1 R1 S2 R2 E2 X3 R3 C2 X4 R4 S5 R5 E5 c5 x5 r5 s5 y5"},
           // While one computes, the other is on its way.
           {2, "S1 S2 R1 E1 s1 R2 E2 s2 r1 S3 r2 S4 R3 E3 s3 R4 E4 s4 r3 r4"},
           {2, "S1 S2 R2 R1 E2 E1 s2 s1 r1 r2"},
           {2, "S1 S2 R2 E2 C2 R1 E1 C1 S3 X4 R3 E3 R4 s3 r3"},
           // A refused dispatch leaves what its place held before.
           {2, "D1 D2 E1 X3 E2 R3 C1 C2 D4 E4 Y5 Y6 Y7 C4"},
           {3, "S1 S2 S3 R2 R1 R3 E1 E2 E3 s3 s1 r1 s2 r3 r2"},
           {3, "S1 S2 S3 R3 E3 s3 R1 E1 R2 s1 E2 s2 r2 r1 r3 S4 S5 S6 R5 R6 R4"},
           {3, "S1 X2 S3 R3 R2 R1 X4 R4 X5 E3 E1 s1 R5 C3 r1 S6 R6 E6 C6"},
           {5, "S1 S2 S3 S4 S5 R5 R1 R4 R2 R3 E3 C3 E5 C5 E1 s1 E4 s4 E2 s2 r4 r2 r1"},
           {5, "S1 X2 X3 X4 S5 R4 R5 R2 R1 R3 E5 E1 C1 C5 X6 R6 X7 R7 D8"},
           // Combines that never come.
           {3, "S1 S2 S3 R1 R2 R3 S4 S5 R5 R4 S6 S7 R6 R7 E6 E7 E5 C5 C6 C7"},
       }) {
    CAPTURE(one.actions);
    check_actions<Group, Codec>(ranks, one.in_flight, actions_of(one.actions), ranks);
  }
}

template <class Group, class Codec, class Layout = peerbus::moe::compact>
void check_random_orders(std::size_t ranks, std::size_t count, std::uint64_t seeds,
                         peerbus::moe::outputs_at outputs = peerbus::moe::outputs_at::expert) {
  // A sanitizer sees the same pairs of accesses in a fifth of the steps.
  if (test::is_sanitized) count /= 5;
  for (const std::size_t in_flight : {1U, 2U, 3U, 5U})
    for (std::uint64_t seed = 1; seed <= seeds; ++seed)
      check_actions<Group, Codec, Layout>(
          ranks, in_flight,
          random_actions(in_flight, count, 10 * seed + ranks, peerbus::moe::slot_layout<Layout>),
          seed, outputs);
}

}  // namespace conformance
