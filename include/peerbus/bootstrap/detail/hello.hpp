// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/bootstrap/build_version.hpp>
#include <peerbus/bootstrap/detail/message_cursor.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The first message of a rank on each of its connections to rank 0. Its size and layout are the
/// same in all versions, so that rank 0 can recognise a different build.
struct hello {
  using message = std::array<std::byte, 48>;
  using process_id = std::array<std::byte, 16>;

  /// The first bytes of a hello: "peerbusH".
  static constexpr std::array<std::byte, 8> magic{std::byte{'p'}, std::byte{'e'}, std::byte{'e'},
                                                  std::byte{'r'}, std::byte{'b'}, std::byte{'u'},
                                                  std::byte{'s'}, std::byte{'H'}};

  build_version version;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  /// The number of this connection among the connections of its rank.
  std::uint32_t channel = 0;
  /// A random number that is the same in all hellos of one process.
  process_id process{};

  /// Returns whether the first `count` bytes of `message` can be the start of a hello.
  [[nodiscard]] static bool may_begin(const message& message, std::size_t count) noexcept {
    return std::equal(magic.begin(),
                      magic.begin() + static_cast<std::ptrdiff_t>(std::min(count, magic.size())),
                      message.begin());
  }

  [[nodiscard]] message encode() const noexcept {
    message out{};
    message_cursor<std::byte> cursor{out};
    cursor.put(magic);
    for (const auto number :
         {version.protocol, version.library, version.byte_order, rank, size, channel})
      cursor.put(number);
    cursor.put(process);
    return out;
  }
  /// Decodes a message that begins with `magic`.
  [[nodiscard]] static hello decode(const message& encoded) noexcept {
    hello decoded;
    message_cursor<const std::byte> cursor{std::span{encoded}.subspan(magic.size())};
    for (auto* number :
         {&decoded.version.protocol, &decoded.version.library, &decoded.version.byte_order,
          &decoded.rank, &decoded.size, &decoded.channel})
      *number = cursor.get();
    cursor.get(decoded.process);
    return decoded;
  }

  /// Draws a random process id.
  /// Throws: `error` system.
  [[nodiscard]] static process_id make_process_id() { return draw_bytes<sizeof(process_id)>(); }
};

}  // namespace peerbus::detail
