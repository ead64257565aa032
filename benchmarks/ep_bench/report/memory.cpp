// SPDX-License-Identifier: MIT
#include "ep_bench/report/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include <peerbus/core/cgroup.hpp>

namespace ep_bench {
namespace {

/// Returns the bytes that this process's cgroup and its ancestors still allow.
std::uint64_t available_in_group() {
  std::uint64_t least = peerbus::no_cgroup_limit;
  for (const std::string& directory : peerbus::cgroup_directories("", "memory"))
    for (const auto& [most, current] :
         {std::pair{"/memory.max", "/memory.current"},
          std::pair{"/memory.limit_in_bytes", "/memory.usage_in_bytes"}}) {
      const std::uint64_t limit = peerbus::read_cgroup_number(directory + most);
      const std::uint64_t used = peerbus::read_cgroup_number(directory + current);
      least = std::min(least, used < limit ? limit - used : limit);
    }
  return least;
}

std::uint64_t available_in_machine() {
  std::ifstream info{"/proc/meminfo"};
  for (std::string name; info >> name;) {
    std::uint64_t kibibytes = 0;
    if (name == "MemAvailable:" && info >> kibibytes) return kibibytes * 1024;
    std::getline(info, name);
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

std::size_t estimated_bytes(const options& chosen) {
  const std::size_t in_bf16 = 2 * chosen.hidden;
  const std::size_t per_copy = in_bf16 + (chosen.codec == "bf16" ? in_bf16 : chosen.hidden) + 16;
  const std::size_t per_token = chosen.top_k * per_copy + 3 * in_bf16;
  const std::size_t per_rank = std::size_t{16} << 20U;  // The program, the plan, the samples.
  return chosen.ranks * (chosen.tokens * per_token + per_rank);
}

std::size_t available_bytes() {
  return static_cast<std::size_t>(std::min(available_in_group(), available_in_machine()));
}

}  // namespace ep_bench
