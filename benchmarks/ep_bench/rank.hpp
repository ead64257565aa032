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

/// What every rank does: measure, and on rank 0 deliver. One function per transport.
/// Returns: the exit status, 1 if the check failed.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen, placement how,
                                  const delivery& deliver);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen, placement how,
                               const delivery& deliver);
/// Over the network that was chosen, or with `unified_bus` among the ranks of a host or of a
/// pretended one. Throws: `peerbus::error` unsupported if this program was built without it.
[[nodiscard]] int run_network(peerbus::bootstrap& boot, const options& chosen, placement how,
                              const delivery& deliver);

/// What every rank of an ablation does; rank 0 prints.
/// Returns: the exit status: 1 if the check failed, `cannot_measure` if this machine forbids what
/// the basic flow needs.
[[nodiscard]] int run_ablation(peerbus::bootstrap& boot, const options& chosen, placement how);

}  // namespace ep_bench
