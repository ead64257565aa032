// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>
#include <set>

#include <peerbus/core/text.hpp>

#include "describe.hpp"
#include "diagnose.hpp"
#include "findings_about.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::concat;

/// Returns the cores that the ranks of a host may use, all ranks together.
double cores_of(const std::vector<member>& ranks_of_host) {
  std::set<std::uint32_t> cores;
  std::optional<double> quota;
  for (const member& each : ranks_of_host) {
    cores.insert(each.cores.begin(), each.cores.end());
    if (each.quota) quota = std::max(quota.value_or(0), *each.quota);
  }
  const auto count = static_cast<double>(cores.size());
  return std::min(count, quota.value_or(count));
}

}  // namespace

std::vector<finding> diagnose_group(const std::vector<member>& members, const purpose& wanted) {
  std::vector<finding> all;
  findings_about found{all, "group"};
  std::map<std::string, std::vector<member>> hosts;
  for (const member& each : members) hosts[each.host].push_back(each);
  const bool connects_hosts =
      wanted.transport == "verbs" || wanted.transport == "fabric" || wanted.transport == "planes";
  if (hosts.size() > 1 && !connects_hosts)
    found.problem(concat("the ranks are on ", hosts.size(), " hosts, which ", wanted.transport,
                         " does not connect"),
                  "--transport verbs with RDMA devices, else --transport fabric or planes");
  for (const auto& [host, ranks] : hosts) {
    const double cores = cores_of(ranks);
    if (cores < static_cast<double>(ranks.size()))
      found.warning(concat(ranks.size(), " ranks on ", host, " share ", describe_decimal(cores),
                           cores == 1 ? " core" : " cores",
                           ", so that times are mostly those of waiting for a turn"),
                    "start at most one rank per core, or give the ranks more cores (taskset, "
                    "docker run --cpuset-cpus, srun --cpus-per-task)");
    else
      found.ok(concat("a core for each of the ", ranks.size(), " ranks on ", host));
  }
  return all;
}

std::vector<finding> diagnose_pairs(const pair_matrix& pairs) {
  std::vector<finding> all;
  findings_about found{all, "pairs"};
  std::map<std::string, std::vector<std::string>> failures;
  std::size_t untried = 0;
  std::size_t good = 0;
  for (std::size_t from = 0; from < pairs.ranks; ++from)
    for (std::size_t to = 0; to < pairs.ranks; ++to) {
      if (from == to) continue;
      const pair_result& pair = pairs.at(from, to);
      if (!pair.is_tried) ++untried;
      if (pair.is_tried && pair.error.empty()) ++good;
      if (pair.is_tried && !pair.error.empty())
        failures[pair.error].push_back(concat(from, " to ", to));
    }
  constexpr std::size_t most_names = 8;
  for (auto& [error, names] : failures) {
    std::string text = names.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(names.size(), most_names); ++i)
      text += (i == 0 ? "" : ", ") + names[i];
    if (names.size() > most_names) text += concat(" and ", names.size() - most_names, " more");
    found.problem(concat(text, ": ", error),
                  "look at the output of those ranks; run peerbus_doctor with them alone");
  }
  const std::string not_tried =
      concat(untried, untried == 1 ? " pair was not tried" : " pairs were not tried");
  if (!pairs.ended_by.empty())
    found.problem(concat(pairs.ended_by, "; ", not_tried),
                  "look at the output of that rank, and at dmesg for the kernel's reason");
  else if (untried != 0)
    found.problem(concat(not_tried, ", as a rank did not answer"),
                  "see what is said of the other pairs");
  if (good != 0)
    found.ok(concat(good, good == 1 ? " pair" : " pairs", ": every put arrived unchanged"));
  return all;
}

finding diagnose_failure(peerbus::errc code, std::string_view text) {
  const auto remedy = [code]() -> std::string {
    switch (code) {
      case peerbus::errc::timed_out:
        return "look at the output of the ranks that are missing; start every rank with the same "
               "WORLD_SIZE, MASTER_ADDR and MASTER_PORT and as the same user; --timeout waits "
               "longer";
      case peerbus::errc::peer_dead:
        return "look at the output of that rank, and at dmesg for the kernel's reason";
      case peerbus::errc::mismatch:
        return "start all ranks with the same build and the same arguments, and groups that run "
               "at once with ports of their own (MASTER_PORT)";
      case peerbus::errc::invalid_argument:
        return "correct the variable or the device that the text names (docs/bootstrap.md, "
               "docs/transports.md)";
      case peerbus::errc::out_of_memory:
        return "raise what the text names: ulimit -l for verbs, else the memory of the container "
               "(docker run --memory); or lower --put-bytes";
      case peerbus::errc::unsupported:
        return "unified_bus needs all ranks on one host, in one network namespace and of one "
               "user; verbs, fabric and planes connect hosts (--transport), verbs by RDMA devices, "
               "fabric "
               "and planes by any network";
      default: return "docs/errors.md says what the code in brackets means";
    }
  };
  return {level::problem, "group", concat(text, " [", to_string(code), "]"), remedy(), {}};
}

std::vector<finding> merge(const std::vector<std::vector<finding>>& of_ranks) {
  std::vector<finding> all;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const finding& each : of_ranks[rank]) {
      auto same = std::ranges::find_if(all, [&](const finding& known) {
        return known.grade == each.grade && known.topic == each.topic && known.text == each.text;
      });
      if (same == all.end()) same = all.insert(all.end(), each);
      same->ranks.push_back(rank);
    }
  return all;
}

}  // namespace peerbus_doctor
