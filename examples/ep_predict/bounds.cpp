// SPDX-License-Identifier: MIT
#include "bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <utility>

namespace ep_predict {

namespace {

/// A kind of cost, and how to leave it out.
struct cost_kind {
  const char* name;
  void (*leave_out)(load& batch, platform_file& given);
};

constexpr std::array<cost_kind, 5> cost_kinds{{
    {"start-up",
     [](load&, platform_file& given) { given.own.dispatch_ns = given.own.combine_ns = 0; }},
    {"port",
     [](load&, platform_file& given) {
       for (auto& level : given.platform.levels) {
         level.gb_per_s = 1e6;
         level.message_ns = 0;
       }
     }},
    {"latency",
     [](load&, platform_file& given) {
       for (auto& level : given.platform.levels) level.latency_ns = 0;
     }},
    {"own work",
     [](load&, platform_file& given) {
       given.platform.costs = {.put_ns = 0, .signal_ns = 0, .poll_ns = 1, .token_ns = 0};
       given.own.sum_ns = 0;
     }},
    {"skew", [](load& batch, platform_file&) { batch.arrival = {}; }},
}};

double share_of(double with, double without) { return std::max(0.0, (with - without) / with); }

/// Returns the probability that `top_k` of `experts` experts, drawn without replacement, miss
/// `some` of them.
double missed(std::size_t experts, std::size_t some, std::size_t top_k) {
  double all = 1;
  for (std::size_t i = 0; i < top_k; ++i)
    all *= std::max(0.0, static_cast<double>(experts) - static_cast<double>(some + i)) /
           static_cast<double>(experts - i);
  return all;
}

template <class... Values>
std::string line(const char* format, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

double time_of(const prediction& found) { return found.dispatch.median + found.combine.median; }

double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576; }

}  // namespace

std::vector<bound> bounds_of(const load& batch, const platform_file& given, const prediction& all) {
  std::vector<bound> bounds;
  bounds.reserve(cost_kinds.size());
  for (const cost_kind& kind : cost_kinds) {
    load changed = batch;
    platform_file without = given;
    kind.leave_out(changed, without);
    const prediction found = predict(changed, without.own, without.platform);
    bounds.push_back({kind.name, share_of(all.dispatch.median, found.dispatch.median),
                      share_of(all.combine.median, found.combine.median)});
  }
  return bounds;
}

leaving_rows rows_that_leave(const load& batch, std::size_t group) {
  const auto ranks = static_cast<double>(batch.ranks);
  const auto inside = static_cast<double>(std::min(group, batch.ranks));
  const auto experts_of = [&](double share) {
    return static_cast<std::size_t>(std::lround(static_cast<double>(batch.experts) * share));
  };
  const double hit_rank = 1 - missed(batch.experts, experts_of(1 / ranks), batch.top_k);
  const double hit_group = 1 - missed(batch.experts, experts_of(inside / ranks), batch.top_k);
  return {.per_expert = static_cast<double>(batch.top_k) * (1 - inside / ranks),
          .per_rank = (ranks - inside) * hit_rank,
          .per_group = (ranks / inside - 1) * hit_group};
}

namespace {

/// Says whether two levels would be faster than one, by simulating them.
std::string advise_levels(const load& best, const platform_file& given) {
  const auto& levels = given.platform.levels;
  // The level that all ranks share, and the groups of the level within it.
  const auto shared = std::ranges::find_if(
      levels, [&](const auto& level) { return level.ranks == 0 || level.ranks >= best.ranks; });
  const auto near_levels = static_cast<std::size_t>(shared - levels.begin());
  if (near_levels == 0 || levels[near_levels - 1].ranks < 2)
    return "two levels: no, ranks share one level or a group has one rank";
  const auto& inner = levels[near_levels - 1];
  platform_file near = given;
  near.platform.near_levels = near_levels;
  load in_levels = best;
  const auto time = [&](const char* relay) {
    in_levels.relay = relay;
    const prediction found = predict(in_levels, near.own, near.platform);
    return std::pair{found.dispatch.median, found.combine.median};
  };
  const leaving_rows rows = rows_that_leave(best, inner.ranks);
  try {
    const auto with = time("always");
    const auto without = time("never");
    const bool pays = with.first + with.second < without.first + without.second;
    return line(
        "two levels (--near-levels %zu): %s, %.1f + %.1f us with --relay always, %.1f + "
        "%.1f us without; rows of a token that leave its %s: %.2f by expert, %.2f by rank, "
        "%.2f by %s",
        near_levels, pays ? "yes" : "no", with.first, with.second, without.first, without.second,
        inner.name.c_str(), rows.per_expert, rows.per_rank, rows.per_group, inner.name.c_str());
  } catch (const std::exception& refused) {
    return std::string{"two levels: refused, "} + refused.what();
  }
}

/// Says how few tokens are nearly as efficient.
std::string advise_tokens(const load& best, const platform_file& given, const prediction& fastest) {
  const auto rate = [](const load& batch, const prediction& found) {
    return static_cast<double>(batch.tokens) / time_of(found);
  };
  const double full = rate(best, fastest);
  load fewer = best;
  std::size_t enough = best.tokens;
  while ((fewer.tokens /= 2) != 0 &&
         rate(fewer, predict(fewer, given.own, given.platform)) >= 0.9 * full)
    enough = fewer.tokens;
  if (enough == 1) return line("tokens per rank: 1 is nearly as efficient as %zu", best.tokens);
  return line(
      "tokens per rank: %zu reach nine tenths of the tokens a second that %zu reach, half as many "
      "do not",
      enough, best.tokens);
}

/// Says how much of the exchange of `best` is hidden if it is two batches in flight, of half as
/// many tokens.
std::string advise_in_flight(const load& best, const platform_file& given,
                             const prediction& fastest, double experts_us) {
  if (best.tokens < 2) return "in flight: no, 1 token makes no two batches";
  if (experts_us == 0) experts_us = time_of(fastest);
  load halves = best;
  halves.tokens = best.tokens / 2;
  halves.in_flight = 2;
  load whole = best;
  whole.tokens = 2 * halves.tokens;
  const double alone = layer_us_of(whole, experts_us, given.own, given.platform);
  const double both = layer_us_of(halves, experts_us / 2, given.own, given.platform);
  return line(
      "in flight: %s, a layer of two batches of %zu tokens takes %.1f us, of one of %zu tokens "
      "%.1f us, with %.1f us of experts; %.0f %% of the exchange is hidden",
      both < alone ? "yes" : "no", halves.tokens, both, whole.tokens, alone, experts_us,
      std::max(0.0, (alone - both) / (alone - experts_us)) * 100);
}

}  // namespace

std::vector<std::string> advice_for(const load& batch, const platform_file& given,
                                    const prediction& all, double experts_us) {
  load best = batch;
  prediction fastest = all;
  for (const std::string& layout : layouts()) {
    if (layout == batch.layout || layout == "automatic") continue;
    load changed = batch;
    changed.layout = layout;
    const prediction found = predict(changed, given.own, given.platform);
    if (time_of(found) >= time_of(fastest)) continue;
    fastest = found;
    best = changed;
  }
  return {line("fastest layout: %s, %.1f + %.1f us, a window of %.1f MiB for each rank",
               best.layout.c_str(), fastest.dispatch.median, fastest.combine.median,
               mib(fastest.window_bytes)),
          advise_levels(best, given), advise_tokens(best, given, fastest),
          advise_in_flight(best, given, fastest, experts_us)};
}

}  // namespace ep_predict
