// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

/// Makes a file of `bytes` zero bytes that lies in memory and has no path. It disappears with the
/// last process that holds or maps it. `name` appears in /proc for debugging only. The size is
/// sealed, because a process that shortens the file would kill the processes that read it.
/// Cost: four system calls. Pages are committed at their first touch.
/// Throws: `error` out_of_memory, system.
unique_fd make_memory_file(const char* name, std::size_t bytes);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/memory_file.ipp>  // IWYU pragma: keep
#endif
