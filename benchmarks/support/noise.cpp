// SPDX-License-Identifier: MIT
#include "support/noise.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace bench {
namespace {

/// The time that all cores together have been busy, in ticks (proc_stat(5)); 0 where the kernel
/// does not tell.
std::uint64_t busy_ticks() {
  std::ifstream file{"/proc/stat"};
  std::string name;
  std::uint64_t user = 0;
  std::uint64_t nice = 0;
  std::uint64_t system = 0;
  std::uint64_t idle = 0;
  std::uint64_t waiting = 0;
  std::uint64_t interrupts = 0;
  std::uint64_t soft_interrupts = 0;
  std::uint64_t stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >>
      stolen;
  return user + nice + system + interrupts + soft_interrupts + stolen;
}

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

}  // namespace

double busy_cores() {
  using clock = std::chrono::steady_clock;
  const std::uint64_t before = busy_ticks();
  const auto begun = clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds{200});
  const std::chrono::duration<double> seconds = clock::now() - begun;
  const auto ticks = static_cast<double>(busy_ticks() - before);
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) / seconds.count();
}

double busy_cores(peerbus::bootstrap& boot) {
  const auto until = peerbus::deadline::after(std::chrono::minutes{1});
  // Only once all have come are their starts over.
  static_cast<void>(boot.allgather({}, until, "all ranks are there"));
  double most = busy_cores();
  peerbus::bootstrap::contribution own;
  own.bytes.resize(sizeof most);
  std::memcpy(own.bytes.data(), &most, sizeof most);
  for (const auto& told : boot.allgather(std::move(own), until, "cores that others keep busy")) {
    double cores = 0;
    std::memcpy(&cores, told.bytes.data(), sizeof cores);
    most = std::max(most, cores);
  }
  return most;
}

std::string signs_of_noise(const noise_options& seen,
                           const std::vector<std::pair<std::string_view, statistics>>& times) {
  constexpr double most_busy_cores = 0.25;
  constexpr double most_spread = 2;
  std::string signs;
  if (seen.busy_cores > most_busy_cores)
    signs = peerbus::concat("other programs used ", one_decimal(seen.busy_cores), " of ",
                            ::sysconf(_SC_NPROCESSORS_ONLN), " cores just before");
  std::string_view worst;
  double most = most_spread;
  std::size_t wide = 0;
  for (const auto& [name, time] : times) {
    if (time.p90 <= most_spread * time.p50) continue;
    ++wide;
    if (time.p90 <= most * time.p50) continue;
    most = time.p90 / time.p50;
    worst = name;
  }
  if (wide == 0) return signs;
  signs += peerbus::concat(signs.empty() ? "" : "; ", "p90 of ", worst, " is ", one_decimal(most),
                           " times its p50");
  if (wide > 1) signs += peerbus::concat(", and over twice for ", wide - 1, " more");
  return signs;
}

bool refuses_noise(const char* program, const noise_options& asked, const std::string& signs,
                   peerbus::rank_id rank) {
  if (!asked.quiet_or_fail || signs.empty()) return false;
  if (rank.index() == 0)
    std::fprintf(stderr, "%s: --quiet-or-fail: %s, expected a quiet machine\n", program,
                 signs.c_str());
  return true;
}

}  // namespace bench
