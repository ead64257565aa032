// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <system_error>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

namespace detail {

inline constexpr std::string_view cost_table_title = "peerbus costs 1";

/// Returns whether a table may have a cost of this name.
PEERBUS_INLINE bool names_a_cost(std::string_view name) noexcept {
  for (const char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_')) return false;
  return !name.empty();
}

PEERBUS_INLINE std::optional<double> read_cost(std::string_view text) noexcept {
  double value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = problem == std::errc{} && rest == text.data() + text.size();
  return is_whole ? std::optional{value} : std::nullopt;
}

/// Returns the text before the first `last`, and takes it and `last` from `text`.
PEERBUS_INLINE std::string_view take_until(std::string_view& text, char last) noexcept {
  const std::size_t end = std::min(text.find(last), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

}  // namespace detail

PEERBUS_INLINE cost_table cost_table::parse(std::string_view text, std::string_view source) {
  using detail::concat;
  cost_table costs;
  std::size_t number = 0;
  bool has_title = false;
  while (!text.empty()) {
    std::string_view line = detail::take_until(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    const auto fail = [&](std::string_view problem) {
      throw error{errc::invalid_argument,
                  concat(source, ", line ", number, ": \"", line, "\" ", problem)};
    };
    if (line.empty() || line.starts_with('#')) continue;
    if (!has_title && line != detail::cost_table_title)
      fail(concat("stands before the costs, expected \"", detail::cost_table_title, "\""));
    if (!has_title) {
      has_title = true;
      continue;
    }
    std::string_view rest = line;
    const std::string_view name = detail::take_until(rest, ' ');
    const std::optional<double> value = detail::read_cost(rest);
    if (!value) fail("is no cost, expected a name, a space and a number");
    if (costs.find(name)) fail("gives this cost a second time");
    try {
      costs.set(name, *value);
    } catch (const error& problem) {
      fail(concat("is no cost: ", problem.text()));
    }
  }
  if (!has_title)
    throw error{errc::invalid_argument, concat(source, " is empty, expected a line \"",
                                               detail::cost_table_title, "\" and the costs")};
  return costs;
}

PEERBUS_INLINE cost_table cost_table::load(const std::string& path) {
  // Not by a stream, whose header would cost every program that includes an exchange.
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file{std::fopen(path.c_str(), "rb"), close};
  std::string text;
  char block[4096];
  constexpr std::size_t most = std::size_t{1} << 16;
  // A file such as /dev/zero has no end.
  for (std::size_t bytes = 1; file && bytes > 0 && text.size() <= most;) {
    bytes = std::fread(block, 1, sizeof block, file.get());
    text.append(block, bytes);
  }
  // A directory is opened, and cannot be read.
  if (!file || std::ferror(file.get()) != 0)
    throw error{errc::system, detail::concat("costs cannot be read from ", path)};
  if (text.size() > most)
    throw error{errc::invalid_argument,
                detail::concat(path, " has more than ", most, " bytes, expected a table of costs")};
  return parse(text, path);
}

PEERBUS_INLINE void cost_table::set(std::string_view name, double value) {
  using detail::concat;
  if (!detail::names_a_cost(name))
    throw error{errc::invalid_argument,
                concat("a cost has the name \"", name,
                       "\", expected lower-case letters, digits, \".\" and \"_\"")};
  if (!__builtin_isfinite(value) || value < 0)
    throw error{errc::invalid_argument,
                concat(name, " costs ", value, ", expected a finite number, not negative")};
  value += 0.0;  // So that a negative zero equals zero in the text too.
  const auto place = place_of(name);
  const auto index = place - entries_.begin();
  if (place == entries_.end() || place->name != name)
    entries_.insert(place, {std::string{name}, value});
  else
    entries_[static_cast<std::size_t>(index)].value = value;
}

PEERBUS_INLINE void cost_table::merge(const cost_table& other) {
  for (const entry& cost : other.entries_) set(cost.name, cost.value);
}

PEERBUS_INLINE std::vector<cost_table::entry>::const_iterator cost_table::place_of(
    std::string_view name) const noexcept {
  return std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const entry& cost, std::string_view sought) { return cost.name < sought; });
}

PEERBUS_INLINE std::optional<double> cost_table::find(std::string_view name) const noexcept {
  const auto place = place_of(name);
  if (place == entries_.end() || place->name != name) return std::nullopt;
  return place->value;
}

PEERBUS_INLINE std::string cost_table::text() const {
  std::string text{detail::cost_table_title};
  text += '\n';
  for (const entry& cost : entries_) {
    char number[32];  // The shortest form that is read as the same number: up to 24 characters.
    const auto end = std::to_chars(number, number + sizeof number, cost.value).ptr;
    text += detail::concat(cost.name, " ", std::string_view{number, end}, "\n");
  }
  return text;
}

PEERBUS_INLINE std::uint64_t cost_table::hash() const {
  if (empty()) return 0;
  detail::fnv_hash hash;
  hash.add_text(text());
  return hash.value();
}

}  // namespace peerbus
