// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::collective {

namespace detail {

/// The place of an operand in a window, without the type of its transport.
struct window_place {
  const void* window = nullptr;  ///< the window; nullptr if the operand lies in none
  const void* bus = nullptr;     ///< the transport of the communicator that made the window
  std::uint32_t number = 0;      ///< the number of the window in that communicator
  /// Returns the start of a peer's part. nullptr if peers cannot read it.
  std::byte* (*part_of)(const void* window, rank_id peer) = nullptr;
  std::size_t offset = 0;  ///< in bytes, from the start of this rank's part
  bool is_inside = true;   ///< whether the operand lies within this rank's part
};

}  // namespace detail

/// A range in this rank's part of a window, as an operand of a collective operation. `in_window`
/// makes it. Peers read the range in the window if the transport has peer memory. Otherwise it is
/// treated as other memory. The object refers to the window.
template <class T>
class window_range {
 public:
  /// Takes `part` and its place. For `in_window`.
  window_range(std::span<T> part, const detail::window_place& place) noexcept
      : part_{part}, place_{place} {}

  ///@{
  /// Returns the bounds of the range.
  [[nodiscard]] T* begin() const noexcept { return part_.data(); }
  [[nodiscard]] T* end() const noexcept { return part_.data() + part_.size(); }
  ///@}
  /// Returns the place of the range in its window.
  [[nodiscard]] const detail::window_place& place() const noexcept { return place_; }

 private:
  std::span<T> part_;
  detail::window_place place_;
};

/// Returns `part`, a range in this rank's part of `memory`, as an operand that peers read in the
/// window, such as `in_window(memory, memory.local<float>().first(100))`.
///
/// All ranks must give ranges of the same window to the same call, at any offsets. The team's
/// communicator must have made the window. Ranges of different windows, which differ in
/// `window::number`, are a `mismatch` if peers read them. The range must not change while the
/// operation runs, except as its output. Nothing is staged then: an operation takes two rounds, one
/// before and one after peers access the range. If a rank contributes less than
/// `team_options::window_bytes` to another rank, the operands are staged, in one round. The
/// variable forms take three rounds and stage no operands in windows.
template <transport Transport, class T>
[[nodiscard]] window_range<T> in_window(const window<Transport>& memory,
                                        std::span<T> part) noexcept {
  const std::span<std::byte> own = memory.local();
  const std::span<const std::byte> bytes = std::as_bytes(part);
  const std::less<> before;
  detail::window_place place{.window = &memory, .bus = &memory.bus(), .number = memory.number()};
  place.is_inside = !before(bytes.data(), own.data()) &&
                    !before(own.data() + own.size(), bytes.data() + bytes.size());
  if (place.is_inside) place.offset = static_cast<std::size_t>(bytes.data() - own.data());
  if constexpr (direct_transport<Transport>) {
    place.part_of = [](const void* erased, rank_id peer) {
      return static_cast<const window<Transport>*>(erased)->peer(peer).data();
    };
  } else if constexpr (partly_direct_transport<Transport>) {
    if (reach_of(memory.bus()) == peer_reach::all)
      place.part_of = [](const void* erased, rank_id peer) {
        return static_cast<const window<Transport>*>(erased)->find_peer(peer).data();
      };
  }
  return {part, place};
}

}  // namespace peerbus::collective
