// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// The value that stands for a limit which a cgroup does not set.
inline constexpr std::uint64_t no_cgroup_limit = std::numeric_limits<std::uint64_t>::max();

/// Returns the directories that hold the limits of `controller` for this process's cgroup and for
/// its ancestors, in versions 1 and 2 of cgroups. `root` precedes the paths of all files.
std::vector<std::string> cgroup_directories(const std::string& root, std::string_view controller);

/// Returns the number at the beginning of the file `path`. Returns `no_cgroup_limit` if the file
/// has no number there, such as a file that says "max", or if it cannot be read.
std::uint64_t read_cgroup_number(const std::string& path);

/// Returns the lowest memory limit, in bytes, of this process's cgroup and of its ancestors, or
/// `no_cgroup_limit` if none is set. `root` precedes the paths of all files.
std::uint64_t cgroup_memory_limit(const std::string& root);

/// The number of processes of a cgroup that the kernel has killed because memory ran out.
struct cgroup_kills {
  std::string file;         ///< the file that reports the number; empty if there is none
  std::uint64_t count = 0;  ///< the number since the cgroup was made
};

/// Returns the kills in this process's cgroup, or in its nearest ancestor that counts them. `root`
/// precedes the paths of all files.
cgroup_kills cgroup_memory_kills(const std::string& root);

/// Counts the processes of this process's cgroup that the kernel kills because memory runs out,
/// from construction on. The kernel takes pages when they are touched. Memory that was granted
/// without an error may therefore be missing later, and a process that is killed for it cannot
/// report that.
class memory_kills {
 public:
  /// Begins to count. `root` precedes the paths of all files.
  /// Cost: reads two files, as `describe` does.
  explicit memory_kills(std::string root = {})
      : root_{std::move(root)}, before_{cgroup_memory_kills(root_)} {}

  /// Returns words about the killed processes for the end of a message, such as " (meanwhile the
  /// kernel killed 1 process of this cgroup as memory ran out, limit 300 MiB)". Empty if no process
  /// was killed, or if this process has moved to another cgroup.
  [[nodiscard]] std::string describe() const;

 private:
  std::string root_;
  cgroup_kills before_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/cgroup.ipp>  // IWYU pragma: keep
#endif
