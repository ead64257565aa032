// SPDX-License-Identifier: MIT
#include "ep_bench/rank.hpp"

#include <cstddef>
#include <cstdio>

#include <peerbus/communicator.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/ablation/ablation.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/report.hpp"
#include "ep_bench/result_json.hpp"
#include "page/page.hpp"
#include "support/machine.hpp"

namespace ep_bench {

int run_ablation(peerbus::bootstrap& boot, const options& chosen, placement how) {
  const std::size_t cores = boot.cores_here();
  peerbus::communicator comm{peerbus::unified_bus{boot}};
  const ablation_outcome result = ablation{comm, chosen}.run();
  const bool first = comm.rank().index() == 0;
  if (!result.impossible.empty()) {
    if (first)
      complain("--ablation",
               "the basic flow copies by process_vm_writev, which this machine refuses between "
               "processes of one user: " +
                   result.impossible +
                   "\nOne of these helps: sysctl kernel.yama.ptrace_scope=0; the capability "
                   "CAP_SYS_PTRACE (docker run --cap-add=SYS_PTRACE); a seccomp profile that "
                   "allows process_vm_writev.");
    return cannot_measure;
  }
  if (first) {
    const group who{comm.size(), words_for(how)};
    const auto where = bench::machine::here();
    print_ablation(chosen, who, where, cores, result);
    const json found = ablation_json(chosen, who, where, cores, result);
    if (!chosen.json.empty()) bench::write_json(chosen.json, found);
    if (!chosen.report.empty()) bench::write_page(chosen.report, found.dump());
  }
  return result.wrong.empty() ? 0 : 1;
}

}  // namespace ep_bench
