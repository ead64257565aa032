// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "peers/mpi_ep/arguments.hpp"
#include "peers/mpi_ep/measure.hpp"

namespace mpi_ep {

/// A few lines on stdout, and the JSON file if one is wanted, in the form of ep_bench's.
/// Throws: `peerbus::error` system if it cannot be written.
void report(const arguments& chosen, std::size_t ranks, const outcome& result);

}  // namespace mpi_ep
