// SPDX-License-Identifier: MIT
#include "ep_bench/launch.hpp"

#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/cores.hpp>

namespace ep_bench {

std::string words_for(placement how) {
  switch (how) {
    case placement::pinned: return "pinned";
    case placement::not_pinned: return "not pinned";
    default: return "placed by the launcher";
  }
}

int run_process(peerbus::bootstrap& boot, const options& chosen, placement how,
                const delivery& deliver) {
  if (chosen.has_network()) return run_network(boot, chosen, how, deliver);
  return run_unified_bus(boot, chosen, how, deliver);
}

int start_group(const options& chosen, const delivery& deliver) {
  const bool pin = chosen.pin.value_or(chosen.ranks * chosen.lanes <= peerbus::usable_cores());
  const placement how = pin ? placement::pinned : placement::not_pinned;
  if (chosen.transport == "loopback")
    return peerbus::run_threads(chosen.ranks, [&](peerbus::bootstrap& boot) {
      return run_loopback(boot, chosen, how, deliver);
    });
  return peerbus::run_local(chosen.ranks,
                            [&](peerbus::bootstrap& boot) {
                              return chosen.ablation ? run_ablation(boot, chosen, how)
                                                     : run_process(boot, chosen, how, deliver);
                            },
                            {.pin = pin && chosen.lanes == 1});
}

}  // namespace ep_bench
