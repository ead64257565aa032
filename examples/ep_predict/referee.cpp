// SPDX-License-Identifier: MIT
#include "referee.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/simulated.hpp>

namespace ep_predict {

namespace {

using peerbus::rank_id;
using peerbus::simulated;

/// Which ranks put to which.
struct pattern {
  const char* name;
  bool shares_cards;  ///< also if each rank has cards of its own
  /// Returns the ranks that `rank` puts to, in order.
  std::vector<std::size_t> (*targets)(std::size_t rank, std::size_t ranks);
  /// Returns whether the time at which `rank` has received everything counts.
  bool (*counts)(std::size_t rank, std::size_t ranks);
};

bool every_rank(std::size_t /*rank*/, std::size_t /*ranks*/) { return true; }
bool only_first(std::size_t rank, std::size_t /*ranks*/) { return rank == 0; }
bool only_last(std::size_t rank, std::size_t ranks) { return rank == ranks - 1; }

std::vector<std::size_t> to_last(std::size_t rank, std::size_t ranks) {
  return rank == 0 ? std::vector{ranks - 1} : std::vector<std::size_t>{};
}
std::vector<std::size_t> half_way(std::size_t rank, std::size_t ranks) {
  return {(rank + ranks / 2) % ranks};
}
std::vector<std::size_t> to_all(std::size_t rank, std::size_t ranks) {
  std::vector<std::size_t> targets;
  targets.reserve(ranks - 1);
  for (std::size_t i = 1; i < ranks; ++i) targets.push_back((rank + i) % ranks);
  return targets;
}
std::vector<std::size_t> to_first(std::size_t rank, std::size_t /*ranks*/) {
  return rank == 0 ? std::vector<std::size_t>{} : std::vector<std::size_t>{0};
}
/// Each rank but the first puts to the first, then to one half way round the others.
std::vector<std::size_t> first_and_other(std::size_t rank, std::size_t ranks) {
  if (rank == 0) return {};
  return {0, (rank - 1 + (ranks - 1) / 2) % (ranks - 1) + 1};
}
bool all_but_first(std::size_t rank, std::size_t /*ranks*/) { return rank != 0; }

constexpr std::array<pattern, 5> patterns{{
    {"one pair", false, to_last, only_last},
    {"shift", false, half_way, every_rank},
    {"all to all", true, to_all, every_rank},
    {"incast", true, to_first, only_first},
    {"behind incast", true, first_and_other, all_but_first},
}};

/// Returns when the ranks that count have received everything.
times run(const pattern& moved, std::size_t ranks, std::size_t bytes,
          const peerbus::simulated_platform& platform, peerbus::simulated_links* links) {
  peerbus::simulation_options options;
  options.platform = platform;
  options.links = links;
  options.most_carried_bytes = 8;
  std::vector<double> seen;
  const int status = peerbus::run_simulated(
      ranks,
      [&](peerbus::bootstrap& boot) {
        peerbus::communicator<simulated> comm{simulated{boot}};
        auto win = comm.make_window(bytes, ranks);
        const std::size_t own = comm.rank().index();
        const auto fail = [](peerbus::errc code) {
          if (code != peerbus::errc::ok) throw peerbus::error{code, "a pattern of puts"};
        };
        comm.barrier();
        const std::chrono::nanoseconds begin = std::chrono::seconds{10};
        simulated::advance(begin - simulated::now());
        for (const std::size_t to : moved.targets(own, ranks))
          fail(win.put_signal(rank_id{to}, 0, win.local(),
                              peerbus::signal_id{static_cast<std::uint32_t>(own)}, 1));
        for (std::size_t from = 0; from < ranks; ++from)
          for (const std::size_t to : moved.targets(from, ranks))
            if (to == own)
              fail(win.wait(peerbus::signal_id{static_cast<std::uint32_t>(from)}, 1,
                            peerbus::deadline::after(std::chrono::hours{1})));
        if (moved.counts(own, ranks))
          seen.push_back(
              std::chrono::duration<double, std::micro>{simulated::now() - begin}.count());
      },
      options);
  if (status != 0) throw std::runtime_error{"a simulated rank failed"};
  return summary_of({seen});
}

/// Returns whether a rank has cards of its own.
bool has_own_cards(const peerbus::simulated_platform& platform) {
  return std::ranges::all_of(platform.ports,
                             [](const peerbus::simulated_port& port) { return port.ranks == 1; });
}

}  // namespace

referee::referee(const platform_file& given, peerbus::simulated_links& links, bool csv)
    : given_{given}, links_{links}, csv_{csv} {
  if (csv) {
    std::puts("flows,ranks,tokens,shares,ports_us,simgrid_us,ports_slowest_us,simgrid_slowest_us");
    return;
  }
  std::printf(
      "%s; microseconds, median over ranks and the slowest rank, by ports and by SimGrid\n"
      "%6s %7s %-13s %-7s %10s %10s %8s %10s %10s %8s\n",
      given.platform.name.c_str(), "ranks", "tokens", "flows", "share", "ports", "SimGrid",
      "off by", "slowest", "SimGrid", "off by");
}

void referee::compare(const load& batch) {
  const auto row = format_of(batch);
  const std::size_t bytes = batch.tokens * (row.row_bytes + row.scale_bytes);
  if (batch.ranks > 1)
    for (const pattern& each : patterns)
      print(batch, each.name, !each.shares_cards && has_own_cards(given_.platform),
            run(each, batch.ranks, bytes, given_.platform, nullptr),
            run(each, batch.ranks, bytes, given_.platform, &links_));
  const prediction by_ports = predict(batch, given_.own, given_.platform);
  const prediction by_links = predict(batch, given_.own, given_.platform, {}, &links_);
  print(batch, "dispatch", false, by_ports.dispatch, by_links.dispatch);
  print(batch, "combine", false, by_ports.combine, by_links.combine);
}

void referee::print(const load& batch, const char* flows, bool is_alone, const times& by_ports,
                    const times& by_links) {
  const double median = by_links.median / by_ports.median - 1;
  const double slowest = by_links.slowest / by_ports.slowest - 1;
  if (is_alone && !(std::max(std::abs(median), std::abs(slowest)) <= tolerance)) agrees_ = false;
  const char* const share = is_alone ? "nothing" : "cards";
  if (csv_)
    std::printf("%s,%zu,%zu,%s,%.2f,%.2f,%.2f,%.2f\n", flows, batch.ranks, batch.tokens, share,
                by_ports.median, by_links.median, by_ports.slowest, by_links.slowest);
  else
    std::printf("%6zu %7zu %-13s %-7s %10.1f %10.1f %+7.1f %% %10.1f %10.1f %+7.1f %%\n",
                batch.ranks, batch.tokens, flows, share, by_ports.median, by_links.median,
                median * 100, by_ports.slowest, by_links.slowest, slowest * 100);
  std::fflush(stdout);
}

}  // namespace ep_predict
