// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/rank.hpp>

#include "chart.hpp"

namespace moe_text {

namespace {

void print_rank_table(std::size_t experts, std::span<const rank_statistics> statistics,
                      std::span<const std::uint64_t> rows_of_expert) {
  std::puts("");
  std::puts("                                          dispatch, us        combine, us");
  std::puts("rank   tokens     rows   hottest expert   median   slowest    median   slowest");
  for (const peerbus::rank_id rank : peerbus::all_ranks{statistics.size()}) {
    const rank_statistics& entry = statistics[rank.index()];
    const auto own = rows_of_expert.subspan(rank.index() * experts, experts);
    std::string hottest = "-";
    if (entry.rows != 0) {
      const auto most = std::max_element(own.begin(), own.end());
      hottest = std::to_string(most - own.begin());
      hottest.insert(0, 1, '#').append(": ").append(std::to_string(*most));
    }
    std::printf("%4zu %8zu %8zu %16s %8.0f %9.0f %9.0f %9.0f\n", rank.index(),
                static_cast<std::size_t>(entry.tokens), static_cast<std::size_t>(entry.rows),
                hottest.c_str(), entry.dispatch.median, entry.dispatch.slowest,
                entry.combine.median, entry.combine.slowest);
  }
}

void print_load(std::size_t ranks, std::span<const std::uint64_t> rows_of_expert) {
  std::uint64_t rows = 0;
  for (const std::uint64_t each : rows_of_expert) rows += each;
  const auto most = std::max_element(rows_of_expert.begin(), rows_of_expert.end());
  const double even = static_cast<double>(rows) / static_cast<double>(rows_of_expert.size());
  std::printf("\nrows per expert, from #0 to #%zu", rows_of_expert.size() - 1);
  if (rows != 0)
    std::printf("; even would be %.0f, expert #%td has %.1f x that", even,
                most - rows_of_expert.begin(), static_cast<double>(*most) / even);
  std::printf("\n%s", load_chart(rows_of_expert, ranks, terminal_width()).c_str());
}

/// Returns whether `given` equals `expected`, and prints both if not.
bool require_equal(const char* what, std::uint64_t given, std::uint64_t expected) {
  if (given == expected) return true;
  std::printf("WRONG: %s: %zu, expected %zu\n", what, static_cast<std::size_t>(given),
              static_cast<std::size_t>(expected));
  return false;
}

}  // namespace

void print_introduction(const options& given, const std::vector<std::string>& words) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& word : words) ++counts[word];
  std::vector<std::pair<std::string, std::size_t>> frequent(counts.begin(), counts.end());
  std::stable_sort(frequent.begin(), frequent.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::printf("%s: %zu words, %zu different", given.file.c_str(), words.size(), counts.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(frequent.size(), 4); ++i)
    std::printf("%s %s (%zu)", i == 0 ? "; most frequent:" : ",", frequent[i].first.c_str(),
                frequent[i].second);
  std::printf("\n%zu processes, %zu experts, top-%zu, hidden %zu, codec %s\n", given.ranks,
              given.experts, given.top_k, given.hidden,
              given.codec == wire_codec::int8 ? "int8 per token" : "bf16");
}

bool print_report(const options& given, std::size_t words,
                  std::span<const rank_statistics> statistics,
                  std::span<const std::uint64_t> rows_of_expert) {
  print_rank_table(given.experts, statistics, rows_of_expert);
  std::vector<std::uint64_t> of_all_ranks(given.experts);
  for (std::size_t i = 0; i < rows_of_expert.size(); ++i)
    of_all_ranks[i % given.experts] += rows_of_expert[i];
  print_load(given.ranks, of_all_ranks);

  rank_statistics total;
  for (const rank_statistics& entry : statistics) {
    total.tokens += entry.tokens;
    total.rows += entry.rows;
    total.missed_faults += entry.missed_faults;
    total.wrong_rows += entry.wrong_rows;
    total.largest_error = std::max(total.largest_error, entry.largest_error);
    total.largest_relative_error =
        std::max(total.largest_relative_error, entry.largest_relative_error);
    total.largest_share_of_bound =
        std::max(total.largest_share_of_bound, entry.largest_share_of_bound);
  }
  std::printf(
      "\nlargest error against one plain process: %.2g, or %.2g of the row's largest value\n",
      total.largest_error, total.largest_relative_error);
  std::printf("bound, channel by channel: what rounding to bf16 twice may do; %.0f %% of it used\n",
              100 * total.largest_share_of_bound);

  bool is_right = require_equal("tokens", total.tokens, words);
  is_right =
      require_equal("rows that the ranks received", total.rows, words * given.top_k) && is_right;
  is_right = require_equal("wrong output rows", total.wrong_rows, 0) && is_right;
  is_right =
      require_equal("rows that pass without their heaviest expert", total.missed_faults, 0) &&
      is_right;
  for (std::size_t rank = 0; rank < statistics.size(); ++rank)
    if (statistics[rank].wrong_rows != 0)
      std::printf("WRONG: rank %zu: %zu rows, the first of them of word %zu\n", rank,
                  static_cast<std::size_t>(statistics[rank].wrong_rows),
                  static_cast<std::size_t>(statistics[rank].first_wrong_word));
  std::printf("%s\n", is_right ? "all rows match" : "NOT all rows match");
  return is_right;
}

}  // namespace moe_text
