// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace peerbus_doctor {

enum class level {
  ok,
  note,     ///< worth knowing in a report
  warning,  ///< costs speed or time
  problem   ///< something does not work
};

constexpr std::string_view to_string(level of) noexcept {
  switch (of) {
    case level::ok: return "ok";
    case level::note: return "note";
    case level::warning: return "warning";
    case level::problem: return "problem";
  }
  return "unknown";
}

struct finding {
  level grade = level::ok;
  std::string topic;
  std::string text;
  std::string remedy;                ///< the command or setting that mends it; empty for ok
  std::vector<std::size_t> ranks{};  ///< that have found it; empty: it is about the group

  friend bool operator==(const finding&, const finding&) = default;
};

}  // namespace peerbus_doctor
