// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/text.hpp>

#include "checks/describe.hpp"
#include "report.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::concat;

/// The most ranks whose pairs are printed one by one.
constexpr std::size_t most_ranks_of_table = 16;
constexpr std::size_t most_lines_of_group = 64;

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

/// Returns the pairs that were measured, by what `better` puts first.
template <class Better>
std::vector<std::pair<std::size_t, std::size_t>> sorted_pairs(const pair_matrix& pairs,
                                                              Better&& better) {
  std::vector<std::pair<std::size_t, std::size_t>> good;
  for (std::size_t from = 0; from < pairs.ranks; ++from)
    for (std::size_t to = 0; to < pairs.ranks; ++to)
      if (pairs.at(from, to).is_tried && pairs.at(from, to).error.empty())
        good.emplace_back(from, to);
  std::ranges::stable_sort(good, [&](const auto& a, const auto& b) {
    return better(pairs.at(a.first, a.second), pairs.at(b.first, b.second));
  });
  return good;
}

/// Returns the least, the median and the greatest value, and the pairs that are worst.
template <class Value, class Better>
std::string summary(const pair_matrix& pairs, Value&& value, Better&& better) {
  const auto sorted = sorted_pairs(pairs, better);
  if (sorted.empty()) return "  no pair was measured\n";
  const auto text_of = [&](std::size_t i) {
    return value(pairs.at(sorted[i].first, sorted[i].second));
  };
  std::string text = concat("  best ", text_of(0), ", median ", text_of(sorted.size() / 2),
                            ", worst ", text_of(sorted.size() - 1), "; worst pairs:");
  constexpr std::size_t named = 5;
  for (std::size_t i = 0; i < std::min(named, sorted.size()); ++i) {
    const auto& [from, to] = sorted[sorted.size() - 1 - i];
    text += concat(i == 0 ? " " : ", ", from, " to ", to, " (", value(pairs.at(from, to)), ")");
  }
  return text + "\n";
}

template <class Value>
std::string table(const pair_matrix& pairs, Value&& value) {
  constexpr std::size_t width = 8;
  std::string text = "  from \\ to";
  for (std::size_t to = 0; to < pairs.ranks; ++to) text += right(std::to_string(to), width);
  text += "\n";
  for (std::size_t from = 0; from < pairs.ranks; ++from) {
    text += right(std::to_string(from), 11);
    for (std::size_t to = 0; to < pairs.ranks; ++to) {
      const pair_result& pair = pairs.at(from, to);
      text += right(from == to            ? "-"
                    : !pair.is_tried      ? "?"
                    : !pair.error.empty() ? "failed"
                                          : value(pair),
                    width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

level report::worst() const {
  level worst = level::ok;
  for (const finding& each : findings) worst = std::max(worst, each.grade);
  return worst;
}

std::string group_text(const report& known) {
  std::string text = concat("\ngroup: ", known.ranks.size(), " ranks over ", known.chosen.transport,
                            ", which met in ", describe_fixed(known.meeting_ms, 1), " ms\n");
  const std::size_t lines = std::min(known.ranks.size(), most_lines_of_group);
  for (std::size_t rank = 0; rank < lines; ++rank) {
    const member& self = known.ranks[rank].self;
    text += concat("  rank ", rank, ": host ", self.host, ", process ", self.process, ", cores ",
                   describe_cores(self.cores), "\n");
  }
  if (lines < known.ranks.size())
    text += concat("  and ", known.ranks.size() - lines, " more; --json has all\n");
  return text;
}

std::string begin_text(std::size_t ranks) {
  if (ranks < 2) return {};
  return concat("\ntrying ", ranks * (ranks - 1), " pairs, one at a time\n");
}

std::string pairs_text(const pair_matrix& pairs, const try_options& tries) {
  if (pairs.ranks < 2) return "\npairs: none, as there is one rank\n";
  const auto microseconds = [](const pair_result& pair) {
    return describe_fixed(pair.latency_us, 2);
  };
  const auto gigabytes = [](const pair_result& pair) {
    return describe_fixed(pair.put_bytes_per_second / 1e9, 2);
  };
  const auto is_sooner = [](const pair_result& a, const pair_result& b) {
    return a.latency_us < b.latency_us;
  };
  const auto is_faster = [](const pair_result& a, const pair_result& b) {
    return a.put_bytes_per_second > b.put_bytes_per_second;
  };
  const bool is_small = pairs.ranks <= most_ranks_of_table;
  return concat("\nsignal, us: half of the median of ", tries.rounds, " round trips\n",
                is_small ? table(pairs, microseconds) : summary(pairs, microseconds, is_sooner),
                "\nput of ", describe_bytes(tries.put_bytes),
                ", GB/s: from the call until the receiver's signal is back\n",
                is_small ? table(pairs, gigabytes) : summary(pairs, gigabytes, is_faster));
}

std::string findings_text(const report& known) {
  std::string text = "\nfindings\n";
  std::array<std::size_t, 4> counts{};
  for (const level grade : {level::ok, level::note, level::warning, level::problem})
    for (const finding& each : known.findings) {
      if (each.grade != grade) continue;
      ++counts[static_cast<std::size_t>(grade)];
      const bool is_of_some = !each.ranks.empty() && each.ranks.size() < known.ranks.size();
      text +=
          report_line(to_string(grade),
                      concat(each.topic, ": ", each.text,
                             is_of_some ? concat(each.ranks.size() == 1 ? " (rank " : " (ranks ",
                                                 describe_numbers(each.ranks), ")")
                                        : std::string{}));
      if (!each.remedy.empty()) text += report_line("", "mend: " + each.remedy);
    }
  const auto count = [&](level grade, std::string_view name) {
    const std::size_t number = counts[static_cast<std::size_t>(grade)];
    return concat(number, " ", name, number == 1 ? "" : "s");
  };
  return text + concat("\n", known.worst() == level::problem ? "not healthy: " : "healthy: ",
                       count(level::problem, "problem"), ", ", count(level::warning, "warning"),
                       ", ", count(level::note, "note"), "\n");
}

}  // namespace peerbus_doctor
