// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/detail/launch_ancestor.hpp>
#include <peerbus/core/kernel_file.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Returns the parts of `text`, each of which ends with a zero byte.
inline std::vector<std::string_view> split_at_zeros(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0; start < text.size(); start += parts.back().size() + 1)
    parts.push_back(text.substr(start, std::min(text.find('\0', start), text.size()) - start));
  return parts;
}

/// Returns whether `environment`, as /proc shows it, has the same value of `variable` as this
/// process, or both have none.
inline bool has_same_value(const std::vector<std::string_view>& environment, const char* variable) {
  const std::string start = concat(variable, "=");
  const auto place =
      std::find_if(environment.begin(), environment.end(),
                   [&](std::string_view text) { return text.substr(0, start.size()) == start; });
  const char* const own = std::getenv(variable);
  if (place == environment.end() || own == nullptr)
    return place == environment.end() && own == nullptr;
  return place->substr(start.size()) == own;
}

/// Returns whether the command line is that of a shell without a script or a command: only options
/// follow its name. The option `i` asks for this with others as well.
inline bool takes_commands(const std::vector<std::string_view>& command) {
  if (command.empty()) return false;
  std::string_view shell = command.front();
  shell.remove_prefix(shell.rfind('/') == std::string_view::npos ? 0 : shell.rfind('/') + 1);
  if (shell.substr(0, 1) == "-") shell.remove_prefix(1);  // a login shell
  constexpr std::string_view shells[] = {"sh",  "bash", "dash", "ash", "zsh",
                                         "ksh", "mksh", "fish", "csh", "tcsh"};
  if (std::find(std::begin(shells), std::end(shells), shell) == std::end(shells)) return false;
  bool has_operand = false;
  for (const std::string_view word : std::span{command}.subspan(1)) {
    const bool is_option = word.substr(0, 1) == "-" || word.substr(0, 1) == "+";
    if (is_option && word.substr(0, 2) != "--" && word.find('i') != std::string_view::npos)
      return true;
    has_operand |= !is_option;
  }
  return !has_operand;
}

PEERBUS_INLINE std::optional<launch_ancestor> find_launch_ancestor(
    std::span<const char* const> variables) {
  for (pid_t pid = ::getppid(); pid > 0;) {
    const std::string folder = concat("/proc/", pid, "/");
    const std::string text = read_kernel_file(folder + "environ");
    const auto environment = split_at_zeros(text);
    if (environment.empty() ||
        !std::all_of(variables.begin(), variables.end(),
                     [&](const char* variable) { return has_same_value(environment, variable); }))
      return std::nullopt;
    if (read_kernel_file(folder + "maps").find("/memfd:peerbus") != std::string::npos)
      return launch_ancestor{pid, launch_ancestor::role::rank};
    if (takes_commands(split_at_zeros(read_kernel_file(folder + "cmdline"))))
      return launch_ancestor{pid, launch_ancestor::role::shell};
    std::istringstream status{read_process_stat(pid)};
    char state = '?';
    pid = 0;
    status >> state >> pid;
  }
  return std::nullopt;
}

}  // namespace peerbus::detail
