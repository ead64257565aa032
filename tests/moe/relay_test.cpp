// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/on_lanes.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace relay_test {

// What travels beside rows and outputs where an exchange relays, and what it takes at combine.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange;
using peerbus::moe::exchange_config;
using peerbus::moe::layout_by_rank;
using peerbus::moe::relay;
using test::lazy_hosts;
using threads = test::threads_over<lazy_hosts>;
/// For lanes, all of which put: `indirect` takes one thread at a time.
using plain_hosts = test::on_hosts<peerbus::loopback, peerbus::loopback>;

/// 13 experts do not divide by 4 ranks.
constexpr exchange_config config{.experts = 13,
                                 .hidden = 32,
                                 .top_k = 3,
                                 .max_tokens = 5,
                                 .in_flight = 2,
                                 .relay = relay::always};

struct grid {
  std::size_t ranks;
  test::hosts hosts;
};
constexpr grid grids[] = {{4, {2, false}}, {5, {2, false}}, {6, {3, true}}};

test::scenario scenario_of(std::size_t ranks, std::uint64_t seed) {
  test::scenario made{{ranks, config.experts, config.hidden, config.top_k}, {}};
  for (std::size_t r = 0; r < ranks; ++r)
    made.inputs.push_back(
        oracle::make_input(made.shape, r, 1 + (r + seed) % 5, oracle::routes::holes, seed));
  return made;
}

peerbus::moe::routing route_of(const oracle::input& mine) {
  return {std::span<const std::int64_t>{mine.experts}, mine.weights};
}

/// Places of experts: each expert once, or most of them at two ranks, which all use the second.
struct placed {
  placed(std::size_t ranks, bool twice) : owner(config.experts), chosen(config.experts) {
    std::vector<std::vector<std::uint32_t>> held(ranks);
    const auto put = [&](std::uint32_t e, std::size_t rank) {
      owner[e] = rank;
      if (std::ranges::find(held[rank], e) == held[rank].end()) held[rank].push_back(e);
    };
    for (std::uint32_t e = 0; e < config.experts; ++e) {
      put(e, e % ranks);
      put(e, (e + 1 + e / ranks) % ranks);
    }
    const std::size_t most = std::ranges::max(held, {}, &std::vector<std::uint32_t>::size).size();
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < held[r].size(); ++i)
        if (owner[held[r][i]] == r)
          chosen[held[r][i]] = static_cast<std::uint32_t>(logical.size() + i);
      held[r].resize(most, peerbus::moe::vacant);
      logical.insert(logical.end(), held[r].begin(), held[r].end());
    }
    if (!twice) owner = oracle::owners({ranks, config.experts, config.hidden, config.top_k});
  }

  /// Gives a configuration these places, if experts are at two ranks.
  [[nodiscard]] exchange_config in(exchange_config given, bool twice) const {
    if (!twice) return given;
    given.physical_to_logical = logical;
    given.replicas = {.policy = peerbus::moe::replica_policy::fixed, .chosen = chosen};
    return given;
  }

  std::vector<std::size_t> owner;  ///< the rank that gets the rows of each expert
  std::vector<std::uint32_t> chosen;
  std::vector<std::uint32_t> logical;
};

/// What an expert's rank writes beside the output of a row.
using mark = std::array<std::uint32_t, 3>;
mark mark_of(std::size_t writer, std::size_t home, std::size_t token, std::uint64_t round) {
  return {static_cast<std::uint32_t>(writer), static_cast<std::uint32_t>(100 * home + token),
          static_cast<std::uint32_t>(round)};
}

template <class Rows>
void mark_rows(const Rows& rows, std::size_t writer, std::uint64_t round) {
  for (std::size_t i = 0; i < rows.count(); ++i) {
    const auto origin = rows.origin(i);
    std::ranges::copy(mark_of(writer, origin.rank.index(), origin.token, round),
                      rows.template output_attachment<std::uint32_t>(i).begin());
  }
}
template <class Received>
void mark_all(const Received& got, std::size_t writer, std::uint64_t round) {
  if constexpr (requires {
                  got.experts();
                  got.experts()[0].id();
                })
    for (const auto& expert : got.experts()) mark_rows(expert, writer, round);
  else
    mark_rows(got, writer, round);
}

