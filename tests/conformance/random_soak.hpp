// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fault.hpp>

#include "bootstrap/support.hpp"
#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/tally.hpp"

/// Groups whose transports, shapes, layouts, codecs and faults are drawn from a seed: every row is
/// right, and a call that fails ends the operations of all ranks, by an error that names it.
namespace random_soak {

using communicator = peerbus::communicator<peerbus::any_transport>;
using peerbus::rank_id;
namespace moe = peerbus::moe;

/// What all groups over a transport have done, in memory that their ranks share.
struct totals {
  std::atomic<std::uint64_t> operations{0};  ///< dispatches and combines that ranks began
  std::atomic<std::uint64_t> bytes{0};       ///< of the tokens that ranks gave to experts
  std::atomic<std::uint64_t> delayed{0};
  std::atomic<std::uint64_t> reordered{0};
  std::atomic<std::uint64_t> stalled{0};
  std::atomic<std::uint64_t> failed{0};  ///< requests, each of which all ranks were told of
};

/// A transport with faults that adds those that a rank has met to `totals`.
template <peerbus::transport Transport>
class counted : public peerbus::fault<Transport> {
 public:
  counted(peerbus::bootstrap& boot, peerbus::fault_schedule schedule, totals& met)
      : peerbus::fault<Transport>{boot, std::move(schedule)}, met_{&met} {}
  counted(counted&& other) noexcept
      : peerbus::fault<Transport>{std::move(other)}, met_{std::exchange(other.met_, nullptr)} {}
  counted(const counted&) = delete;
  counted& operator=(counted&&) = delete;
  counted& operator=(const counted&) = delete;
  ~counted() {
    if (met_ == nullptr) return;
    const peerbus::fault_counts now = this->faults();
    met_->delayed += now.delayed;
    met_->reordered += now.reordered;
    met_->stalled += now.stalled;
    met_->failed += now.failed;
  }

 private:
  totals* met_;
};

/// A transport, and how its ranks run.
struct carrier {
  std::string_view name;
  peerbus::any_transport (*make)(peerbus::bootstrap&, peerbus::fault_schedule, totals&);
  int (*run)(std::size_t ranks, const std::function<void(peerbus::bootstrap&)>& body);

  /// Returns the transport `Transport`, whose ranks meet as by `Start`.
  template <class Transport, class Start>
  static carrier of(std::string_view name) {
    return {name,
            [](peerbus::bootstrap& boot, peerbus::fault_schedule schedule, totals& met) {
              return peerbus::any_transport{counted<Transport>{boot, std::move(schedule), met}};
            },
            [](std::size_t ranks, const std::function<void(peerbus::bootstrap&)>& body) {
              return Start::run(ranks, [&body](peerbus::bootstrap& boot) { body(boot); });
            }};
  }
};

/// A group, and the faults of its ranks.
struct group {
  std::uint64_t seed;
  std::size_t ranks;
  peerbus::fault_schedule faults;  ///< of all ranks
  bool has_failure;                ///< a request of the victim fails
  rank_id victim;
  std::uint64_t request;
  peerbus::errc fail_with;

