// SPDX-License-Identifier: MIT
#pragma once

#include <hwloc.h>

#include <cerrno>
#include <memory>
#include <string>
#include <type_traits>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>

static_assert(HWLOC_API_VERSION >= 0x00020000, "peerbus::topology needs hwloc 2.0 or later");

namespace peerbus::topology {

/// The deleter of `hwloc_handle`.
struct destroy_topology {
  /// Destroys the topology.
  void operator()(hwloc_topology_t owned) const noexcept { hwloc_topology_destroy(owned); }
};
/// Owns an hwloc topology.
/// Threads: several threads may read one topology at once.
using hwloc_handle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, destroy_topology>;

/// The deleter of `bitmap_handle`.
struct free_bitmap {
  /// Frees the set.
  void operator()(hwloc_bitmap_t owned) const noexcept { hwloc_bitmap_free(owned); }
};
/// Owns an hwloc set of processors or nodes.
using bitmap_handle = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, free_bitmap>;

/// Returns a set that contains only `number`.
/// Throws: `error` out_of_memory.
[[nodiscard]] inline bitmap_handle only(unsigned number) {
  bitmap_handle set{hwloc_bitmap_alloc()};
  if (!set || hwloc_bitmap_only(set.get(), number) != 0)
    throw error{errc::out_of_memory, "no memory for a set of processors or nodes"};
  return set;
}

/// Loads the topology that `configure(topology)` sets up. `configure` returns 0, or -1 if hwloc
/// refuses. `what` names the topology in errors.
/// Throws: `error` system, or invalid_argument if `configure` fails.
template <class Configure>
[[nodiscard]] hwloc_handle load_topology(const std::string& what, Configure configure) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0)
    throw peerbus::detail::system_failure("starting hwloc", errno);
  hwloc_handle owned{made};
  if (configure(made) != 0)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("hwloc does not understand ", what)};
  if (hwloc_topology_load(made) != 0)
    throw peerbus::detail::system_failure("hwloc reading " + what, errno);
  return owned;
}

}  // namespace peerbus::topology
