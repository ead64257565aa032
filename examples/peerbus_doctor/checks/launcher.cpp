// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/launch_environment.hpp>
#include <peerbus/core/text.hpp>

#include "collect.hpp"

namespace peerbus_doctor {
namespace {

/// Adds the variable to `launcher` if it is set.
void add(launcher_facts& launcher, std::string_view name) {
  const char* const set = std::getenv(std::string{name}.c_str());
  if (set == nullptr) return;
  const std::string_view value{set};
  launcher.variables.push_back(
      {std::string{name}, name == "PEERBUS_SECRET"
                              ? peerbus::concat("(not shown, ", value.size(), " bytes)")
                              : std::string{value}});
}

}  // namespace

launcher_facts collect_launcher() {
  launcher_facts launcher;
  for (const std::string_view name : peerbus::launch_variable_names()) add(launcher, name);
  for (const std::string_view name : {"TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT",
                                      "PEERBUS_PORT", "PEERBUS_SECRET", "PEERBUS_SECRET_FILE"})
    add(launcher, name);
  const auto found = peerbus::read_launch_environment();
  launcher.rank_variable = found.rank_variable;
  launcher.rank = found.rank;
  launcher.other_hosts = found.other_hosts;
  launcher.trouble = found.trouble;
  return launcher;
}

}  // namespace peerbus_doctor
