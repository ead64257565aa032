// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/registered/window_part.hpp>
#include <peerbus/transport/registered/window_table.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/rail_keys.hpp>

namespace peerbus::detail::rdma {

/// Returns a text with the limit of locked memory, which registrations may exceed.
inline std::string describe_lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return {};
  if (limit.rlim_cur == RLIM_INFINITY) return " (locked memory is not limited here)";
  return concat(" (this process may lock ", limit.rlim_cur >> 10U,
                " KiB: raise `ulimit -l`, LimitMEMLOCK= of a "
                "systemd service, or --ulimit memlock= of a container)");
}

/// The registration of a window's memory, by which the rank's devices and peers reach it.
class registration {
 public:
  registration() = default;
  /// Adds the region of the next device.
  /// Throws: std::bad_alloc.
  void add(memory_region region) {
    if (!held_) held_ = std::make_unique<held>();
    held_->keys[held_->count] = region->lkey;
    held_->regions[held_->count++] = std::move(region);
  }

  explicit operator bool() const noexcept { return held_ != nullptr; }
  /// Returns the local keys, which stay at their address as long as the memory is registered.
  [[nodiscard]] const rail_keys* local_key() const noexcept { return &held_->keys; }
  [[nodiscard]] rail_keys remote_key() const noexcept {
    rail_keys keys{};
    for (std::size_t i = 0; i < held_->count; ++i) keys[i] = held_->regions[i]->rkey;
    return keys;
  }
  [[nodiscard]] static std::uint64_t address(std::span<const std::byte> memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory.data());
  }

 private:
  struct held {
    std::array<memory_region, most_rails> regions;
    std::size_t count = 0;
    rail_keys keys{};
  };
  std::unique_ptr<held> held_;
};

/// The start of memory of a peer, with a key for each of the rank's devices.
using remote_place = registered::remote_place<rail_keys>;
using window_part = registered::window_part<registration>;
using window_table = registered::window_table<window_part>;

/// Makes `memory` reachable for the device and for peers. All its pages are committed and locked.
/// Throws: `error` out_of_memory, system.
inline memory_region register_memory(const protection_domain& domain, const open_port& port,
                                     std::span<std::byte> memory, bool relaxed_ordering,
                                     std::string_view what) {
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (port.limits.atomic_cap != IBV_ATOMIC_NONE) access |= IBV_ACCESS_REMOTE_ATOMIC;
  if (relaxed_ordering) access |= IBV_ACCESS_RELAXED_ORDERING;
  // What the macro ibv_reg_mr calls for flags that are no constant. The macro itself converts their
  // sign.
  memory_region made{ibv_reg_mr_iova2(domain.get(), memory.data(), memory.size(),
                                      reinterpret_cast<std::uintptr_t>(memory.data()),
                                      static_cast<unsigned>(access))};
  if (made) return made;
  const int reason = errno;
  const bool full = reason == ENOMEM || reason == EAGAIN || reason == EPERM;
  throw error{
      full ? errc::out_of_memory : errc::system,
      concat("verbs: cannot register ", memory.size(), " bytes for ", what, " with ",
             port.describe(), ": ", describe_errno(reason), full ? describe_lock_limit() : "")};
}

}  // namespace peerbus::detail::rdma
