// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>

#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {

/// How the ranks got their cores.
enum class placement { pinned, not_pinned, by_launcher };
[[nodiscard]] std::string words_for(placement how);

/// What rank 0 does with what was measured.
using delivery = std::function<void(const options&, const group&, const outcome&)>;

/// Whether libibverbs was there when this program was built.
extern const bool verbs_built;
/// Whether libfabric was.
extern const bool fabric_built;

/// What every rank does: measure, and on rank 0 deliver. One function per transport.
/// Returns: the exit status, 1 if the check failed.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen, placement how,
                                  const delivery& deliver);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen, placement how,
                               const delivery& deliver);
/// Throws: `peerbus::error` unsupported unless `verbs_built`.
[[nodiscard]] int run_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
                            const delivery& deliver);
/// Throws: `peerbus::error` unsupported unless `fabric_built`.
[[nodiscard]] int run_fabric(peerbus::bootstrap& boot, const options& chosen, placement how,
                             const delivery& deliver);
///@{
/// As `run_verbs` or `run_fabric`, with `unified_bus` among the ranks of a host or of a pretended
/// one.
[[nodiscard]] int run_planes_over_verbs(peerbus::bootstrap& boot, const options& chosen,
                                        placement how, const delivery& deliver);
[[nodiscard]] int run_planes_over_fabric(peerbus::bootstrap& boot, const options& chosen,
                                         placement how, const delivery& deliver);
///@}

/// What every rank of an ablation does; rank 0 prints.
/// Returns: the exit status: 1 if the check failed, `cannot_measure` if this machine forbids what
/// the basic flow needs.
[[nodiscard]] int run_ablation(peerbus::bootstrap& boot, const options& chosen, placement how);

}  // namespace ep_bench
