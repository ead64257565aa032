// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

/// The calls of the refinements over any transport. If a transport has a refinement, the function
/// calls it, otherwise it does what the contract gives without it.
namespace peerbus::detail {

/// Puts `pieces`, as requirement 15 says, over any transport.
template <transport Transport>
[[nodiscard]] errc put_run(Transport& bus, rank_id peer, const typename Transport::window& window,
                           std::span<const put_piece> pieces) noexcept {
  if constexpr (refinements_of<Transport>().put_run) {
    return bus.put_run(peer, window, pieces);
  } else {
    const std::size_t bytes = bus.local(window).size();  // The parts of all ranks are equally long.
    for (const put_piece& piece : pieces)
      if (piece.offset > bytes || piece.source.size() > bytes - piece.offset)
        return errc::out_of_range;
    for (const put_piece& piece : pieces)
      if (const errc code = bus.put(peer, window, piece.offset, piece.source); code != errc::ok)
        return code;
    return errc::ok;
  }
}

/// Raises signal `id` of each of `peers`, as requirement 16 says, over any transport.
template <transport Transport>
[[nodiscard]] errc signal_each(Transport& bus, std::span<const rank_id> peers,
                               const typename Transport::window& window, signal_id id,
                               std::uint64_t value) noexcept {
  if constexpr (refinements_of<Transport>().signal_each) {
    return bus.signal_each(peers, window, id, value);
  } else {
    // All peers have as many signals: if the first is raised, only a missing peer is out of range.
    for (const rank_id peer : peers)
      if (peer.index() >= bus.boot().size()) return errc::out_of_range;
    for (const rank_id peer : peers)
      if (const errc code = bus.signal(peer, window, id, value); code != errc::ok) return code;
    return errc::ok;
  }
}

/// Reads private memory of `peer`, as requirement 21 says. Returns `unsupported` if the transport
/// lacks that refinement.
template <transport Transport>
[[nodiscard]] errc get_private([[maybe_unused]] Transport& bus, [[maybe_unused]] rank_id peer,
                               [[maybe_unused]] const typename Transport::window& window,
                               [[maybe_unused]] std::uint64_t address,
                               [[maybe_unused]] std::span<std::byte> target) noexcept {
  if constexpr (refinements_of<Transport>().private_memory)
    return bus.get_private(peer, window, address, target);
  else
    return errc::unsupported;
}

/// Returns the ranks that are near the caller, in ascending order and including the caller. These
/// are `bus.near_ranks()` if that function exists, or else the ranks of the caller's host.
template <transport Transport>
[[nodiscard]] std::span<const rank_id> near_ranks_of(const Transport& bus) noexcept {
  if constexpr (requires { bus.near_ranks(); })
    return bus.near_ranks();
  else
    return bus.boot().near_ranks();
}

/// Returns the text of requirement 17, or an empty string if the transport lacks that refinement.
template <transport Transport>
[[nodiscard]] std::string describe_trouble(const Transport& bus) {
  if constexpr (refinements_of<Transport>().describe_trouble)
    return bus.describe_trouble();
  else
    return {};
}

}  // namespace peerbus::detail

namespace peerbus {

/// The peers that a transport reaches by loads and stores, according to its type.
template <transport Transport>
inline constexpr peer_reach reach_by_type = direct_transport<Transport>          ? peer_reach::all
                                            : partly_direct_transport<Transport> ? peer_reach::near
                                                                                 : peer_reach::none;

/// Returns the reach of requirement 22, or `reach_by_type` if the transport lacks that refinement.
template <transport Transport>
[[nodiscard]] constexpr peer_reach reach_of([[maybe_unused]] const Transport& bus) noexcept {
  if constexpr (detail::refinements_of<Transport>().reach)
    return bus.reach();
  else
    return reach_by_type<Transport>;
}

/// Returns a text that says which ranks are missing and which connections broke, for the end of an
/// error. Empty if nothing is known.
template <transport Transport>
std::string describe_absence(const Transport& bus) {
  std::string text = bus.boot().members()->describe_missing();
  if (const std::string failures = detail::describe_trouble(bus); !failures.empty())
    text += (text.empty() ? "" : "; ") + failures;
  return text;
}

}  // namespace peerbus
