// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// A cache and the number of cores that share it.
struct shared_cache {
  std::size_t bytes = 0;  ///< the size; 0 if the system does not report caches
  std::size_t cores = 1;  ///< the number of cores that share it, at least 1
};

/// Returns the largest cache of the core that this thread runs on, usually the last level. In a
/// virtual machine this may be the host's cache, which other machines of the host use as well.
/// Cost: about ten small files of /sys.
shared_cache largest_cache();

/// Returns the largest cache that `directory` describes, in the form of
/// /sys/devices/system/cpu/cpu0/cache.
/// Source: Documentation/ABI/testing/sysfs-devices-system-cpu of Linux.
shared_cache largest_cache(const std::string& directory);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/caches.ipp>  // IWYU pragma: keep
#endif
