// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/huge_pages.hpp>
#include <peerbus/core/kernel_file.hpp>

namespace peerbus {

namespace detail {

/// Returns the word in brackets, which is the chosen one, of a file such as
/// "always [advise] never". Source: Documentation/admin-guide/mm/transhuge.rst of Linux.
inline std::string chosen_word(const std::string& path) {
  const std::string line = read_kernel_file(path);
  const auto open = line.find('[');
  const auto close = line.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return line.substr(open + 1, close - open - 1);
}

}  // namespace detail

PEERBUS_INLINE std::string huge_pages_of_files(const std::string& root) {
  return detail::chosen_word(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

PEERBUS_INLINE std::string huge_pages_of_process(const std::string& root) {
  return detail::chosen_word(root + "/sys/kernel/mm/transparent_hugepage/enabled");
}

}  // namespace peerbus
