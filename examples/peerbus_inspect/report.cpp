// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus_inspect {
namespace {

using json = nlohmann::ordered_json;
using peerbus::concat;
using peerbus::observed_rank;

constexpr const char* names[] = {"ended",    "moving", "elsewhere", "busy",
                                 "mismatch", "gone",   "stopped"};
constexpr const char* standings[] = {"waits", "busy", "stopped", "gone", "left", "absent"};

double milliseconds(std::chrono::nanoseconds span) {
  return std::chrono::duration<double, std::milli>(span).count();
}

std::string text_of(std::chrono::nanoseconds span) {
  char text[32];
  const double ms = milliseconds(span);
  std::snprintf(text, sizeof text, ms < 1000 ? "%.0f ms" : "%.1f s", ms < 1000 ? ms : ms / 1000);
  return text;
}

/// Returns text such as "0, 2-7" for sorted numbers.
std::string list_of(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += concat(i == 0 ? "" : ", ", numbers[i]);
    if (last != i) text += concat(last == i + 1 ? ", " : "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string ranks_of(const group_view& group, const std::vector<std::size_t>& places) {
  std::vector<std::size_t> numbers;
  for (const std::size_t place : places) numbers.push_back(group.ranks[place].rank.index());
  return concat(numbers.size() == 1 ? "rank " : "ranks ", list_of(numbers));
}

std::vector<std::size_t> unseen(const group_view& group) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < group.size; ++i)
    if (!std::ranges::any_of(group.ranks, [i](auto& rank) { return rank.rank.index() == i; }))
      numbers.push_back(i);
  return numbers;
}

std::string pids_of(const group_view& group) {
  std::string text;
  for (const std::size_t place : group.answer.culprits)
    text += concat(text.empty() ? "" : " ", group.ranks[place].process);
  return text;
}

/// Returns what the ranks of a mismatch wait in, such as "rank 1 waits in barrier 3 (for 5 s);
/// ...".
std::string waits_text(const group_view& group) {
  std::string text;
  std::vector<std::size_t> left = group.answer.culprits;
  while (!left.empty()) {
    const observed_rank& first = group.ranks[left.front()];
    std::vector<std::size_t> alike;
    std::erase_if(left, [&](std::size_t i) {
      const bool is_alike = group.ranks[i].latest->wait == first.latest->wait;
      if (is_alike) alike.push_back(i);
      return is_alike;
    });
    text += concat(text.empty() ? "" : "; ", ranks_of(group, alike),
                   alike.size() == 1 ? " is " : " are ", describe(*first.latest), " for ",
                   text_of(first.latest->since));
  }
  return text;
}

/// Returns what the culprits are, such as "rank 3 (pid 4711) is stopped".
std::string culprits_text(const group_view& group) {
  const auto& answer = group.answer;
  const bool is_one = answer.culprits.size() == 1;
  std::string text = ranks_of(group, answer.culprits);
  if (answer.culprits.size() <= 8) text += concat(" (pid ", pids_of(group), ")");
  text += is_one ? " is " : " are ";
  if (answer.found == finding::elsewhere) return text + "waiting in another group";
  text += names[static_cast<std::size_t>(answer.found)];
  const auto& latest = group.ranks[answer.culprits.front()].latest;
  if (is_one && answer.found == finding::busy)
    text += concat(" (", latest ? describe(*latest) : "in no operation yet", ")");
  return text;
}

const observed_rank* longest_of(const group_view& group, const std::vector<std::size_t>& waiters) {
  const auto since = [&](std::size_t i) { return group.ranks[i].latest->since; };
  const auto found = std::ranges::max_element(waiters, {}, since);
  return found == waiters.end() ? nullptr : &group.ranks[*found];
}

json rank_json(const group_view& group, std::size_t place) {
  const observed_rank& rank = group.ranks[place];
  json text{{"rank", rank.rank.index()},
            {"pid", rank.process},
            {"process", name_of(rank.is)},
            {"does", standings[static_cast<std::size_t>(standing_of(rank))]},
            {"latest", nullptr},
            {"waits_for", json::array()}};
  if (rank.latest)
    text["latest"] = {{"operation", name_of(rank.latest->wait.operation)},
                      {"phase", name_of(rank.latest->wait.phase)},
                      {"number", rank.latest->wait.number},
                      {"is_over", rank.latest->is_over},
                      {"since_ms", milliseconds(rank.latest->since)},
                      {"heard_ms", milliseconds(rank.latest->heard)}};
  for (const std::size_t each : group.answer.waits_for[place])
    text["waits_for"].push_back(group.ranks[each].rank.index());
  return text;
}

}  // namespace

