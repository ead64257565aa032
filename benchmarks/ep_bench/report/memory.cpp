// SPDX-License-Identifier: MIT
#include "ep_bench/report/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace ep_bench {
namespace {

std::uint64_t first_number(const char* path) {
  std::uint64_t value = std::numeric_limits<std::uint64_t>::max();
  std::ifstream file{path};
  std::uint64_t read = 0;
  if (file >> read) value = read;  // "max" is no number.
  return value;
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
  const std::uint64_t limit = first_number("/sys/fs/cgroup/memory.max");
  const std::uint64_t used = first_number("/sys/fs/cgroup/memory.current");
  const std::uint64_t in_group = used < limit ? limit - used : limit;
  return static_cast<std::size_t>(std::min(in_group, available_in_machine()));
}

}  // namespace ep_bench
