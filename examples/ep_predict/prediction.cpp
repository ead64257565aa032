// SPDX-License-Identifier: MIT
#include "prediction.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <peerbus/moe/config.hpp>
#include <peerbus/trace/chrome_trace.hpp>
#include <peerbus/transport/simulated.hpp>

#include "rank_traffic.hpp"
#include "sized_row.hpp"

namespace ep_predict {

namespace {

using peerbus::simulated;
using std::chrono::nanoseconds;

/// Returns no less than the bytes of the longest put besides rows and their scales: the counts for
/// a rank, or 8 bytes of the origin of each row to one and, by rank, 4 for each of its experts.
/// With relay, rows travel by rank between groups, whatever the layout is.
std::size_t most_control_bytes(const load& batch) {
  const message_sizes sizes{batch};
  std::size_t most_counts = 0;
  for (std::size_t peer = 0; peer < batch.ranks; ++peer)
    most_counts = std::max<std::size_t>(most_counts, sizes.counts_for(peer).bytes);
  const std::size_t most_by_rank = std::max<std::size_t>(8, 4 * batch.top_k);
  // Between groups by rank: counts of no more blocks than there are experts and ranks.
  if (batch.relay != "never")
    return std::max({most_counts, batch.tokens * most_by_rank,
                     64 + sizeof(std::uint32_t) * (batch.experts + batch.ranks)});
  const peerbus::moe::expert_placement dealt{batch.experts, batch.ranks};
  const bool is_by_rank = sizes.geometry.by_rank;
  std::size_t most_rows = 0;
  for (std::size_t rank = 0; rank < batch.ranks; ++rank) {
    std::vector<std::size_t> rows(batch.ranks, 0);
    std::vector<std::size_t> latest(batch.ranks, 0);  // The latest token to a rank, from 1 on.
    const auto experts = even_routing(batch, rank);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const std::size_t peer = dealt.owner(static_cast<std::size_t>(experts[i])).index();
      if (!is_by_rank || latest[peer] != i / batch.top_k + 1) ++rows[peer];
      latest[peer] = i / batch.top_k + 1;
    }
    most_rows = std::max(most_rows, std::ranges::max(rows));
  }
  return std::max(most_counts, most_rows * (is_by_rank ? most_by_rank : 8));
}

/// Returns the sample below which a `share` of all lies.
double quantile(std::vector<double> samples, double share) {
  const auto index = static_cast<std::ptrdiff_t>(static_cast<double>(samples.size() - 1) * share);
  std::ranges::nth_element(samples, samples.begin() + index);
  return samples[static_cast<std::size_t>(index)];
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::ranges::nth_element(samples, middle);
  return *middle;
}

/// Returns the longest time between the first and the last rank that leaves a barrier.
nanoseconds longest_barrier(const peerbus::simulated_platform& platform) {
  double latency = 0;
  for (const peerbus::simulated_level& level : platform.levels)
    latency = std::max(latency, level.latency_ns + level.message_ns);
  const nanoseconds hop{static_cast<std::int64_t>(std::clamp(latency, 0.0, 1e9))};
  return std::chrono::milliseconds{1} + 64 * hop;  // Rounds of a barrier, and more.
}

void write_trace(const std::string& path, const std::vector<std::string>& events) {
  std::ofstream file{path};
  file << peerbus::chrome_file(events);
  file.close();
  if (!file) throw std::runtime_error{path + ": the trace cannot be written"};
}

/// Refuses a batch that `complaint_about` finds impossible, or of more ranks than can be simulated.
void require_possible(const load& batch) {
  if (const auto found = complaint_about(batch); !found.empty()) throw std::runtime_error{found};
  if (const auto found = complaint_about(batch.arrival); !found.empty())
    throw std::runtime_error{found};
  if (batch.ranks > peerbus::moe::max_ranks)
    throw std::runtime_error{"ranks is " + std::to_string(batch.ranks) + ", expected at most " +
                             std::to_string(peerbus::moe::max_ranks)};
}

/// Runs `run` as each rank of `all.batch`.
void simulate(job& all, const peerbus::simulated_platform& platform,
              peerbus::simulated_links* links,
              const std::function<void(peerbus::bootstrap&)>& run) {
  const load& batch = all.batch;
  all.token_ns = platform.costs.token_ns;
  all.pause = longest_barrier(platform);
  peerbus::simulation_options options;
  options.platform = platform;
  options.links = links;
  options.seed = batch.seed;
  sized_row::format = format_of(batch);
  // Where something else than rows is as long as a row, all is carried: ranks read the rest.
  // Scales that are longer than the rest are not carried either.
  const std::size_t control = most_control_bytes(batch);
  if (control < sized_row::format.row_bytes) options.most_carried_bytes = control;
  if (peerbus::run_simulated(
          batch.ranks, [&run](peerbus::bootstrap& boot) { run(boot); }, options) != 0)
    throw std::runtime_error{"a simulated rank failed"};
}

}  // namespace

times summary_of(const std::vector<std::vector<double>>& by_round) {
  std::vector<double> each;
  std::vector<double> slowest;
  slowest.reserve(by_round.size());
  for (const auto& ranks : by_round) {
    each.insert(each.end(), ranks.begin(), ranks.end());
    slowest.push_back(std::ranges::max(ranks));
  }
  const auto count = static_cast<double>(each.size());
  return {.median = median(each),
          .slowest = median(slowest),
          .mean = std::accumulate(each.begin(), each.end(), 0.0) / count,
          .least = std::ranges::min(each),
          .most = std::ranges::max(each),
          .p10 = quantile(each, 0.1),
          .p90 = quantile(each, 0.9),
          .p99 = quantile(each, 0.99)};
}

prediction predict(const load& batch, const work& own, const peerbus::simulated_platform& platform,
                   const std::string& trace, peerbus::simulated_links* links) {
  require_possible(batch);
  job all{batch, own, !trace.empty()};
  simulate(all, platform, links, [&all](peerbus::bootstrap& boot) {
    run_rank(boot, all);
    if (boot.rank() == peerbus::rank_id{0}) {
      all.bytes = simulated::bytes_sent() - all.bytes;
      all.messages = simulated::messages_sent() - all.messages;
    }
  });
  if (!trace.empty()) write_trace(trace, all.events);
  const std::size_t shares = std::max<std::size_t>(batch.rounds * batch.ranks, 1);
  return {summary_of(all.dispatch), summary_of(all.combine), all.bytes / shares,
          all.messages / shares, all.window_bytes};
}

double layer_us_of(const load& batch, double experts_us, const work& own,
                   const peerbus::simulated_platform& platform) {
  require_possible(batch);
  job all{batch, own, false};
  all.experts_us = experts_us;
  simulate(all, platform, nullptr, [&all](peerbus::bootstrap& boot) { run_layers(boot, all); });
  return median(all.layers);
}

}  // namespace ep_predict
