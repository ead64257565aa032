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

/// The number for a limit that a cgroup does not set.
inline constexpr std::uint64_t no_cgroup_limit = std::numeric_limits<std::uint64_t>::max();

/// Returns the directories that hold the limits of this process's cgroup and of its ancestors, for
/// `controller`, by version 1 and 2 of cgroups. `root` precedes the paths of all files.
std::vector<std::string> cgroup_directories(const std::string& root, std::string_view controller);

/// Returns the number at the beginning of the file `path`, or `no_cgroup_limit` if there is none,
/// as in a file that says "max".
std::uint64_t read_cgroup_number(const std::string& path);

/// Returns the tightest limit of memory in bytes of this process's cgroup and of its ancestors, or
/// `no_cgroup_limit`. `root` precedes the paths of all files.
std::uint64_t cgroup_memory_limit(const std::string& root);

/// The number of processes of a cgroup that the kernel has killed as memory ran out.
struct cgroup_kills {
  std::string file;         ///< which says so; empty if there is none
  std::uint64_t count = 0;  ///< since the cgroup was made
};

/// Returns the kills in this process's cgroup. `root` precedes the paths of all files.
cgroup_kills cgroup_memory_kills(const std::string& root);

/// Counts what the kernel kills in this process's cgroup as memory runs out, from the moment that
/// this was made. Pages are taken as they are touched, so that memory that no error refused may be
/// missing later, and a process that is killed for it cannot say so.
class memory_kills {
 public:
  /// Counts from now on. `root` precedes the paths of all files.
  /// Cost: reads two files, as `describe` does.
  explicit memory_kills(std::string root = {})
      : root_{std::move(root)}, before_{cgroup_memory_kills(root_)} {}

  /// Returns what was killed, in words for the end of a message, such as " (meanwhile the kernel
  /// killed 1 process of this cgroup as memory ran out, limit 300 MiB)". Empty if nothing was,
  /// or if the process has moved to another cgroup.
  [[nodiscard]] std::string describe() const;

 private:
  std::string root_;
  cgroup_kills before_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/cgroup.ipp>  // IWYU pragma: keep
#endif
