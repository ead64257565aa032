// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// The launcher that started this process, as described by its environment. For programs that show
/// or check how ranks are started. Ranks that are to meet use `environment_bootstrap` or
/// `tcp_bootstrap`, which read the same variables.
struct launch_environment {
  /// The variable from which the rank is read, such as "OMPI_COMM_WORLD_RANK". It shows which
  /// launcher is used. Empty if no launcher has started this process.
  std::string rank_variable;
  /// The rank in the group. Empty without a launcher, or if it cannot be read.
  std::optional<std::size_t> rank;
  /// The variable by which the launcher reports ranks on other hosts. Empty if it reports none.
  std::string other_hosts;
  /// A description of the variable that is missing or wrong, with the expected value. Empty if all
  /// variables can be read.
  std::string trouble;
};

/// Reads from the environment of this process how it was launched. Changes nothing and connects to
/// no other process. Wrong variables are reported in `trouble` and not thrown.
launch_environment read_launch_environment();

/// Returns the names of the variables from which the place of a rank, its job and its launcher are
/// read. Launchers come in the order in which they are tried.
std::vector<std::string_view> launch_variable_names();

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/launch_environment.ipp>  // IWYU pragma: keep
#endif
