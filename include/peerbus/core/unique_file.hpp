// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <memory>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Closes a file. Without a result, so that a writer whose file must be complete releases the file
/// and closes it itself.
struct file_closer {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

/// Owns a file of the C library, which has no header of streams that every user would parse. Empty
/// if the file could not be opened.
using unique_file = std::unique_ptr<std::FILE, file_closer>;

}  // namespace peerbus::detail