  static group draw(std::uint64_t seed) {
    oracle::random from{seed};
    group drawn{};
    drawn.seed = seed;
    drawn.ranks = 2 + from.below(5);
    drawn.faults.seed = seed;
    drawn.faults.delay.chance = from.unit();
    drawn.faults.reorder.chance = from.unit();
    drawn.faults.longest_delay = 1 + from.below(40);
    drawn.faults.held_calls = 2 + from.below(100);
    drawn.faults.stall = {.chance = 0.01, .limit = 5};
    drawn.faults.stall_time = std::chrono::microseconds{from.below(1'000)};
    drawn.has_failure = from.below(2) == 0;
    drawn.victim = rank_id{from.below(drawn.ranks)};
    drawn.request = 1 + from.below(600);
    drawn.fail_with = from.below(2) == 0 ? peerbus::errc::system : peerbus::errc::peer_dead;
    return drawn;
  }
  [[nodiscard]] peerbus::fault_schedule faults_of(rank_id rank) const {
    peerbus::fault_schedule made = faults;
    if (has_failure && rank == victim) made.fail = peerbus::fault_rule::once_at(request);
    made.fail_with = fail_with;
    return made;
  }
};

inline conformance::exchange_case draw_case(oracle::random& from) {
  conformance::exchange_case drawn{};
  drawn.experts = 1 + from.below(24);
  drawn.hidden = 16 * (1 + from.below(9));
  drawn.top_k = 1 + from.below(std::min<std::size_t>(drawn.experts, 8));
  drawn.max_tokens = 1 + from.below(16);
  drawn.routes = static_cast<oracle::routes>(from.below(5));
  drawn.tokens = static_cast<conformance::counts>(from.below(4));
  for (std::size_t& bytes : drawn.attachments) bytes = 4 * from.below(8);
  drawn.outputs = from.below(2) == 0 ? moe::outputs_at::expert : moe::outputs_at::home;
  drawn.in_flight = 1 + from.below(3);
  drawn.note_bytes = from.below(20);
  drawn.output_attachment = 4 * from.below(4);
  return drawn;
}

/// Does a round while another batch is on its way, received and not combined.
template <class Codec, class Layout>
void check_two_in_flight(moe::exchange<peerbus::any_transport, Codec, Layout>& exchange,
                         const test::scenario& held, const test::scenario& other, rank_id rank,
                         const Layout& layout) {
  const auto got = test::dispatch(exchange, held, rank);
  test::check_round(exchange, other, rank, layout);
  test::run_experts(got);
  const oracle::input& own = held.inputs[rank.index()];
  std::vector<peerbus::bf16> out(own.tokens.size());
  exchange.combine(got, out);
  static_cast<void>(test::check_combined(out, test::expected_of<Codec, Layout>(held.shape, own),
                                         held.shape.hidden, 0));
}

/// Does rounds of an exchange, each of other tokens.
template <class Codec, class Layout>
void serve(communicator& comm, oracle::random& from, totals& done, const Layout& layout) {
  const conformance::exchange_case drawn = conformance::fit<Codec>(draw_case(from));
  auto config = conformance::config_of(drawn);
  config.stream_from = conformance::stream_from(comm.rank(), drawn.experts);
  moe::exchange exchange{comm, config, oracle::codec_of<Codec>::make(), layout};
  const auto draw_scenario = [&] {
    auto made = conformance::make_scenario(drawn, comm.size(), from.next());
    const auto& experts = made.inputs[comm.rank().index()].experts;
    done.operations += 2;
    done.bytes += experts.size() * drawn.hidden * sizeof(peerbus::bf16);
    return made;
  };
  // `check_round` fills what has to stay as it is, of all batches.
  const bool may_hold =
      drawn.in_flight > 1 &&
      !test::promises_of(layout, {comm.size(), drawn.experts, drawn.hidden, drawn.top_k},
                         drawn.max_tokens)
           .untouched_gaps;
  for (std::size_t rounds = 1 + from.below(20); rounds != 0; --rounds) {
    const auto next = draw_scenario();
    if (may_hold && from.below(2) == 0)
      check_two_in_flight(exchange, next, draw_scenario(), comm.rank(), layout);
    else
      test::check_round(exchange, next, comm.rank(), layout);
  }
}

/// Makes exchanges of any layout, one after the other, and serves by them.
inline void serve_all(communicator& comm, std::uint64_t seed, totals& done) {
  using peerbus::codec::bf16;
  using peerbus::codec::int8_per_token;
  oracle::random from{~seed};
  for (std::size_t exchanges = 1 + from.below(4); exchanges != 0; --exchanges)
    switch (from.below(7)) {
      case 0:
        serve<int8_per_token>(comm, from, done, moe::compact{.alignment = 1 + from.below(9)});
        break;
      case 1: serve<int8_per_token>(comm, from, done, moe::expert_slots{}); break;
      case 2: serve<int8_per_token>(comm, from, done, moe::automatic_by_rank{}); break;
      case 3: serve<bf16>(comm, from, done, moe::padded{}); break;
      case 4: serve<bf16>(comm, from, done, moe::rank_major{}); break;
      case 5: serve<bf16>(comm, from, done, moe::slots{}); break;
      default: serve<bf16>(comm, from, done, moe::automatic{}); break;
    }
  comm.barrier();
}

/// Fails unless `problem` is what a rank is told of the call that fails.
inline void check_error(const group& now, bool is_victim, const peerbus::error& problem) {
  using peerbus::errc;
  std::string says = "rank " + std::to_string(now.victim.index()) + " failed";
  if (is_victim) says = "failed by the fault schedule with seed " + std::to_string(now.seed);
  // Who ends by peer_dead seems to follow another rank, so the others may be told of any rank.
  if (!is_victim && now.fail_with == errc::peer_dead) says = "rank ";
  const std::string_view text = problem.what();
  test::expect(problem.code() == (is_victim ? now.fail_with : errc::peer_dead) &&
                   text.find(says) != text.npos,
               "the error of a call that fails, '", says, "', not '", text, "'");
}

/// Runs a group over `over`.
inline void run_group(const group& now, const carrier& over, totals& done) {
  const test::time_limit limit{120};
  const test::belongings before;
  const test::tally failed, served;
  const int worst_status = over.run(now.ranks, [&](peerbus::bootstrap& boot) {
    const bool is_victim = now.has_failure && boot.rank() == now.victim;
    try {
      communicator comm{over.make(boot, now.faults_of(boot.rank()), done),
                        {.timeout = std::chrono::minutes{1}}};
      serve_all(comm, now.seed, done);
    } catch (const peerbus::error& problem) {
      if (!now.has_failure) throw;
      check_error(now, is_victim, problem);
      if (is_victim) {
        failed.add();
        throw;
      }
    }
    served.add();
  });
  CHECK(worst_status == (failed.count() == 0 ? 0 : 1));
  CHECK(failed.count() + served.count() == now.ranks);
  CHECK(test::belongings{} == before);
}

/// Runs groups over the transports `all` in turn: as many as a soak of `count` has, or
/// PEERBUS_SOAK_GROUPS, from the seed PEERBUS_SEED on. A transport without a `run` is not there,
/// so that a seed has the same transport in each program. Prints what came of each.
inline void check(std::span<const carrier> all, std::uint64_t count) {
  std::vector<test::shared<totals>> done(all.size());
  std::vector<std::size_t> groups(all.size());
  test::for_each_seed("PEERBUS_SOAK_GROUPS", count, [&](std::uint64_t seed) {
    const std::size_t which = seed % all.size();
    CAPTURE(all[which].name);
    if (all[which].run == nullptr) return;
    const group now = group::draw(seed);
    CAPTURE(now.ranks);
    run_group(now, all[which], *done[which]);
    ++groups[which];
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const totals& of = *done[i];
    MESSAGE(all[i].name, ": ", groups[i], " groups, ", of.operations.load(), " operations, ",
            of.bytes.load(), " bytes; requests that were delayed ", of.delayed.load(),
            ", reordered ", of.reordered.load(), ", stalled ", of.stalled.load(), ", that failed ",
            of.failed.load());
  }
}

}  // namespace random_soak
