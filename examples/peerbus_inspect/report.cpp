// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <set>

#include <nlohmann/json.hpp>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus_inspect {
namespace {

using json = nlohmann::ordered_json;
using peerbus::concat;
using peerbus::observed_rank;
using places = std::vector<std::size_t>;

// In the order of the enumerators.
constexpr const char* findings[] = {"ended",    "moving", "elsewhere", "busy",
                                    "mismatch", "gone",   "stopped"};
constexpr const char* standings[] = {"waits", "busy", "stopped", "gone", "left", "absent"};

double milliseconds(std::chrono::nanoseconds span) {
  return std::chrono::duration<double, std::milli>(span).count();
}

std::string text_of(std::chrono::nanoseconds span) {
  const double ms = milliseconds(span);
  char text[32];
  std::snprintf(text, sizeof text, ms < 1000 ? "%.0f ms" : "%.1f s", ms < 1000 ? ms : ms / 1000);
  return text;
}

/// Returns text such as "rank 3" or "ranks 0, 2-7" for sorted numbers.
std::string ranks_text(const places& numbers) {
  std::string text = numbers.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0, last = 0; i < numbers.size(); i = last + 1) {
    for (last = i; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += concat(i == 0 ? "" : ", ", numbers[i]);
    if (last != i) text += concat("-", numbers[last]);
  }
  return text;
}

places numbers_of(const group_view& group, const places& which) {
  places numbers;
  numbers.reserve(which.size());
  for (const std::size_t place : which) numbers.push_back(group.ranks[place].rank.index());
  return numbers;
}

places not_seen(const group_view& group) {
  places numbers;
  for (std::size_t i = 0; i < group.size; ++i)
    if (!std::ranges::count(group.ranks, peerbus::rank_id{i}, &observed_rank::rank))
      numbers.push_back(i);
  return numbers;
}

/// The ranks of one host that are not seen.
struct hidden_ranks {
  std::string host;
  bool is_here = true;
  places ranks;
};

/// Returns the ranks that are not seen, by host.
std::vector<hidden_ranks> hidden_by_host(const group_view& group) {
  std::vector<hidden_ranks> hosts;
  for (const std::size_t rank : not_seen(group)) {
    const std::string& host = group.hosts[rank];
    auto found = std::ranges::find(hosts, host, &hidden_ranks::host);
    if (found == hosts.end()) found = hosts.insert(found, {host, host == group.here, {}});
    found->ranks.push_back(rank);
  }
  return hosts;
}

/// Returns the host, or what to say of one that was given no name and has no address for others.
std::string host_text(const std::string& host) {
  return host.empty() ? "a host whose name is not known" : "host " + host;
}

/// Returns text such as "ranks 1, 2; ranks 4-7 on host 10.0.0.2".
std::string not_seen_text(const group_view& group) {
  std::string text;
  for (const auto& [host, is_here, ranks] : hidden_by_host(group))
    text += concat(text.empty() ? "" : "; ", ranks_text(ranks),
                   is_here ? "" : " on " + host_text(host));
  return text;
}

std::string processes_of(const group_view& group) {
  std::string text;
  std::set<pid_t> known;  // Ranks that are threads have one in common.
  for (const std::size_t place : group.answer.culprits)
    if (const pid_t process = group.ranks[place].process; known.insert(process).second)
      text += concat(text.empty() ? "" : " ", process);
  return text;
}

/// Returns what all ranks wait in, such as "rank 1 is waiting in barrier 3; ranks 0, 2-7 are ...".
std::string mismatch_text(const group_view& group) {
  std::string text;
  for (places left = group.answer.culprits; !left.empty();) {
    const auto& first = *group.ranks[left.front()].latest;
    const auto others = std::stable_partition(left.begin(), left.end(), [&](std::size_t i) {
      return group.ranks[i].latest->wait == first.wait;
    });
    const places alike{left.begin(), others};
    text += concat(text.empty() ? "MISMATCH: " : "; ", ranks_text(numbers_of(group, alike)),
                   alike.size() == 1 ? " is " : " are ", describe(first), " for ",
                   text_of(first.since));
    left.erase(left.begin(), others);
  }
  return text;
}

/// Returns the answer in a line.
std::string answer_text(const group_view& group) {
  const auto& [found, culprits, waits_for, waiters] = group.answer;
  if (found == finding::ended) return "the group has ended";
  if (found == finding::moving) return "no rank has waited for long";
  if (found == finding::mismatch) return mismatch_text(group);
  if (culprits.empty())
    return concat("all ranks that are seen wait for others: ", not_seen_text(group));
  const auto& first = group.ranks[culprits.front()];
  const bool is_one = culprits.size() == 1;
  std::string text = concat(ranks_text(numbers_of(group, culprits)), " (pid ", processes_of(group),
                            is_one ? ") is " : ") are ");
  text += found == finding::elsewhere ? "waiting in another group"
                                      : findings[static_cast<std::size_t>(found)];
  if (is_one && found == finding::busy)
    text += concat(", ", first.latest ? describe(*first.latest) : "in no operation yet");
  if (waiters.empty()) return text + "; no rank waits for that yet";
  const auto& longest = group.ranks[*std::ranges::max_element(
      waiters, {}, [&](std::size_t i) { return group.ranks[i].latest->since; })];
  return text + concat("; ", waiters.size(), waiters.size() == 1 ? " rank waits" : " ranks wait",
                       " for ", is_one ? "it" : "them", ", the longest for ",
                       text_of(longest.latest->since), ": ", longest.rank, ", ",
                       describe(*longest.latest));
}

std::string rank_line(const group_view& group, std::size_t place) {
  const observed_rank& rank = group.ranks[place];
  const auto part = static_cast<std::size_t>(standing_of(rank));
  char line[96];
  std::snprintf(line, sizeof line, "  %4zu %8d  %-7s  %-7s %8s %8s  ", rank.rank.index(),
                static_cast<int>(rank.process), name_of(rank.is), standings[part],
                rank.latest ? text_of(rank.latest->since).c_str() : "-",
                rank.latest ? text_of(rank.latest->heard).c_str() : "-");
  std::string text = line + (rank.latest ? describe(*rank.latest) : "-");
  const places& awaited = group.answer.waits_for[place];
  if (!awaited.empty()) text += concat(", for ", ranks_text(numbers_of(group, awaited)));
  return text + "\n";
}

json rank_json(const group_view& group, std::size_t place) {
  const observed_rank& rank = group.ranks[place];
  json text{{"rank", rank.rank.index()},
            {"pid", rank.process},
            {"process", name_of(rank.is)},
            {"part", standings[static_cast<std::size_t>(standing_of(rank))]},
            {"waits_for", numbers_of(group, group.answer.waits_for[place])},
            {"latest", nullptr}};
  if (rank.latest)
    text["latest"] = {{"operation", name_of(rank.latest->wait.operation)},
                      {"phase", name_of(rank.latest->wait.phase)},
                      {"number", rank.latest->wait.number},
                      {"is_over", rank.latest->is_over},
                      {"since_ms", milliseconds(rank.latest->since)},
                      {"heard_ms", milliseconds(rank.latest->heard)}};
  return text;
}

}  // namespace

