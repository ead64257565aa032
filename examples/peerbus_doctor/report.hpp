// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "checks/diagnose.hpp"
#include "checks/facts.hpp"
#include "checks/finding.hpp"
#include "checks/pair_matrix.hpp"
#include "options.hpp"

namespace peerbus_doctor {

/// What a rank has told the others about itself.
struct rank_message {
  member self;
  std::vector<finding> findings;
  std::string json;  ///< the facts
};

/// What rank 0 reports.
struct report {
  const options& chosen;
  const facts& own;
  double meeting_ms = 0;
  std::vector<rank_message> ranks{};  ///< empty if the ranks did not meet
  std::optional<pair_matrix> pairs{};
  std::vector<finding> findings{};

  [[nodiscard]] level worst() const;
};

///@{
/// Returns a part of the report as text for people, in the order in which the parts are known.
std::string group_text(const report& known);
std::string begin_text(std::size_t ranks);
std::string pairs_text(const pair_matrix& pairs, const try_options& tries);
std::string findings_text(const report& known);
///@}

/// Returns the report as JSON for programs. docs/doctor.md has the keys.
std::string report_json(const report& known);

///@{
/// Converts between what a rank tells the others and the text that travels.
std::string encode(const facts& own, const std::vector<finding>& findings);
rank_message decode(const std::string& text);
///@}

}  // namespace peerbus_doctor
