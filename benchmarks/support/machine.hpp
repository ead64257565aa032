// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

namespace bench {

/// What figures depend on besides the program.
struct machine {
  std::string cpu;
  std::size_t cores;
  std::string kernel;
  std::string compiler;
  std::string huge_pages;  ///< what the system gives to memory files and to private memory
  std::string kernel_set;  ///< of the library's row arithmetic

  [[nodiscard]] static machine here();
};

}  // namespace bench
