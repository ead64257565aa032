// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include <peerbus/core/text.hpp>
#include <peerbus/version.hpp>

namespace peerbus {

/// The build of a rank, which ranks compare when they meet. Only ranks with equal builds work
/// together. A default-constructed one is the build of the caller.
struct build_version {
  /// The number of the protocol by which ranks of this build meet.
  static constexpr std::uint32_t expected_protocol = 4;

  std::uint32_t protocol = expected_protocol;  ///< the number of the protocol
  /// The version of the library: the major part from bit 20 on, the minor part from bit 10 on, the
  /// patch from bit 0 on.
  std::uint32_t library =
      PEERBUS_VERSION_MAJOR << 20 | PEERBUS_VERSION_MINOR << 10 | PEERBUS_VERSION_PATCH;
  /// The byte order of the host, in which ranks exchange all later numbers without conversion.
  std::uint32_t byte_order = std::endian::native == std::endian::little ? 0x0403'0201 : 0x0102'0304;

  /// Returns whether ranks of both builds work together.
  friend bool operator==(const build_version&, const build_version&) = default;

  /// Appends the build in words, such as "peerbus 0.1.0, protocol 4, little endian"; for `concat`.
  friend void append_text(std::string& out, const build_version& build) {
    out += concat("peerbus ", build.library >> 20, ".", build.library >> 10 & 1023, ".",
                  build.library & 1023, ", protocol ", build.protocol, ", ",
                  build.byte_order == 0x0403'0201   ? "little endian"
                  : build.byte_order == 0x0102'0304 ? "big endian"
                                                    : "unknown byte order");
  }
};

}  // namespace peerbus
