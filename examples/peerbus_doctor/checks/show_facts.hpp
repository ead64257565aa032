// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "facts.hpp"

namespace peerbus_doctor {

/// The facts of a rank in both forms of a report.
struct shown_facts {
  std::string text;               ///< lines for people
  nlohmann::ordered_json values;  ///< for programs; docs/doctor.md has the keys
};

/// Returns both forms, from one walk over the facts. The text leaves out what only programs need.
shown_facts show(const facts& own);

}  // namespace peerbus_doctor
