// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/simulated/options.hpp>
#include <peerbus/transport/simulated/platform.hpp>

namespace peerbus::detail {

/// Checks a platform before ranks are simulated on it.
/// Throws: `error` invalid_argument, which names the platform, the level or port, and the value.
inline void check_platform(const simulated_platform& platform) {
  const auto refuse = [&](const std::string& what) {
    throw error{errc::invalid_argument, concat("platform '", platform.name, "': ", what)};
  };
  const auto check_time = [&](std::string_view owner, std::string_view name, double ns,
                              double least) {
    if (!(ns >= least && ns <= 1e9))
      refuse(concat(owner, ": ", name, " is ", std::to_string(ns), ", expected ",
                    std::to_string(least), " to 1e9"));
  };
  if (platform.ports.empty()) refuse("no ports, expected at least 1");
  for (const simulated_port& port : platform.ports)
    if (port.ranks == 0) refuse(concat("port '", port.name, "': ranks is 0, expected at least 1"));
  if (platform.levels.empty()) refuse("no levels, expected at least 1");
  std::size_t inner = 1;
  for (const simulated_level& level : platform.levels) {
    const std::string owner = concat("level '", level.name, "'");
    const bool is_last = &level == &platform.levels.back();
    if (is_last ? level.ranks != 0 : level.ranks < inner || level.ranks % inner != 0)
      refuse(concat(owner, ": ranks is ", level.ranks, ", expected ",
                    is_last ? std::string{"0, all ranks, at the last level"}
                            : concat("a multiple of ", inner)));
    if (!is_last) inner = level.ranks;
    if (level.port >= platform.ports.size())
      refuse(
          concat(owner, ": port is ", level.port, ", expected less than ", platform.ports.size()));
    check_time(owner, "latency_ns", level.latency_ns, 0);
    check_time(owner, "message_ns", level.message_ns, 0);
    if (!(level.gb_per_s >= 1e-6 && level.gb_per_s <= 1e6))
      refuse(concat(owner, ": gb_per_s is ", std::to_string(level.gb_per_s),
                    ", expected 1e-6 to 1e6"));
  }
  if (platform.near_levels > platform.levels.size())
    refuse(concat("near_levels is ", platform.near_levels, ", expected at most ",
                  platform.levels.size(), ", the number of levels"));
  check_time("costs", "put_ns", platform.costs.put_ns, 0);
  check_time("costs", "signal_ns", platform.costs.signal_ns, 0);
  check_time("costs", "poll_ns", platform.costs.poll_ns, 1);
  check_time("costs", "token_ns", platform.costs.token_ns, 0);
  if (const double rate = platform.costs.copy_gb_per_s; rate != 0 && !(rate >= 1e-6 && rate <= 1e6))
    refuse(concat("costs: copy_gb_per_s is ", std::to_string(rate), ", expected 0 or 1e-6 to 1e6"));
}

/// Checks the options of a simulation other than the platform.
/// Throws: `error` invalid_argument, which names the option and its value.
inline void check_options(const simulation_options& options) {
  constexpr std::chrono::nanoseconds most = std::chrono::hours{1};
  if (options.jitter.count() < 0 || options.jitter > most)
    throw error{errc::invalid_argument,
                concat("jitter is ", options.jitter.count(), " ns, expected 0 to ", most.count())};
  constexpr std::size_t least = std::size_t{64} << 10U;
  if (options.stack_bytes < least)
    throw error{errc::invalid_argument,
                concat("stack_bytes is ", options.stack_bytes, ", expected at least ", least)};
}

}  // namespace peerbus::detail
