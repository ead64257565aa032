// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

/// A file of `bytes` zero bytes that has no name and lies in memory, gone with the last process
/// that holds or maps it. Its size is sealed: no other holder can shorten it, which would kill
/// readers. Throws: `error` out_of_memory, system.
unique_fd make_memory_file(const char* name, std::size_t bytes);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/memory_file.hpp>  // IWYU pragma: keep
#endif
