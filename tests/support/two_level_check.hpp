// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>

#include "support/arithmetic.hpp"
#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/layout_oracle.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/sums_of_hosts.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Of `two_level_exchange`.

/// What an exchange in two levels must give, written down slowly and without the library's
/// arithmetic.
namespace test {

/// How tests deal ranks out to pretended hosts.
struct hosts {
  std::size_t count = 1;     ///< of hosts
  bool interleaved = false;  ///< rank r is on host r modulo count, else hosts have ranks in order

  /// The ranks of the smallest host. In order, the last host has those that are left over.
  [[nodiscard]] std::size_t smallest(std::size_t ranks) const { return ranks / count; }
  [[nodiscard]] std::size_t host_of(std::size_t rank, std::size_t ranks) const {
    return interleaved ? rank % count : std::min(rank / smallest(ranks), count - 1);
  }
  [[nodiscard]] std::size_t place_of(std::size_t rank, std::size_t ranks) const {
    return interleaved ? rank / count : rank - host_of(rank, ranks) * smallest(ranks);
  }
  [[nodiscard]] std::vector<std::size_t> host_of_each(std::size_t ranks) const {
    std::vector<std::size_t> found(ranks);
    for (std::size_t r = 0; r < ranks; ++r) found[r] = host_of(r, ranks);
    return found;
  }
  /// The place of the ranks that hand on the tokens of `rank`.
  [[nodiscard]] std::size_t hands_on(std::size_t rank, std::size_t ranks) const {
    return place_of(rank, ranks) % smallest(ranks);
  }
};
/// The hosts of the ranks that are started next. Threads and forked processes all see it.
inline hosts pretended;

/// `planes` over the hosts in `pretended`.
template <class Near, class Far>
class on_hosts : public peerbus::planes<Near, Far> {
 public:
  explicit on_hosts(peerbus::bootstrap& boot)
      : peerbus::planes<Near, Far>{boot,
                                   {.group = "host " + std::to_string(pretended.host_of(
                                                           boot.rank().index(), boot.size()))}} {}
};

/// Ranks that are threads, with puts between hosts that arrive late.
using lazy_hosts = on_hosts<peerbus::loopback, indirect<peerbus::loopback>>;
/// Threads on these hosts, whose transport is held at run time.
using threads_on_hosts = any_over<peerbus::any_transport, threads_over<lazy_hosts>>;

namespace two_levels {

/// The ranks in the order in which rows of a block lie.
inline std::vector<std::size_t> source_order(std::size_t ranks) {
  return test::source_order(pretended.host_of_each(ranks));
}

/// The inputs in that order.
inline std::vector<oracle::input> ordered(const scenario& from) {
  std::vector<oracle::input> inputs;
  for (const std::size_t rank : source_order(from.shape.ranks)) inputs.push_back(from.inputs[rank]);
  return inputs;
}

/// What rank `at` receives of each expert.
inline std::map<std::size_t, std::vector<oracle::placed>> rows_by_expert(const scenario& from,
                                                                         std::size_t at) {
  std::map<std::size_t, std::vector<oracle::placed>> rows;
  const auto order = source_order(from.shape.ranks);
  for (auto& block : oracle::blocks_of(from.shape, ordered(from), at, {})) {
    for (auto& row : block.rows) row.rank = order[row.rank];
    rows[block.expert] = block.rows;
  }
  return rows;
}

/// What rank `at` receives in a layout by rank.
inline std::vector<oracle::token_at_rank> rows_by_token(const scenario& from, std::size_t at) {
  const oracle::shape& of = from.shape;
  const auto order = source_order(of.ranks);
  const auto owner = oracle::owners(of);
  auto rows = oracle::tokens_at(of, ordered(from), at);
  for (auto& row : rows) {
    row.from.rank = order[row.from.rank];
    // The ranks of the token on this host, below this one.
    std::vector<bool> below(at);
    for (std::size_t k = 0; k < of.top_k; ++k) {
      const auto e = from.inputs[row.from.rank].experts[row.from.token * of.top_k + k];
      if (e == -1) continue;
      const std::size_t rank = owner[static_cast<std::size_t>(e)];
      if (rank < at && pretended.host_of(rank, of.ranks) == pretended.host_of(at, of.ranks))
        below[rank] = true;
    }
    row.from.slot = static_cast<std::size_t>(std::ranges::count(below, true));
  }
  return rows;
}

/// What combine must give to the rank that put `mine` in. `owner` has the rank of each expert.
inline std::vector<peerbus::bf16> combined(const oracle::shape& of, const oracle::input& mine,
                                           oracle::encode_function encode, bool by_rank,
                                           const std::vector<std::size_t>& owner) {
  return sums_of_hosts(
      of, mine, encode, by_rank, [&](std::size_t, std::size_t e) { return owner[e]; },
      [&](std::size_t rank) { return pretended.host_of(rank, of.ranks); });
}
inline std::vector<peerbus::bf16> combined(const oracle::shape& of, const oracle::input& mine,
                                           oracle::encode_function encode, bool by_rank) {
  return combined(of, mine, encode, by_rank, oracle::owners(of));
}

/// The rows of `expected` that ranks of `place` on their hosts hand on.
inline std::vector<oracle::placed> of_place(const std::vector<oracle::placed>& expected,
                                            std::size_t place, std::size_t ranks) {
  std::vector<oracle::placed> rows;
  std::ranges::copy_if(expected, std::back_inserter(rows), [&](const oracle::placed& row) {
    return pretended.hands_on(row.rank, ranks) == place;
  });
  return rows;
}

template <class Codec>
void check(const peerbus::moe::received<Codec>& got, const scenario& from, std::size_t at) {
  const auto wanted = rows_by_expert(from, at);
  expect_equal(got.experts().size(), wanted.size(), "local experts");
  auto next = wanted.begin();
  std::size_t total = 0;
  for (const auto& expert : got.experts()) {
    const auto& [id, rows] = *next++;
    expect_equal(expert.id(), id, "id");
    check_run<Codec>(expert, rows, from, {}, "expert " + std::to_string(id), 0);
    for (std::size_t p = 0; p < pretended.smallest(from.shape.ranks); ++p)
      expect_equal(expert.count_from(peerbus::rank_id{p}),
                   of_place(rows, p, from.shape.ranks).size(), "rows from place ", p);
    total += rows.size();
  }
  expect_equal(got.rows(), total, "rows");
}
template <class Codec>
void check(const peerbus::moe::received_slots<Codec>& got, const scenario& from, std::size_t at) {
  const auto wanted = rows_by_expert(from, at);
  expect_equal(got.local_experts(), wanted.size(), "local experts");
  auto next = wanted.begin();
  for (std::size_t e = 0; e < got.local_experts(); ++e) {
    const auto& [id, rows] = *next++;
    expect_equal(got.expert_id(e), id, "id");
    for (std::size_t p = 0; p < got.ranks(); ++p)
      check_run<Codec>(got.rows_from(e, peerbus::rank_id{p}), of_place(rows, p, from.shape.ranks),
                       from, {}, "expert " + std::to_string(id), 0);
  }
}
template <class Codec>
std::vector<oracle::placed> placed_of(const std::vector<oracle::token_at_rank>& wanted) {
  std::vector<oracle::placed> rows;
  for (const auto& row : wanted) rows.push_back(row.from);
  return rows;
}
template <class Codec>
void check(const peerbus::moe::received_tokens<Codec>& got, const scenario& from, std::size_t at) {
  const auto wanted = rows_by_token(from, at);
  check_run<Codec>(got, placed_of<Codec>(wanted), from, {}, "tokens", 0);
  std::vector<std::size_t> numbers(wanted.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  check_token_index<Codec>(got, from, peerbus::rank_id{at}, wanted, numbers);
}
template <class Codec>
void check(const peerbus::moe::received_token_slots<Codec>& got, const scenario& from,
           std::size_t at) {
  const auto wanted = rows_by_token(from, at);
  std::vector<std::size_t> numbers;
  for (std::size_t p = 0; p < got.ranks(); ++p) {
    const auto rows = got.rows_from(peerbus::rank_id{p});
    check_run<Codec>(rows, of_place(placed_of<Codec>(wanted), p, from.shape.ranks), from, {},
                     "tokens of place " + std::to_string(p), 0);
    for (std::size_t i = 0; i < rows.count(); ++i) numbers.push_back(rows.first_row() + i);
  }
  check_token_index<Codec>(got, from, peerbus::rank_id{at}, wanted, numbers);
}

/// Dispatches the rank's input by `send(tokens, routing, options)`.
template <class Send>
auto with_input(const scenario& from, std::size_t rank, Send&& send) {
  const oracle::input& mine = from.inputs[rank];
  const auto attached = attached_by(from, rank);
  peerbus::moe::dispatch_options with;
  std::ranges::copy(attached, with.attachments.begin());
  return send(std::span<const peerbus::bf16>{mine.tokens},
              peerbus::moe::routing{std::span<const std::int64_t>{mine.experts}, mine.weights},
              with);
}

/// Dispatch, experts, combine, everything checked, of an exchange that relays.
template <class Transport, class Codec, class Layout>
void check_round(peerbus::moe::two_level_exchange<Transport, Codec, Layout>& moe,
                 const scenario& from, peerbus::rank_id rank) {
  const auto got = with_input(from, rank.index(), [&](auto tokens, auto route, const auto& with) {
    return moe.dispatch(tokens, route, with);
  });
  check(got, from, rank.index());
  run_experts(got);
  overwrite(got.columns());
  const oracle::input& mine = from.inputs[rank.index()];
  std::vector<peerbus::bf16> out(mine.tokens.size(), peerbus::bf16::from_bits(0xdead));
  moe.combine(got, out);
  check_combined(out,
                 combined(from.shape, mine, oracle::codec_of<Codec>::encode,
                          peerbus::moe::layout_by_rank<Layout>),
                 from.shape.hidden, 0);
}

}  // namespace two_levels

}  // namespace test

#pragma GCC diagnostic pop
