// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/replica_choice.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/sums_of_hosts.hpp"

/// Experts with replicas, and what an exchange must make of them, computed plainly.
namespace placed_experts {

namespace moe = peerbus::moe;
using peerbus::rank_id;
using table = std::vector<std::uint32_t>;

constexpr std::size_t experts = 11, hidden = 32, top_k = 4, max_tokens = 9;

/// How far ranks are from each other: each is near itself only, or those of its parity.
enum class nearness : std::uint8_t { own, parity };

/// Random tables of experts, and of the choice of each rank.
struct case_of_replicas {
  case_of_replicas(std::size_t rank_count, std::uint64_t seed, moe::replica_policy by,
                   nearness near = nearness::own, std::size_t least_replicas = 1)
      : ranks{rank_count}, policy{by}, how_near{near} {
    draw(seed, least_replicas);
  }

  /// Makes an exchange relay between hosts: `hosts` has the host of each rank. If `equal_places`,
  /// vacant places are added until each rank has as many. Quotas are equal from now on.
  void relay_between(std::vector<std::size_t> hosts, bool equal_places) {
    host_of = std::move(hosts);
    const std::size_t most = *std::ranges::max_element(experts_of_rank);
    table padded;
    holder.clear();
    chosen.clear();
    auto place = logical.begin();
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t count = equal_places ? most : experts_of_rank[r];
      padded.insert(padded.end(), place, place + experts_of_rank[r]);
      place += experts_of_rank[r];
      padded.resize(padded.size() + count - experts_of_rank[r], moe::vacant);
      holder.insert(holder.end(), count, r);
      experts_of_rank[r] = static_cast<std::uint32_t>(count);
    }
    logical = padded;
    oracle::random numbers{most};
    choose(numbers);
  }
  [[nodiscard]] bool relays() const { return !host_of.empty(); }

  /// Gives the experts other places, of which each rank has as many as before.
  void shuffle(std::uint64_t seed) {
    oracle::random numbers{seed};
    table renamed(experts);
    std::iota(renamed.begin(), renamed.end(), 0U);
    for (std::size_t i = experts; i > 1; --i) std::swap(renamed[i - 1], renamed[numbers.below(i)]);
    for (std::uint32_t& expert : logical)
      if (expert != moe::vacant) expert = renamed[expert];
    choose(numbers);
  }

  [[nodiscard]] moe::replica_choice choice_of(std::size_t rank) const {
    moe::replica_choice made{.policy = policy};
    if (policy == moe::replica_policy::weighted) made.quotas = quotas;
    if (policy == moe::replica_policy::fixed) made.chosen = chosen[rank];
    return made;
  }
  [[nodiscard]] moe::exchange_config config_of(std::size_t rank) const {
    moe::exchange_config made{
        .experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = max_tokens};
    made.physical_to_logical = logical;
    const bool is_equal = std::ranges::count(experts_of_rank, experts_of_rank[0]) ==
                          static_cast<std::ptrdiff_t>(ranks);
    if (!is_equal) made.experts_of_rank = experts_of_rank;
    if (relays()) made.relay = moe::relay::always;
    made.replicas = choice_of(rank);
    return made;
  }
  /// Whether the ranks of all replicas are gone.
  [[nodiscard]] bool is_lost(std::size_t expert) const {
    for (std::size_t p = 0; p < logical.size(); ++p)
      if (logical[p] == expert && !gone[holder[p]]) return false;
    return true;
  }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const {
    if (from == to) return 0;
    if (relays()) return host_of[from] == host_of[to] ? 1 : 2;
    return how_near == nearness::own || from % 2 == to % 2 ? 1 : 2;
  }
  /// The physical expert of a token's slot, or, by quotas, `anywhere`.
  static constexpr std::size_t anywhere = ~std::size_t{0};
  [[nodiscard]] std::size_t physical(std::size_t rank, std::size_t token,
                                     std::size_t expert) const {
    std::vector<std::size_t> replicas;
    for (std::size_t p = 0; p < logical.size(); ++p)
      if (logical[p] == expert && !gone[holder[p]]) replicas.push_back(p);
    if (policy == moe::replica_policy::weighted && !relays()) return anywhere;
    if (policy == moe::replica_policy::fixed &&
        std::ranges::find(replicas, chosen[rank][expert]) != replicas.end())
      return chosen[rank][expert];
    if (policy == moe::replica_policy::nearest || policy == moe::replica_policy::fixed) {
      std::size_t least = 2;
      for (const std::size_t p : replicas) least = std::min(least, distance(rank, holder[p]));
      std::erase_if(replicas, [&](std::size_t p) { return distance(rank, holder[p]) != least; });
    }
    if (policy == moe::replica_policy::fixed) return replicas.front();
    return replicas[(token + rank + expert) % replicas.size()];
  }
  /// The number of a token among all, in the order in which the rows of an expert lie: with relay
  /// by the place of the rank that handed on, then by host.
  [[nodiscard]] std::size_t order_of(std::size_t rank, std::size_t token) const {
    if (!relays()) return rank * max_tokens + token;
    const auto order = test::source_order(host_of);
    const auto place = static_cast<std::size_t>(std::ranges::find(order, rank) - order.begin());
    return place * max_tokens + token;
  }
  [[nodiscard]] std::size_t first(std::size_t rank) const {
    std::size_t sum = 0;
    for (std::size_t r = 0; r < rank; ++r) sum += experts_of_rank[r];
    return sum;
  }

