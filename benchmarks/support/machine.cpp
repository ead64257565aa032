// SPDX-License-Identifier: MIT
#include "support/machine.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include <peerbus/core/this_machine.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace bench {
namespace {

/// The choice in brackets of a line such as "always [madvise] never".
std::string chosen_in(const char* path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  const auto open = line.find('[');
  const auto close = line.find(']');
  if (open == std::string::npos || close == std::string::npos) return "none";
  return line.substr(open + 1, close - open - 1);
}

std::string compiler_version() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown";
#endif
}

}  // namespace

machine machine::here() {
  utsname system{};
  ::uname(&system);
  return {peerbus::cpu_model(),
          static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN)),
          std::string{system.sysname} + " " + system.release + " " + system.machine,
          compiler_version(),
          "shared: " + chosen_in("/sys/kernel/mm/transparent_hugepage/shmem_enabled") +
              ", private: " + chosen_in("/sys/kernel/mm/transparent_hugepage/enabled"),
          peerbus::kernel::best().name};
}

}  // namespace bench