std::vector<group_view> look_at(const std::vector<peerbus::observed_group>& parts,
                                std::chrono::nanoseconds patience) {
  std::vector<group_view> groups;
  std::vector<std::uint64_t> ids;
  for (const peerbus::observed_group& part : parts) {
    const auto seen = part.read();
    const auto found = std::ranges::find(ids, part.id());
    const auto place = static_cast<std::size_t>(found - ids.begin());
    if (found == ids.end()) {
      ids.push_back(part.id());
      groups.push_back({.size = part.size()});
    }
    groups[place].ranks.insert(groups[place].ranks.end(), seen.begin(), seen.end());
  }
  std::multiset<pid_t> waiting;  // A process may wait in several groups, by several threads.
  for (group_view& group : groups) {
    std::ranges::sort(group.ranks, {}, &observed_rank::rank);
    for (const observed_rank& rank : group.ranks)
      if (standing_of(rank) == standing::waits) waiting.insert(rank.process);
  }
  for (group_view& group : groups) {
    std::multiset<pid_t> here;
    for (const observed_rank& rank : group.ranks)
      if (standing_of(rank) == standing::waits) here.insert(rank.process);
    std::vector<bool> waits_elsewhere;
    for (const observed_rank& rank : group.ranks)
      waits_elsewhere.push_back(waiting.count(rank.process) > here.count(rank.process));
    group.answer =
        diagnose(group.ranks, group.ranks.size() >= group.size, waits_elsewhere, patience);
  }
  std::ranges::stable_sort(groups, std::ranges::greater{},
                           [](const group_view& group) { return group.answer.found; });
  return groups;
}

std::string answer_text(const group_view& group) {
  const diagnosis& answer = group.answer;
  switch (answer.found) {
    case finding::ended: return "the group has ended";
    case finding::moving: return "the group works: no rank has waited for long";
    case finding::mismatch: return "MISMATCH: " + waits_text(group);
    default: break;
  }
  if (answer.culprits.empty()) {
    std::string text = "all ranks that are seen wait for others, which are elsewhere: ranks ";
    return text + list_of(unseen(group));
  }
  const observed_rank* const longest = longest_of(group, answer.waiters);
  if (longest == nullptr) return culprits_text(group) + "; no rank waits for it yet";
  return concat(culprits_text(group), "; ", answer.waiters.size(),
                answer.waiters.size() == 1 ? " rank waits for " : " ranks wait for ",
                answer.culprits.size() == 1 ? "it" : "them", ", the longest for ",
                text_of(longest->latest->since), ": ", longest->rank, ", ",
                describe(*longest->latest));
}

std::string report_text(const std::vector<group_view>& groups) {
  std::string text = answer_text(groups.front()) + "\n";
  const finding worst = groups.front().answer.found;
  if (worst == finding::stopped)
    text += concat("kill -CONT ", pids_of(groups.front()), " lets it go on\n");
  if (worst == finding::busy)
    text += concat("gdb -p ", groups.front().ranks[groups.front().answer.culprits.front()].process,
                   " -batch -ex 'thread apply all bt' shows what it does\n");
  for (const group_view& group : groups) {
    text += concat("\ngroup of ", group.size, " ranks: ", answer_text(group),
                   "\n  rank      pid  process    since    heard  does\n");
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      const observed_rank& rank = group.ranks[i];
      const bool has_waited = rank.latest.has_value();
      char line[96];
      std::snprintf(line, sizeof line, "  %4zu %8d  %-7s %8s %8s  ", rank.rank.index(),
                    static_cast<int>(rank.process), name_of(rank.is),
                    has_waited ? text_of(rank.latest->since).c_str() : "-",
                    has_waited ? text_of(rank.latest->heard).c_str() : "-");
      const standing part = standing_of(rank);
      text += line;
      if (part == standing::gone || part == standing::left || part == standing::absent)
        text += concat(standings[static_cast<std::size_t>(part)], has_waited ? ", " : "");
      if (has_waited) text += describe(*rank.latest);
      if (!group.answer.waits_for[i].empty())
        text += concat(", for ", ranks_of(group, group.answer.waits_for[i]));
      text += "\n";
    }
    if (const auto missing = unseen(group); !missing.empty())
      text += concat("  not seen: ranks ", list_of(missing),
                     ". The group met over TCP; name a process of each, on its host\n");
  }
  return text;
}

std::string report_json(const std::vector<group_view>& groups) {
  json all = json::array();
  for (const group_view& group : groups) {
    json ranks = json::array();
    json culprits = json::array();
    for (std::size_t i = 0; i < group.ranks.size(); ++i) ranks.push_back(rank_json(group, i));
    for (const std::size_t each : group.answer.culprits)
      culprits.push_back(group.ranks[each].rank.index());
    all.push_back({{"size", group.size},
                   {"finding", names[static_cast<std::size_t>(group.answer.found)]},
                   {"answer", answer_text(group)},
                   {"culprits", culprits},
                   {"waiters", group.answer.waiters.size()},
                   {"ranks", ranks},
                   {"not_seen", unseen(group)}});
  }
  return json{{"answer", answer_text(groups.front())}, {"groups", all}}.dump(2) + "\n";
}

}  // namespace peerbus_inspect
