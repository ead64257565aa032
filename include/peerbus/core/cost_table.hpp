// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// Measured costs of a machine, from which algorithms are chosen: numbers by name, such as
/// `unified_bus.round_us`. An empty table stands for the costs that the library assumes.
///
/// Its text has the line `peerbus costs 1`, then a line `name value` for each cost. Names consist
/// of lower-case letters, digits, `.` and `_`. Values are decimal numbers, finite and not negative.
/// Lines that begin with `#`, and empty lines, are ignored.
///
/// Ranks must choose alike, so that objects that take a table compare its hash among the ranks when
/// they are made. Tables are ordinary values, for the control path only: most calls allocate.
class cost_table {
 public:
  /// Makes an empty table.
  cost_table() = default;
  /// Reads a table from its text. `source` names the text in errors.
  /// Throws: `error` invalid_argument with the number of the first line that is wrong.
  [[nodiscard]] static cost_table parse(std::string_view text, std::string_view source = "costs");
  /// Reads a table from a file.
  /// Throws: `error` system if the file cannot be read; invalid_argument if it has more than 64
  /// KiB; as `parse`.
  [[nodiscard]] static cost_table load(const std::string& path);

  /// Sets a cost, or replaces it.
  /// Throws: `error` invalid_argument for a name or value that the text could not hold.
  void set(std::string_view name, double value);
  /// Sets all costs of `other`, and keeps the costs that `other` does not have.
  void merge(const cost_table& other);
  /// Returns a cost, or nothing if the table does not have it.
  [[nodiscard]] std::optional<double> find(std::string_view name) const noexcept;
  /// Returns whether the table has no costs.
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// Returns the text of the table, in the order of names. Equal tables have equal texts.
  [[nodiscard]] std::string text() const;
  /// Returns a hash of the text: 64-bit FNV-1a. An empty table has the hash 0.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct entry {
    std::string name;
    double value;
  };
  [[nodiscard]] std::vector<entry>::const_iterator place_of(std::string_view name) const noexcept;

  std::vector<entry> entries_;  // In the order of names.
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/cost_table.ipp>  // IWYU pragma: keep
#endif
