// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include <peerbus/core/signal.hpp>

namespace peerbus::detail::rdma {

/// A signal that is to be raised to `value`, in window number `window`.
struct raised_signal {
  std::uint32_t window = 0;
  signal_id id{};
  std::uint64_t value = 0;
};

/// The queue pairs, other than the first, that a signal has to wait for, one bit each.
using queue_set = std::uint8_t;
inline constexpr std::size_t most_queue_pairs = 9;

/// The full form of a signal's notice, which a SEND carries. Host byte order; `protocol_version`
/// and the byte order are compared when ranks connect.
struct notice {
  raised_signal what;
  std::uint16_t name = 0;
  queue_set after = 0;
};
static_assert(sizeof(notice) == 24);

/// The short form of a signal's notice: the 32 bits of immediate data of an RDMA WRITE. `name` is a
/// number that both ends have given to the signal; `growth` is the amount by which it rises.
struct short_notice {
  static constexpr std::uint64_t most_growth = std::numeric_limits<std::uint16_t>::max();

  std::uint8_t name = 0;
  queue_set after = 0;
  std::uint16_t growth = 0;

  [[nodiscard]] std::uint32_t encode() const noexcept {
    return std::uint32_t{name} << 24U | std::uint32_t{after} << 16U | growth;
  }
  [[nodiscard]] static short_notice decode(std::uint32_t bits) noexcept {
    return {static_cast<std::uint8_t>(bits >> 24U), static_cast<queue_set>(bits >> 16U),
            static_cast<std::uint16_t>(bits)};
  }
};

/// The names that two connected ranks have given to signals, and the latest value of each. Each end
/// keeps a table. Notices arrive in order, so both tables are equal when the same notice is
/// handled. Therefore 32 bits can stand for a window, a signal and a 64-bit value.
class signal_names {
 public:
  static constexpr std::size_t count = 128;

  /// Notes a signal that this rank raises.
  /// Returns: the growth to send under `name_of(what)`, or nothing if the signal must be sent in
  /// full. Either way the table now holds `what`.
  [[nodiscard]] std::optional<std::uint16_t> update(const raised_signal& what) noexcept {
    raised_signal& known = known_[name_of(what)];
    const bool same = known.window == what.window && known.id == what.id && named_[name_of(what)];
    // A value below an earlier one asks for nothing: no growth.
    const std::uint64_t growth = what.value > known.value ? what.value - known.value : 0;
    if (!same || growth > short_notice::most_growth) {
      known = what;
      named_[name_of(what)] = true;
      return std::nullopt;
    }
    known.value += growth;
    return static_cast<std::uint16_t>(growth);
  }

  /// Returns the signal that a notice from the other end raises.
  [[nodiscard]] raised_signal resolve(const short_notice& arrival) noexcept {
    raised_signal& known = known_[arrival.name % count];
    known.value += arrival.growth;
    return known;
  }
  [[nodiscard]] raised_signal resolve(const notice& arrival) noexcept {
    return known_[arrival.name % count] = arrival.what;
  }

  [[nodiscard]] static std::uint8_t name_of(const raised_signal& what) noexcept {
    // Signals that differ by a multiple of the number of ranks, as those of an exchange do, must
    // not share a name, which would cost them the long form each time: Fibonacci hashing spreads
    // them.
    const std::uint32_t mixed = static_cast<std::uint32_t>(index(what.id)) + what.window * 40503U;
    return static_cast<std::uint8_t>((mixed * 2654435769U) >> 25U);
  }

 private:
  std::array<raised_signal, count> known_{};
  std::array<bool, count> named_{};
};

}  // namespace peerbus::detail::rdma
