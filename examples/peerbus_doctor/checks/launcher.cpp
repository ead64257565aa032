// SPDX-License-Identifier: MIT
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

#include "collect.hpp"

namespace peerbus_doctor {
namespace {

namespace detail = peerbus::detail;

/// Adds the variable to `launcher` if it is set. `name` may be null.
void add(launcher_facts& launcher, const char* name) {
  const auto value = detail::variable(name);
  if (!value) return;
  const bool is_secret = std::string_view{name} == "PEERBUS_SECRET";
  launcher.variables.push_back({name, is_secret
                                          ? detail::concat("(not shown, ", value->size(), " bytes)")
                                          : std::string{*value}});
}

}  // namespace

launcher_facts collect_launcher() {
  launcher_facts launcher;
  for (const auto& names : detail::launchers)
    for (const char* const name :
         {names.rank, names.size, names.local_rank, names.local_size, names.job, names.required})
      add(launcher, name);
  for (const char* const name :
       {detail::rank_choice, "PMIX_RANK", "SLURM_STEP_NUM_NODES", "TORCHELASTIC_USE_AGENT_STORE",
        "MASTER_ADDR", "MASTER_PORT", "PEERBUS_PORT", "PEERBUS_SECRET", "PEERBUS_SECRET_FILE"})
    add(launcher, name);
  const auto* const names = detail::find_launcher();
  if (names != nullptr)
    launcher.rank_variable = names->rank;
  else if (!peerbus::environment_bootstrap::launched())
    return launcher;
  try {
    const auto settings = detail::read_launch_settings(detail::hosts::any);
    launcher.rank = settings.rank;
    launcher.other_hosts = detail::sign_of_other_hosts(*names, settings.size);
  } catch (const peerbus::error& trouble) {
    launcher.trouble = trouble.text();
  }
  return launcher;
}

}  // namespace peerbus_doctor
