// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/registered/window_part.hpp>
#include <peerbus/transport/registered/window_table.hpp>

namespace peerbus::detail::ofi {

/// A registration of memory, by which the provider and peers reach it.
struct registration {
  handle<fid_mr> region;
  bool by_address = false;  ///< whether peers use addresses, instead of offsets in the memory

  explicit operator bool() const noexcept { return region != nullptr; }
  [[nodiscard]] void* local_key() const noexcept { return fi_mr_desc(region.get()); }
  [[nodiscard]] std::uint64_t remote_key() const noexcept { return fi_mr_key(region.get()); }
  [[nodiscard]] std::uint64_t address(std::span<const std::byte> memory) const noexcept {
    return by_address ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  }
};

using window_part = registered::window_part<registration>;
using window_table = registered::window_table<window_part>;
using remote_place = window_part::place_type;

/// Makes `memory` reachable for the provider and peers. `key` must differ from that of any other
/// registration of the domain. `what` names the memory in errors.
/// Throws: `error` out_of_memory, system.
inline registration register_memory(fid_domain& domain, fid_ep& endpoint, const fi_info& info,
                                    std::span<std::byte> memory, std::uint64_t key,
                                    std::string_view what) {
  const auto mode = static_cast<std::uint64_t>(info.domain_attr->mr_mode);
  constexpr std::uint64_t access =
      FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV;
  fid_mr* region = nullptr;
  int failed =
      fi_mr_reg(&domain, memory.data(), memory.size(), access, 0, key, 0, &region, nullptr);
  registration made{handle<fid_mr>{region}, (mode & FI_MR_VIRT_ADDR) != 0};
  if (failed == 0 && (mode & FI_MR_ENDPOINT) != 0) {
    failed = fi_mr_bind(region, &endpoint.fid, 0);
    if (failed == 0) failed = fi_mr_enable(region);
  }
  if (failed != 0)
    throw fabric_failure(concat("registering ", memory.size(), " bytes for ", what,
                                " with provider ", info.fabric_attr->prov_name),
                         failed);
  return made;
}

}  // namespace peerbus::detail::ofi