  std::size_t ranks;
  moe::replica_policy policy;
  nearness how_near;
  std::vector<std::size_t> host_of;  ///< [ranks]; empty without relay
  table experts_of_rank;
  table logical;
  std::vector<std::size_t> holder;
  table quotas;
  std::vector<table> chosen;  ///< [ranks][experts]
  std::vector<bool> gone;     ///< [ranks]

 private:
  void draw(std::uint64_t seed, std::size_t least_replicas) {
    oracle::random numbers{seed};
    std::vector<table> held(ranks);
    // With two ranks or more, the last holds none.
    const std::size_t holding = std::max<std::size_t>(ranks - 1, 1);
    for (std::uint32_t e = 0; e < experts; ++e) {
      const std::size_t wanted = std::min(holding, std::max(least_replicas, numbers.below(4)));
      for (std::size_t given = 0; given < wanted;) {
        table& there = held[numbers.below(holding)];
        if (std::ranges::find(there, e) != there.end()) continue;
        there.push_back(e);
        ++given;
      }
    }
    held[0].push_back(moe::vacant);
    logical.clear();
    holder.clear();
    experts_of_rank.clear();
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = held[r].size(); i > 1; --i)
        std::swap(held[r][i - 1], held[r][numbers.below(i)]);
      logical.insert(logical.end(), held[r].begin(), held[r].end());
      holder.insert(holder.end(), held[r].size(), r);
      experts_of_rank.push_back(static_cast<std::uint32_t>(held[r].size()));
    }
    choose(numbers);
    gone.assign(ranks, false);
  }

  void choose(oracle::random& numbers) {
    quotas.clear();
    for (const std::uint32_t expert : logical) {
      const auto drawn = 1U + static_cast<std::uint32_t>(numbers.below(300));
      quotas.push_back(expert == moe::vacant ? 0U : relays() ? 7U : drawn);
    }
    chosen.assign(ranks, table(experts));
    for (table& of_rank : chosen)
      for (std::uint32_t e = 0; e < experts; ++e) do
          of_rank[e] = static_cast<std::uint32_t>(numbers.below(logical.size()));
        while (logical[of_rank[e]] != e);
  }
};

/// Checks the rows of physical expert `p`, all or those of one source rank.
template <class Codec>
void check_rows(const case_of_replicas& given, const std::vector<oracle::input>& inputs,
                const peerbus::moe::row_run<Codec>& rows, std::size_t p) {
  std::size_t before = 0;
  for (std::size_t i = 0; i < rows.count(); ++i) {
    const auto [rank, token, slot] = rows.origin(i);
    const std::size_t order = given.order_of(rank.index(), token) + 1;
    test::expect(order > before, "rows in order");
    before = order;
    const std::int64_t expert = inputs[rank.index()].experts[token * top_k + slot];
    test::expect_equal(expert, static_cast<std::int64_t>(given.logical[p]), "the expert of a row");
    const std::size_t wanted = given.physical(rank.index(), token, given.logical[p]);
    if (wanted != case_of_replicas::anywhere) test::expect_equal(p, wanted, "the replica of a row");
  }
}

/// What combine must give to `rank`: a sum in the order of slots, or, by rank and with relay, of
/// rounded sums.
template <class Codec, class Layout>
std::vector<peerbus::bf16> sums_of(const case_of_replicas& given, const oracle::input& mine,
                                   std::size_t rank) {
  const oracle::shape of{given.ranks, experts, hidden, top_k};
  if (!moe::layout_by_rank<Layout> && !given.relays()) return oracle::combined<Codec>(of, mine);
  const auto owner = [&](std::size_t t, std::size_t e) {
    return given.holder[given.physical(rank, t, e)];
  };
  // Without relay, as if all ranks were on one host, whose sum is rounded by the result anyway.
  const auto host_of = [&](std::size_t r) {
    return given.relays() ? given.host_of[r] : std::size_t{0};
  };
  return test::sums_of_hosts(of, mine, oracle::codec_of<Codec>::encode, moe::layout_by_rank<Layout>,
                             owner, host_of);
}

/// What all ranks put in. Ranks that are gone put in nothing.
inline std::vector<oracle::input> inputs_of(const case_of_replicas& given, std::uint64_t round) {
  std::vector<oracle::input> made;
  for (std::size_t r = 0; r < given.ranks; ++r)
    made.push_back(oracle::make_input({given.ranks, experts, hidden, top_k}, r,
                                      given.gone[r] ? 0 : (3 * r + round) % (max_tokens + 1),
                                      oracle::routes::zipf, 64 * round + 5));
  return made;
}

