// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// What tells running kernels apart, and so hosts as far as they matter here: ranks under one
/// kernel share its cores, in however many containers they are. Its boot id; the host's name where
/// /proc is not to be seen.
inline std::array<std::byte, 64> host_identity() noexcept {
  std::array<std::byte, 64> identity{};
  const unique_fd file{::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)};
  if (file && ::read(file.get(), identity.data(), 36) == 36) return identity;
  identity = {};
  (void)::gethostname(reinterpret_cast<char*>(identity.data()), identity.size() - 1);
  return identity;
}

}  // namespace peerbus::detail
