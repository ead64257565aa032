// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// The launcher that started this process, as its environment tells of it, for programs that show
/// or check how ranks are started. Ranks that are to meet use `environment_bootstrap` or
/// `tcp_bootstrap`, which read the same variables.
struct launch_environment {
  /// The variable that the rank is read from, such as "OMPI_COMM_WORLD_RANK", which names the
  /// launcher. Empty if no launcher has started this process.
  std::string rank_variable;
  /// The rank in the group. Empty without a launcher, or if it cannot be read.
  std::optional<std::size_t> rank;
  /// The variable by which the launcher reports ranks on other hosts. Empty if it reports none.
  std::string other_hosts;
  /// The variable that is missing or wrong, with what was expected. Empty if all can be read.
  std::string trouble;
};

/// Returns what the environment of this process says of its launcher. It changes nothing and meets
/// nobody. Variables that are wrong are reported in `trouble`, not thrown.
launch_environment read_launch_environment();

/// Returns the names of the variables from which the place of a rank is read, in the order in which
/// launchers are tried.
std::vector<std::string_view> launch_variable_names();

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/launch_environment.ipp>  // IWYU pragma: keep
#endif