/// The rank of each copy of token `t`, in order; none where a slot names no expert.
std::vector<std::size_t> copies_of(const test::scenario& from, const oracle::input& mine,
                                   std::size_t t, bool by_rank,
                                   const std::vector<std::size_t>& owner) {
  std::vector<std::size_t> copies;
  std::set<std::size_t> ranks;
  for (std::size_t k = 0; k < config.top_k; ++k) {
    const auto e = mine.experts[t * config.top_k + k];
    copies.push_back(e == -1 ? from.shape.ranks : owner[static_cast<std::size_t>(e)]);
    if (e != -1) ranks.insert(copies.back());
  }
  return by_rank ? std::vector<std::size_t>(ranks.begin(), ranks.end()) : copies;
}

/// Checks what came home in a combine in which ranks attached as `attaches(rank)` says.
template <class Moe, class Attaches>
void check_returned(Moe& moe, peerbus::moe::ticket ticket, const test::scenario& from,
                    std::size_t rank, std::uint64_t round, bool by_rank,
                    const std::vector<std::size_t>& owner, Attaches&& attaches) {
  const oracle::input& mine = from.inputs[rank];
  for (std::size_t r = 0; r < from.shape.ranks; ++r)
    test::expect(moe.attached_by(ticket, rank_id{r}) == attaches(r), "attached by a rank");
  for (std::size_t t = 0; t < mine.count; ++t) {
    const auto copies = copies_of(from, mine, t, by_rank, owner);
    for (std::size_t copy = 0; copy < copies.size(); ++copy) {
      if (copies[copy] == from.shape.ranks || !attaches(copies[copy])) continue;
      const auto found = moe.template returned_attachment<std::uint32_t>(ticket, t, copy);
      test::expect(
          std::ranges::equal(found, mark_of(copies[copy], rank, t, round)),
          "the attachment of token " + std::to_string(t) + ", copy " + std::to_string(copy));
    }
  }
}

std::vector<bf16> combined(const test::scenario& from, const oracle::input& mine, bool by_rank,
                           const std::vector<std::size_t>& owner) {
  return test::two_levels::combined(from.shape, mine, oracle::codec_of<int8_per_token>::encode,
                                    by_rank, owner);
}
std::vector<bf16> combined(const test::scenario& from, const oracle::input& mine, bool by_rank) {
  return combined(from, mine, by_rank, oracle::owners(from.shape));
}

/// Calls `check(comm, twice, places)` on the ranks of all grids, with experts once and twice.
template <class Check>
void on_grids(Check&& check) {
  for (const grid& one : grids)
    for (const bool twice : {false, true}) {
      CAPTURE(one.ranks);
      CAPTURE(twice);
      test::pretended = one.hosts;
      const placed places{one.ranks, twice};
      CHECK(threads::run(one.ranks, [&](auto& comm) { check(comm, twice, places); }) == 0);
    }
}

}  // namespace

