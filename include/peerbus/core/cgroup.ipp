// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/kernel_file.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE std::vector<std::string> cgroup_directories(const std::string& root,
                                                           std::string_view controller) {
  // Each line is number:controllers:path. Version 2 has one line without controllers.
  std::vector<std::string> found;
  const std::string text = detail::read_kernel_file(root + "/proc/self/cgroup");
  for (std::size_t start = 0, end = 0; start < text.size(); start = end + 1) {
    end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    const auto names = line.find(':');
    const auto path_start = names == std::string::npos ? names : line.find(':', names + 1);
    if (path_start == std::string::npos) continue;
    // By `concat`, as g++ 12 at -O3 warns of a text before a temporary string where there is no
    // fault.
    const std::string list = concat(",", line.substr(names + 1, path_start - names - 1), ",");
    const bool is_version_2 = list == ",,";
    if (!is_version_2 && list.find(concat(",", controller, ",")) == std::string::npos) continue;
    std::string mount = root + "/sys/fs/cgroup";
    if (!is_version_2) mount += concat("/", controller);
    // In a container the path may be the host's, which is not mounted. The mount is its own then.
    std::string path = line.substr(path_start + 1);
    while (!path.empty() && path != "/") {
      found.push_back(mount + path);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    found.push_back(mount);
  }
  return found;
}

PEERBUS_INLINE std::uint64_t read_cgroup_number(const std::string& path) {
  const std::string text = detail::read_kernel_file(path);
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text.c_str(), &end, 10);
  return end == text.c_str() ? no_cgroup_limit : number;
}

PEERBUS_INLINE std::uint64_t cgroup_memory_limit(const std::string& root) {
  std::uint64_t least = no_cgroup_limit;
  for (const std::string& directory : cgroup_directories(root, "memory"))
    for (const char* const file : {"/memory.max", "/memory.limit_in_bytes"})
      least = std::min(least, read_cgroup_number(directory + file));
  // Version 1 writes the largest number of whole pages for no limit.
  return least > no_cgroup_limit / 4 ? no_cgroup_limit : least;
}

PEERBUS_INLINE cgroup_kills cgroup_memory_kills(const std::string& root) {
  // Both versions count a process in its own cgroup: version 2 in memory.events, version 1 in
  // memory.oom_control. Those of an ancestor, if they have them, count other jobs as well.
  for (const std::string& directory : cgroup_directories(root, "memory"))
    for (const char* const name : {"/memory.events", "/memory.oom_control"}) {
      constexpr std::string_view line = "\noom_kill ";
      std::string file = directory + name;
      const std::string text = concat("\n", detail::read_kernel_file(file));
      if (const auto place = text.find(line); place != std::string::npos)
        return {std::move(file), std::strtoull(text.c_str() + place + line.size(), nullptr, 10)};
    }
  return {};
}

PEERBUS_ERROR_PATH std::string memory_kills::describe() const {
  const cgroup_kills now = cgroup_memory_kills(root_);
  if (now.file != before_.file || now.count <= before_.count) return {};
  const std::uint64_t killed = now.count - before_.count;
  const std::uint64_t limit = cgroup_memory_limit(root_);
  return concat(" (meanwhile the kernel killed ", killed, killed == 1 ? " process" : " processes",
                " of this cgroup as memory ran out",
                limit == no_cgroup_limit ? "" : concat(", limit ", limit >> 20U, " MiB"), ")");
}

}  // namespace peerbus
