// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

// Macros, so that a program can choose with #if; the build reads the project's version from here.
#define PEERBUS_VERSION_MAJOR 0
#define PEERBUS_VERSION_MINOR 1
#define PEERBUS_VERSION_PATCH 0

namespace peerbus {

/// The version of the library. Before 1.0.0, a new `minor_part` may break source. All ranks of a
/// group must be built from the same version, because the layout of shared memory may change.
struct version_number {
  int major_part;  ///< PEERBUS_VERSION_MAJOR
  int minor_part;  ///< PEERBUS_VERSION_MINOR
  int patch_part;  ///< PEERBUS_VERSION_PATCH

  friend constexpr bool operator==(const version_number&, const version_number&) = default;
};

/// The version of these headers.
inline constexpr version_number version{PEERBUS_VERSION_MAJOR, PEERBUS_VERSION_MINOR,
                                        PEERBUS_VERSION_PATCH};

}  // namespace peerbus
