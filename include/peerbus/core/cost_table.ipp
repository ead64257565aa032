// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_file.hpp>

namespace peerbus {

namespace detail {

inline constexpr std::string_view cost_table_title = "peerbus costs 1";
inline constexpr std::string_view costs_of_a_rank = "local.";
inline constexpr std::string_view costs_machine = "# measured on: ";
inline constexpr std::string_view costs_number = "# number of costs: ";

/// Returns whether a table may have a cost of this name.
PEERBUS_INLINE bool names_a_cost(std::string_view name) noexcept {
  for (const char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_')) return false;
  return !name.empty();
}

template <class Number>
std::optional<Number> read_number(std::string_view text) noexcept {
  Number value = 0;
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

/// Returns the names of two machines as one. No name is repeated.
PEERBUS_INLINE std::string names_of_both(std::string_view one, std::string_view other) {
  constexpr std::string_view unnamed = "an unnamed machine";
  if (one == other) return std::string{one};
  if (one.empty()) one = unnamed;
  if (other.empty()) other = unnamed;
  if (one.find(other) != std::string_view::npos) return std::string{one};
  if (other.find(one) != std::string_view::npos) return std::string{other};
  return concat(one, " and ", other);
}

}  // namespace detail

PEERBUS_INLINE cost_table cost_table::parse(std::string_view text, std::string_view source) {
  using detail::concat;
  cost_table costs;
  const bool has_end = text.ends_with('\n');
  std::string_view line;
  std::size_t number = 0;
  std::optional<std::size_t> expected;
  std::size_t expected_at = 0;
  bool has_title = false;
  const auto is_cut = [&] { return expected && text.empty() && !has_end; };
  const auto fail = [&](std::string_view problem) {
    const std::string cut = is_cut() ? concat(", where the text is cut off after ",
                                              costs.entries_.size(), " of ", *expected, " costs")
                                     : "";
    throw error{errc::invalid_argument,
                concat(source, ", line ", number, ": \"", line, "\" ", problem, cut)};
  };
  while (!text.empty()) {
    line = detail::take_until(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (!has_title && line.starts_with(detail::costs_machine))
      costs.set_machine(line.substr(detail::costs_machine.size()));
    if (!has_title && line.starts_with(detail::costs_number)) {
      if (expected) fail("gives the number of costs a second time");
      expected = detail::read_number<std::size_t>(line.substr(detail::costs_number.size()));
      expected_at = number;
      if (!expected) fail("gives no number of costs, expected a whole number");
    }
    if (line.empty() || line.starts_with('#')) continue;
    if (!has_title && line != detail::cost_table_title)
      fail(concat("stands before the costs, expected \"", detail::cost_table_title, "\""));
    if (!has_title) {
      has_title = true;
      continue;
    }
    std::string_view rest = line;
    const std::string_view name = detail::take_until(rest, ' ');
    const std::optional<double> value = detail::read_number<double>(rest);
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
  if (is_cut()) fail("has no end of line");
  if (expected && *expected != costs.entries_.size())
    fail(concat("ends the text, whose number of costs is ", costs.entries_.size(), ", expected ",
                *expected, " as line ", expected_at, " says, or no such line"));
  return costs;
}

PEERBUS_INLINE cost_table cost_table::load(const std::string& path) {
  const detail::unique_file file{std::fopen(path.c_str(), "rb")};
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
  const bool keeps_some = std::any_of(entries_.begin(), entries_.end(), [&](const entry& kept) {
    return !other.find(kept.name).has_value();
  });
  if (!other.empty())
    set_machine(keeps_some ? detail::names_of_both(machine(), other.machine())
                           : std::string{other.machine()});
  for (const entry& cost : other.entries_) set(cost.name, cost.value);
}

PEERBUS_INLINE void cost_table::set_machine(std::string_view machine) {
  machine_.assign(machine.begin(), machine.end());
  for (char& c : machine_)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
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

PEERBUS_INLINE std::string cost_table::file_text() const {
  const std::string measured_on =
      machine_.empty() ? "" : detail::concat(detail::costs_machine, machine(), "\n");
  return detail::concat(measured_on, detail::costs_number, entries_.size(), "\n", text());
}

PEERBUS_INLINE std::uint64_t cost_table::hash() const {
  cost_table shared;
  for (const entry& cost : entries_)
    if (!cost.name.starts_with(detail::costs_of_a_rank)) shared.entries_.push_back(cost);
  if (shared.empty()) return 0;
  detail::fnv_hash hash;
  hash.add_text(shared.text());
  return hash.value();
}

PEERBUS_INLINE std::string describe_origin(const cost_table& costs, std::string_view here) {
  const std::string_view machine = costs.machine();
  if (machine.empty()) return {};
  if (machine == here) return detail::concat("costs measured on ", machine);
  return detail::concat("costs measured on another machine: ", machine, ", this is ", here);
}

}  // namespace peerbus