/// Checks the rows of this rank's places, and the tokens that crossed to other hosts.
template <class Exchange>
void check_relayed(Exchange& mapped, moe::ticket ticket, std::size_t me,
                   const case_of_replicas& given, const std::vector<oracle::input>& inputs) {
  table wanted(given.logical.size());
  std::set<std::pair<std::size_t, std::size_t>> crossings;
  for (std::size_t r = 0; r < given.ranks; ++r)
    for (std::size_t slot = 0; slot < inputs[r].experts.size(); ++slot) {
      const std::int64_t e = inputs[r].experts[slot];
      if (e == -1) continue;
      const std::size_t p = given.physical(r, slot / top_k, static_cast<std::size_t>(e));
      if (given.holder[p] == me) ++wanted[p];
      const std::size_t host = given.host_of[given.holder[p]];
      if (r == me && host != given.host_of[me]) crossings.emplace(slot / top_k, host);
    }
  table rows(given.logical.size(), 99);
  test::expect(!mapped.count_rows(ticket, rows), "counts of other hosts");
  test::expect(rows == wanted, "rows of physical experts");
  test::expect_equal(mapped.traffic(ticket).far_rows, crossings.size(), "rows that cross");
}

/// One dispatch and combine, all rows and sums checked.
template <class Codec, class Exchange, class Layout>
void check_round(Exchange& mapped, std::size_t me, const Layout& /*layout*/,
                 const case_of_replicas& given, std::uint64_t round) {
  const auto inputs = inputs_of(given, round);
  const oracle::input& mine = inputs[me];
  const auto got = mapped.dispatch(mine.tokens, {mine.experts, mine.weights});
  const std::size_t first = given.first(me);
  if constexpr (moe::layout_by_rank<Layout>) {
    test::expect_equal(got.local_experts(), std::size_t{given.experts_of_rank[me]}, "experts here");
    const auto check_run = [&](const auto& rows) {
      for (std::size_t i = 0; i < rows.count(); ++i) {
        const auto [rank, token, copy] = rows.origin(i);
        const oracle::input& from = inputs[rank.index()];
        const auto local = got.experts(rows.first_row() + i);
        for (std::size_t k = 0; k < top_k; ++k) {
          const std::int64_t e = from.experts[token * top_k + k];
          std::int64_t wanted = -1;
          if (e != -1) {
            const std::size_t p = given.physical(rank.index(), token, static_cast<std::size_t>(e));
            if (given.holder[p] == me) wanted = static_cast<std::int64_t>(p - first);
          }
          test::expect_equal(std::int64_t{local[k]}, wanted, "the local expert of slot ", k);
        }
      }
    };
    if constexpr (requires { got.rows_from(rank_id{0}); })
      for (std::size_t r = 0; r < got.ranks(); ++r) check_run(got.rows_from(rank_id{r}));
    else
      check_run(got);
  } else if constexpr (requires { got.experts(); }) {
    test::expect_equal(got.experts().size(), std::size_t{given.experts_of_rank[me]},
                       "experts here");
    for (std::size_t e = 0; e < got.experts().size(); ++e) {
      test::expect_equal(got.experts()[e].id(), std::size_t{given.logical[first + e]}, "an id");
      check_rows<Codec>(given, inputs, got.experts()[e], first + e);
    }
  } else {
    for (std::size_t e = 0; e < got.local_experts(); ++e)
      for (std::size_t r = 0; r < got.ranks(); ++r)
        check_rows<Codec>(given, inputs, got.rows_from(e, rank_id{r}), first + e);
  }
  if (given.relays()) check_relayed(mapped, got.ticket(), me, given, inputs);
  test::run_experts(got);
  std::vector<peerbus::bf16> out(mine.tokens.size());
  test::expect(mapped.awaits_combine(got.ticket()), "a batch that waits");
  mapped.combine(got, out);
  test::expect(!mapped.awaits_combine(got.ticket()), "a batch that is combined");
  test::expect(out == sums_of<Codec, Layout>(given, mine, me), "the sums");
}

/// Some rounds of a new exchange.
template <class Codec, class Communicator, class Layout>
void check(Communicator& comm, const Layout& layout, const case_of_replicas& given) {
  const std::size_t me = comm.rank().index();
  moe::exchange_config config = given.config_of(me);
  config.same_bits = !moe::layout_by_rank<Layout> && !given.relays();
  moe::exchange mapped{comm, config, Codec{}, layout};
  test::expect(mapped.relay().relays == given.relays(), describe(mapped.relay()));
  const moe::expert_map& map = mapped.placement();
  for (std::size_t p = 0; p < given.logical.size(); ++p) {
    test::expect_equal(map.logical(p), given.logical[p], "a logical expert");
    test::expect_equal(std::size_t{map.holder(p)}, given.holder[p], "a holder");
    if (given.logical[p] == moe::vacant) continue;
    const auto replicas = map.replicas(given.logical[p]);
    test::expect(std::ranges::count(replicas, static_cast<std::uint32_t>(p)) == 1, "a replica");
  }
  for (std::uint64_t round = 0; round < 4; ++round)
    check_round<Codec>(mapped, me, layout, given, round);
}

}  // namespace placed_experts
