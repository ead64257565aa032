// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

#include <peerbus/core/error.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE stderr_log stderr_log::from_environment(rank_id rank) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): as the variables of launchers.
  const char* const value = std::getenv("PEERBUS_LOG");
  const std::string_view asked = value == nullptr ? "" : value;
  if (asked.empty()) return {};
  for (const log_level level : {log_level::info, log_level::debug})
    if (asked == describe(level)) return {rank, level};
  throw error{errc::invalid_argument,
              detail::concat("PEERBUS_LOG is '", asked, "', expected info or debug")};
}

PEERBUS_INLINE void stderr_log::operator()(log_level level, std::string_view line) const {
  if (!is_on_ || level > most_) return;
  const std::string text =
      detail::concat("peerbus[", rank_.index(), "] ", describe(level), ": ", line, "\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace peerbus
