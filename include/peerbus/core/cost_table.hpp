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
/// A cost of 0 is allowed, because measurements may find it. Among algorithms of equal cost, also
/// if all costs are 0, the first possible one is chosen. Empty lines and lines that begin with `#`
/// are ignored, except for two lines before `peerbus costs 1`, which a text written by hand need
/// not have:
///
/// - `# measured on: TEXT` names the machine, for readers only (`describe_origin`);
/// - `# number of costs: N`. The text must then have N costs and end with an end of line. If not,
///   it is refused.
///
/// `file_text` writes the second line, and the first one if a machine is named. Its text is refused
/// if the end is cut off, or if lines of costs are lost or added. A changed value is not detected.
/// Without the line of the number, lost costs are not detected either.
///
/// Ranks must choose alike. Therefore objects that take a table compare its hash among the ranks
/// when they are made. Costs whose names begin with `local.` decide only what each rank chooses for
/// itself. They are no part of the hash, so that ranks may differ in them. Tables are ordinary
/// values, for the control path only: most calls allocate.
class cost_table {
 public:
  /// Makes an empty table.
  cost_table() = default;
  /// Reads a table from its text. `source` names the text in errors.
  /// Throws: `error` invalid_argument with the number of the first line that is wrong, or of the
  /// last line if the number of costs is not the one that the text states.
  [[nodiscard]] static cost_table parse(std::string_view text, std::string_view source = "costs");
  /// Reads a table from a file.
  /// Throws: `error` system if the file cannot be read; invalid_argument if it has more than 64
  /// KiB; as `parse`.
  [[nodiscard]] static cost_table load(const std::string& path);

  /// Sets a cost, or replaces it.
  /// Throws: `error` invalid_argument for a name or value that the text could not hold.
  void set(std::string_view name, double value);
  /// Sets all costs of `other`, and keeps the costs that `other` does not have. Unless `other` is
  /// empty, `machine` is then that of `other`. If costs are kept and the machines differ, it names
  /// both.
  void merge(const cost_table& other);
  /// Names the machine on which the costs were measured, in the form of `this_machine`. Control
  /// characters become `?`. If `machine` is empty, no machine is named. Neither `text` nor `hash`
  /// depends on the name.
  void set_machine(std::string_view machine);
  /// Returns the name of the machine, empty if none is named. The view is valid until the table
  /// changes.
  [[nodiscard]] std::string_view machine() const noexcept {
    return {machine_.data(), machine_.size()};
  }
  /// Returns a cost, or nothing if the table does not have it.
  [[nodiscard]] std::optional<double> find(std::string_view name) const noexcept;
  /// Returns whether the table has no costs.
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// Returns the text of the table, in the order of names. Equal tables have equal texts.
  [[nodiscard]] std::string text() const;
  /// Returns the text for a file: `text` after lines with the machine, if one is named, and the
  /// number of costs.
  [[nodiscard]] std::string file_text() const;
  /// Returns a hash (64-bit FNV-1a) of the text of the costs whose names do not begin with
  /// "local.", or 0 if there are none.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct entry {
    std::string name;
    double value;
  };
  [[nodiscard]] std::vector<entry>::const_iterator place_of(std::string_view name) const noexcept;

  std::vector<entry> entries_;  // In the order of names.
  std::vector<char> machine_;   // No string, which clang++ 14 lets no constant `team_options` have.
};

/// Returns where the costs of a table were measured, for logs: "costs measured on A", or "costs
/// measured on another machine: A, this is B". `here` is this machine, as `this_machine` names it.
/// Empty if the table does not name a machine.
std::string describe_origin(const cost_table& costs, std::string_view here);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/cost_table.ipp>  // IWYU pragma: keep
#endif