std::vector<group_view> look_at(const std::vector<peerbus::observed_group>& parts,
                                std::chrono::nanoseconds patience) {
  std::vector<group_view> groups;
  std::vector<std::uint64_t> ids;
  for (const peerbus::observed_group& part : parts) {
    const auto place = static_cast<std::size_t>(std::ranges::find(ids, part.id()) - ids.begin());
    if (place == ids.size()) {
      ids.push_back(part.id());
      groups.push_back({.size = part.size()});
      for (std::size_t rank = 0; rank < part.size(); ++rank)
        groups.back().hosts.push_back(part.host_of(peerbus::rank_id{rank}));
    }
    for (const observed_rank& rank : part.read()) {
      groups[place].ranks.push_back(rank);
      groups[place].here = part.host_of(rank.rank);
    }
  }
  for (group_view& group : groups) {
    std::ranges::sort(group.ranks, {}, &observed_rank::rank);
    const bool is_whole =
        group.ranks.size() == group.size &&
        std::ranges::adjacent_find(group.ranks, {}, &observed_rank::rank) == group.ranks.end();
    std::vector<bool> waits_elsewhere;
    waits_elsewhere.reserve(group.ranks.size());
    for (const observed_rank& rank : group.ranks)
      waits_elsewhere.push_back(std::ranges::any_of(groups, [&](const group_view& other) {
        return &other != &group && std::ranges::any_of(other.ranks, [&](const auto& each) {
          return each.process == rank.process && standing_of(each) == standing::waits;
        });
      }));
    group.answer = diagnose(group.ranks, is_whole, waits_elsewhere, patience);
  }
  std::ranges::stable_sort(groups, std::greater{},
                           [](const group_view& group) { return group.answer.found; });
  return groups;
}

std::string report_text(const std::vector<group_view>& groups) {
  const group_view& worst = groups.front();
  std::string text = answer_text(worst) + "\n";
  if (worst.answer.found == finding::stopped)
    text += concat("kill -CONT ", processes_of(worst), " lets it go on\n");
  if (worst.answer.found == finding::busy)
    text += concat("gdb -p ", worst.ranks[worst.answer.culprits.front()].process,
                   " -batch -ex 'thread apply all bt' shows where it is\n");
  for (const group_view& group : groups) {
    text += concat("\ngroup of ", group.size, " ranks");
    if (&group != &worst) text += ": " + answer_text(group);
    text += "\n  rank      pid  process  part       since    heard  latest wait\n";
    for (std::size_t i = 0; i < group.ranks.size(); ++i) text += rank_line(group, i);
    for (const auto& [host, is_here, ranks] : hidden_by_host(group))
      text += concat("  not seen: ", ranks_text(ranks),
                     is_here ? "; of a group that met over TCP, name all processes of this host\n"
                             : concat("; ask on ", host_text(host), "\n"));
  }
  return text;
}

std::string report_json(const std::vector<group_view>& groups,
                        const std::vector<std::size_t>& gone) {
  json all = json::array();
  for (const group_view& group : groups) {
    json ranks = json::array();
    for (std::size_t i = 0; i < group.ranks.size(); ++i) ranks.push_back(rank_json(group, i));
    json elsewhere = json::array();
    for (const auto& [host, is_here, hidden] : hidden_by_host(group))
      if (!is_here)
        elsewhere.push_back({{"host", host.empty() ? json() : json(host)}, {"ranks", hidden}});
    all.push_back({{"size", group.size},
                   {"answer", answer_text(group)},
                   {"finding", findings[static_cast<std::size_t>(group.answer.found)]},
                   {"culprits", numbers_of(group, group.answer.culprits)},
                   {"waiters", numbers_of(group, group.answer.waiters)},
                   {"not_seen", not_seen(group)},
                   {"elsewhere", elsewhere},
                   {"ranks", ranks}});
  }
  // The name of a host may be any bytes.
  return json{{"answer", answer_text(groups.front())}, {"gone", gone}, {"groups", all}}.dump(
             2, ' ', false, json::error_handler_t::replace) +
         "\n";
}

}  // namespace peerbus_inspect
