// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// The numbers of the cores that this thread may run on, ascending. Empty if the kernel does not
/// tell. A set of any size: cpu_set_t ends at 1024 cores, the kernel does not.
std::vector<std::uint32_t> usable_core_numbers();

/// How many those are, at least 1. Reads the affinity mask, so a pinned thread sees one. A quota of
/// processor time, as containers may have, is no core less and is not seen.
std::size_t usable_cores();

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/cores.hpp>  // IWYU pragma: keep
#endif