TEST_CASE_TEMPLATE("relay: output attachments come home by way of the sums", Layout,
                   peerbus::moe::compact, peerbus::moe::rank_major) {
  constexpr bool by_rank = layout_by_rank<Layout>;
  on_grids([](auto& comm, bool twice, const placed& places) {
    exchange_config with = places.in(config, twice);
    with.output_attachment = sizeof(mark);
    exchange moe{comm, with, int8_per_token{}, Layout{}};
    test::expect(moe.relay().relays, "two levels");
    const std::size_t rank = comm.rank().index();
    for (std::uint64_t round = 0; round < 4; ++round) {
      const test::scenario from = scenario_of(comm.size(), round);
      const oracle::input& mine = from.inputs[rank];
      const auto attaches = [&](std::size_t r) { return (r + round) % 3 != 0 && round != 2; };
      const auto sent = moe.dispatch_send(mine.tokens, route_of(mine));
      const auto before = moe.columns(sent).rows();
      const auto got = moe.dispatch_recv(sent);
      test::expect(got.columns().rows().data() == before.data(), "columns before rows");
      if (!twice) test::two_levels::check(got, from, rank);
      test::run_experts(got);
      if (attaches(rank)) mark_all(got, rank, round);
      std::vector<bf16> out(mine.tokens.size());
      if (round % 2 == 0) {
        moe.combine(got, out, {.attached = attaches(rank)});
      } else {
        moe.combine_send(got, {.attached = attaches(rank)});
        moe.combine_recv(got, out);
      }
      test::check_combined(out, combined(from, mine, by_rank, places.owner), config.hidden, 0);
      check_returned(moe, got.ticket(), from, rank, round, by_rank, places.owner, attaches);
      if (mine.count != 0 && !by_rank && mine.experts[0] == -1)
        test::expect_error(errc::invalid_argument, {"expected one that was sent"},
                           [&] { static_cast<void>(moe.returned_attachment(got.ticket(), 0, 0)); });
      test::expect_error(errc::unsupported, {"rows_of_blocks: relay is used"},
                         [&] { static_cast<void>(moe.rows_of_blocks(got.ticket())); });
    }
  });
}

