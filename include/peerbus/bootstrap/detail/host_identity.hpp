// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The identity of a host for a rendezvous and for sharing. Ranks with equal identities are near
/// each other: they can meet at an abstract Unix socket and pass descriptors there.
struct host_identity {
  /// The identity of the kernel. Ranks with an equal `kernel` share cores, even if they are in
  /// different containers. It is the name that the settings give the host, with a last byte of 1.
  /// Without such a name it is the kernel's boot id, or the host's name if /proc cannot be read.
  std::array<std::byte, 64> kernel{};
  /// The network namespace, to which the names of abstract sockets belong. Zero if unknown.
  std::uint64_t network_device = 0;
  std::uint64_t network = 0;
  /// The effective user. Only ranks of one user pass descriptors to each other.
  std::uint64_t user = ::geteuid();

  static constexpr std::size_t most_name_bytes = 63;

  /// Identifies this host. `name` is the name that the settings give it, up to `most_name_bytes`
  /// bytes, or empty.
  explicit host_identity(std::string_view name) noexcept {
    struct stat found{};
    if (::stat("/proc/self/ns/net", &found) == 0) {
      network_device = found.st_dev;
      network = found.st_ino;
    }
    if (!name.empty()) {
      const auto bytes = std::as_bytes(std::span{name});
      std::copy(bytes.begin(), bytes.end(), kernel.begin());
      kernel.back() = std::byte{1};
      return;
    }
    const auto file =
        unique_fd::above_standard(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    if (file && ::read(file.get(), kernel.data(), 36) == 36) return;
    kernel = {};
    (void)::gethostname(reinterpret_cast<char*>(kernel.data()), most_name_bytes);
  }

  /// Returns the name that the settings give the host. Empty if they give none.
  [[nodiscard]] std::string_view name() const noexcept {
    if (kernel.back() == std::byte{0}) return {};
    const auto* const first = reinterpret_cast<const char*>(kernel.data());
    return {first, ::strnlen(first, most_name_bytes)};
  }

  friend bool operator==(const host_identity&, const host_identity&) = default;
};

}  // namespace peerbus::detail
