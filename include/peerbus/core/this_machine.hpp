// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// Returns the model of the processor as the kernel names it, on arm64 the number of its part, or
/// "unknown". `root` is the root directory of the file system.
/// Cost: the beginning of a file of /proc.
std::string cpu_model(const std::string& root = "");

/// Returns a short text that tells this machine from machines of another kind: `cpu_model` and the
/// number of cores that are online, such as "Intel(R) Xeon(R) Processor, 2 cores".
/// `cost_table::set_machine` takes it.
/// Cost: as `cpu_model`.
std::string this_machine();

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/this_machine.ipp>  // IWYU pragma: keep
#endif