TEST_CASE("relay: output attachments by several lanes") {
  test::pretended = {2, false};
  const int worst_status = test::threads_over<plain_hosts>::run(4, [](auto& comm) {
    exchange_config with = config;
    with.output_attachment = sizeof(mark);
    with.weights_at_combine = true;
    exchange moe{comm, with, int8_per_token{}};
    const std::size_t rank = comm.rank().index();
    for (std::uint64_t round = 0; round < 3; ++round) {
      const test::scenario from = scenario_of(comm.size(), round);
      const oracle::input& mine = from.inputs[rank];
      const std::vector<float> ones(mine.weights.size(), 1.0F);
      const auto got = moe.dispatch(
          mine.tokens, {std::span<const std::int64_t>{mine.experts}, std::span<const float>{ones}});
      test::run_experts(got);
      mark_all(got, rank, round);
      std::vector<bf16> out(mine.tokens.size());
      test::on_lanes(3, [&](peerbus::moe::lane as) {
        moe.combine(got, out, {.as = as, .terms = {.weights = mine.weights}, .attached = true});
      });
      test::check_combined(out, combined(from, mine, false), config.hidden, 0);
      check_returned(moe, got.ticket(), from, rank, round, false, oracle::owners(from.shape),
                     [](std::size_t) { return true; });
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("relay: weights, local rows and further combines", Layout, peerbus::moe::compact,
                   peerbus::moe::expert_slots) {
  on_grids([](auto& comm, bool twice, const placed& places) {
    exchange_config with = places.in(config, twice);
    with.weights_at_combine = true;
    exchange moe{comm, with, int8_per_token{}, Layout{}};
    std::vector<std::int64_t> waited(comm.size());
    for (std::uint64_t round = 0; round < 4; ++round) {
      const test::scenario from = scenario_of(comm.size(), round);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      const std::vector<float> ones(mine.weights.size(), 1.0F);
      const auto got = moe.dispatch(
          mine.tokens, {std::span<const std::int64_t>{mine.experts}, std::span<const float>{ones}});
      if (!twice) test::two_levels::check(got, from, comm.rank().index());
      test::run_experts(got);
      std::vector<bf16> out(mine.tokens.size());
      // A rank that refuses sends no weights.
      const rank_id bad{round % comm.size()};
      const bool is_bad = comm.rank() == bad;
      test::expect_error(
          is_bad ? errc::invalid_argument : errc::refused, {"combine_terms with", "weights"}, [&] {
            moe.combine(got, out,
                        {.terms = {.weights = std::span{mine.weights}.subspan(is_bad ? 1 : 0)}});
          });
      test::run_experts(got);
      moe.combine(got, out, {.terms = {.weights = mine.weights}, .waited = waited});
      test::check_combined(out, combined(from, mine, false, places.owner), config.hidden, 0);

      // Again, with the weights of the dispatch on every other rank.
      moe.reopen(got);
      test::run_experts(got);
      if (comm.rank().index() % 2 == 0)
        moe.combine(got, out);
      else
        moe.combine(got, out, {.terms = {.weights = ones}});
      oracle::input plain = mine;
      std::ranges::fill(plain.weights, 1.0F);
      test::check_combined(out, combined(from, plain, false, places.owner), config.hidden, 0);

      // One local row of a token, times 1, adds what a bias adds.
      std::vector<bf16> bias(mine.tokens.size());
      std::vector<const bf16*> local(mine.experts.size(), nullptr);
      for (std::size_t t = 0; t < mine.count; ++t)
        for (std::size_t k = 0; k < config.top_k; ++k) {
          if (mine.experts[t * config.top_k + k] != -1) continue;
          local[t * config.top_k + k] = mine.tokens.data() + t * config.hidden;
          std::copy_n(mine.tokens.data() + t * config.hidden, config.hidden,
                      bias.data() + t * config.hidden);
          break;
        }
      std::vector<bf16> biased(out.size());
      moe.reopen(got);
      moe.combine(got, biased, {.terms = {.weights = ones, .bias = {bias, {}}}});
      moe.reopen(got);
      moe.combine(got, out, {.terms = {.weights = ones, .local = local}});
      test::expect_same_bytes(std::span<const bf16>{out},
                              std::as_bytes(std::span<const bf16>{biased}), "local rows");
    }
    test::expect(std::ranges::all_of(waited, [](auto ns) { return ns >= 0; }), "waits");
  });
}

TEST_CASE("relay: sums of groups that are not rounded") {
  on_grids([](auto& comm, bool twice, const placed& places) {
    exchange_config with = places.in(config, twice);
    with.relay_sums = peerbus::moe::relay_sums::f32;
    with.output_attachment = sizeof(mark);
    exchange moe{comm, with, int8_per_token{}};
    const std::size_t rank = comm.rank().index();
    for (std::uint64_t round = 0; round < 3; ++round) {
      const test::scenario from = scenario_of(comm.size(), round);
      const oracle::input& mine = from.inputs[rank];
      const auto got = moe.dispatch(mine.tokens, route_of(mine));
      test::run_experts(got);
      mark_all(got, rank, round);
      std::vector<bf16> bias(mine.tokens);
      std::vector<bf16> out(mine.tokens.size());
      moe.combine(got, out, {.terms = {.bias = {bias, {}}}, .attached = true});
      std::vector<bf16> expected(out.size());
      const auto& owner = places.owner;
      for (std::size_t t = 0; t < mine.count; ++t) {
        const auto row = std::span{expected}.subspan(t * config.hidden, config.hidden);
        const auto received =
            oracle::codec_of<int8_per_token>::encode(oracle::token_of(from.shape, mine, t));
        std::vector<float> total;
        for (std::size_t h = 0; h < config.hidden; ++h)
          total.push_back(oracle::widen(bias[t * config.hidden + h]));
        for (std::size_t host = 0; host < test::pretended.count; ++host) {
          std::vector<float> of_host(config.hidden);
          for (std::size_t k = 0; k < config.top_k; ++k) {
            const auto e = mine.experts[t * config.top_k + k];
            if (e == -1 ||
                test::pretended.host_of(owner[static_cast<std::size_t>(e)], comm.size()) != host)
              continue;
            oracle::add_outputs(static_cast<std::size_t>(e), mine.weights[t * config.top_k + k],
                                received.values, of_host);
          }
          for (std::size_t h = 0; h < config.hidden; ++h) total[h] += of_host[h];
        }
        oracle::round(total, row);
      }
      test::check_combined(out, expected, config.hidden, 0);
      check_returned(moe, got.ticket(), from, rank, round, false, owner,
                     [](std::size_t) { return true; });
    }
  });
}

TEST_CASE("relay: listeners hear both levels, with the numbers of ranks in the whole group") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    peerbus::recorder events;
    comm.members()->listeners().add(events);
    {
      exchange moe{comm, config, int8_per_token{}};
      const test::scenario from = scenario_of(comm.size(), 1);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      // Rank 3 is late, so that its peers on either level are likely to wait for it.
      if (comm.rank() == rank_id{3}) std::this_thread::sleep_for(std::chrono::milliseconds{5});
      const auto got = moe.dispatch(mine.tokens, route_of(mine));
      test::run_experts(got);
      std::vector<bf16> out(mine.tokens.size());
      moe.combine(got, out);
    }
    comm.members()->listeners().remove(events);
    std::size_t steps = 0;
    std::set<std::size_t> awaited;
    const auto recorded = events.read().at(0);
    for (const peerbus::operation_event& event : recorded) {
      if (std::string_view{event.name} == "send rows") ++steps;
      if (event.kind == peerbus::event_kind::wait && event.peer &&
          event.what.operation == peerbus::group_operation::dispatch)
        awaited.insert(event.peer->index());
    }
    test::expect_equal(steps, std::size_t{2}, "levels that send rows");
    const std::size_t rank = comm.rank().index();
    const std::set<std::size_t> others{rank ^ 1U, rank ^ 2U};  // Of its host and of its column.
    test::expect(std::ranges::includes(others, awaited), "waits for ranks of a level");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("relay: a bound of one dispatch") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    exchange moe{comm, config, int8_per_token{}, peerbus::moe::padded{}};
    const test::scenario from = scenario_of(comm.size(), 1);
    oracle::input mine = from.inputs[comm.rank().index()];
    mine.count = std::min<std::size_t>(mine.count, 2);
    mine.tokens.resize(mine.count * config.hidden);
    mine.experts.resize(mine.count * config.top_k);
    mine.weights.resize(mine.count * config.top_k);
    const auto got = moe.dispatch(mine.tokens, route_of(mine), {.bound = 2});
    for (std::size_t e = 0; e < got.experts().size(); ++e)
      test::expect_equal(got.experts()[e].first_row(), e * comm.size() * 2, "block");
    for (const std::size_t other : {0U, 1U, 2U, 3U}) {
      const bool differs = comm.rank() == rank_id{other};
      test::expect_error(errc::refused, {"a bound of"}, [&] {
        static_cast<void>(moe.dispatch(mine.tokens, route_of(mine), {.bound = differs ? 3U : 2U}));
      });
    }
    static_cast<void>(moe.dispatch(mine.tokens, route_of(mine), {.bound = 3}));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("relay: what is refused, and where it is not used") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    exchange moe{comm, config, int8_per_token{}};
    const test::scenario from = scenario_of(comm.size(), 1);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    const auto got = moe.dispatch(mine.tokens, route_of(mine));
    test::run_experts(got);
    std::vector<bf16> out(mine.tokens.size());
    test::expect_error(errc::invalid_argument,
                       {"combine_terms weights", "weights_at_combine is true"},
                       [&] { moe.combine(got, out, {.terms = {.weights = mine.weights}}); });
    const std::vector<const bf16*> own(mine.experts.size(), nullptr);
    test::expect_error(errc::invalid_argument,
                       {"own outputs, expected none or, without relay, tokens x copies, 0"},
                       [&] { moe.combine(got, out, {.terms = {.own = own}}); });
    moe.combine(got, out);
    test::check_combined(out, combined(from, mine, false), config.hidden, 0);
    exchange_config other = config;
    other.relay = comm.rank() == rank_id{1} ? relay::never : relay::always;
    test::expect_error(errc::mismatch, {"relay is always on rank 0 but never on rank 1"},
                       [&] { exchange differing{comm, other, int8_per_token{}}; });
    other.relay = relay::never;
    test::expect(!exchange(comm, other, int8_per_token{}).relay().relays, "one level");
  });
  CHECK(worst_status == 0);
  CHECK(test::threads_over<peerbus::loopback>::run(2, [](auto& comm) {
          test::expect_error(errc::unsupported, {"relay is always, but this transport"},
                             [&] { exchange moe{comm, config, int8_per_token{}}; });
          exchange_config other = config;
          other.relay = relay::automatic;
          exchange moe{comm, other, int8_per_token{}};
          test::expect(!moe.relay().relays, describe(moe.relay()));
        }) == 0);
}

}  // namespace relay_test
