// SPDX-License-Identifier: MIT
#include "ep_bench/routing_pattern.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include "examples/support/command_line.hpp"
#include "support/npy.hpp"

namespace ep_bench {
namespace {

template <class Number>
bool read_whole(std::string_view text, Number& value) {
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc{} && stop == text.data() + text.size();
}

/// Returns what follows `prefix` in `text`, if it begins so.
std::optional<std::string_view> after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return text.substr(prefix.size());
}

/// Returns the pattern without what a file holds, or nothing if `given` has none of the forms.
std::optional<routing_pattern> pattern_of(const std::string& given) {
  using kind = routing_pattern::kind;
  routing_pattern found;
  if (given == "uniform") return found;
  if (given == "incast") {
    found.of = kind::incast;
    return found;
  }
  const auto seed = after(given, "collectivex:");
  if (seed || given == "collectivex") {
    if (seed && !read_whole(*seed, found.seed)) return std::nullopt;
    found.of = kind::collectivex;
    return found;
  }
  found.in_order = given.starts_with("zipf-in-order:");
  if (const auto exponent = after(given, found.in_order ? "zipf-in-order:" : "zipf:")) {
    if (!read_whole(*exponent, found.zipf) || !(found.zipf >= 0 && found.zipf <= 100))
      return std::nullopt;
    return found;
  }
  if (const auto numbers = after(given, "groups:")) {
    const std::size_t colon = std::min(numbers->find(':'), numbers->size() - 1);
    if (!read_whole(numbers->substr(0, colon), found.groups) ||
        !read_whole(numbers->substr(colon + 1), found.of_groups) || found.of_groups == 0 ||
        found.of_groups > found.groups)
      return std::nullopt;
    found.of = kind::grouped;
    return found;
  }
  if (given.ends_with(".npy")) {
    found.of = kind::recorded;
    found.file = given;
    return found;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& text) { programs::refuse("--routing", text); }

/// Checks that each row of `ids` names `top_k` different experts.
void check_rows(const routing_pattern& recorded, std::size_t experts, std::size_t top_k) {
  for (std::size_t row = 0; row * top_k < recorded.ids.size(); ++row) {
    const auto* const first = recorded.ids.data() + row * top_k;
    std::vector<std::int32_t> sorted{first, first + top_k};
    std::ranges::sort(sorted);
    const auto at = "'" + recorded.file + "' has in row " + std::to_string(row) + " ";
    if (sorted.front() < 0 || static_cast<std::size_t>(sorted.back()) >= experts)
      refuse(at + "expert " + std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
             ", expected 0 to " + std::to_string(experts - 1) + " (--experts)");
    const auto twice = std::ranges::adjacent_find(sorted);
    if (twice != sorted.end())
      refuse(at + "expert " + std::to_string(*twice) + " twice, expected different ones");
  }
}

bench::npy_table read_table(const std::string& file) {
  try {
    return bench::npy_table::read(file);
  } catch (const std::runtime_error& problem) {
    refuse("'" + file + "' " + problem.what());
  }
}

void read_ids(routing_pattern& recorded, std::size_t experts, std::size_t top_k) {
  const bench::npy_table table = read_table(recorded.file);
  if (table.rows == 0 || table.columns != top_k)
    refuse("'" + recorded.file + "' has " + std::to_string(table.rows) + " x " +
           std::to_string(table.columns) + " ids, expected tokens x " + std::to_string(top_k) +
           " (--top-k)");
  recorded.ids.reserve(table.values.size());
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t id : table.values)
    recorded.ids.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(id, -1, most)));
  check_rows(recorded, experts, top_k);
}

}  // namespace

std::string routing_complaint(const std::string& given) {
  const auto found = pattern_of(given);
  if (!found)
    return "'" + given +
           "' given, expected uniform, incast, zipf:S or zipf-in-order:S with a number S from 0 to "
           "100 such as zipf:1.2, groups:G:L with L of G groups such as groups:8:4, collectivex or "
           "collectivex:SEED with a whole number SEED below 2^64, or a .npy file";
  if (found->of == routing_pattern::kind::recorded && !std::ifstream{given}.is_open())
    return "'" + given + "' cannot be read, expected a .npy file of ids, [tokens, top_k]";
  return {};
}

routing_pattern read_routing(const std::string& given, std::size_t experts, std::size_t top_k) {
  routing_pattern found = pattern_of(given).value();
  if (found.of == routing_pattern::kind::recorded) read_ids(found, experts, top_k);
  if (experts % found.groups != 0 || found.of_groups * (experts / found.groups) < top_k)
    refuse("'" + given + "' given, expected a number of groups that divides " +
           std::to_string(experts) + " experts, and at least " + std::to_string(top_k) +
           " experts in the groups of a token");
  return found;
}

}  // namespace ep_bench
