// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// Returns the numbers of the cores that this thread may run on, in ascending order. Empty if the
/// kernel does not report them. Machines with more than the 1024 cores of a `cpu_set_t` are
/// supported.
/// Cost: allocates. One system call, and more above 1024 cores.
std::vector<std::uint32_t> usable_core_numbers();

/// Returns the number of cores that this thread may run on, at least 1. It counts the cores in the
/// affinity mask, so that a pinned thread gets 1. It does not see a quota of processor time, which
/// containers may have.
/// Cost: as `usable_core_numbers`.
std::size_t usable_cores();

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/cores.ipp>  // IWYU pragma: keep
#endif
