// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include <peerbus/core/compiled.hpp>

namespace peerbus::detail {

/// Returns the content of a file of the kernel. Empty if it cannot be read.
std::string read_kernel_file(const std::string& path);

/// Returns the fields of /proc/`process`/stat from the third on, with spaces between them: state,
/// parent and so on. Empty if the file cannot be read.
std::string read_process_stat(pid_t process);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/kernel_file.ipp>  // IWYU pragma: keep
#endif
