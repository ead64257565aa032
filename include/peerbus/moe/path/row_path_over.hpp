// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/codec/concept.hpp>
#include <peerbus/moe/path/concept.hpp>
#include <peerbus/moe/path/direct_row_path.hpp>
#include <peerbus/moe/path/mixed_row_path.hpp>
#include <peerbus/moe/path/staged_row_path.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe {

/// The path of an exchange over a transport with `Reach`. `type` is a `row_path`. Its constructor
/// takes the window of the exchange, its memory map and the codec.
template <peer_reach Reach, token_codec Codec>
struct row_path_over {
  /// The path that puts rows to all peers.
  using type = staged_row_path<Codec>;
};
/// The path of an exchange over a transport that reaches the memory of near peers.
template <token_codec Codec>
struct row_path_over<peer_reach::near, Codec> {
  /// The path that stores rows at near peers and puts them to far peers.
  using type = mixed_row_path<Codec>;
};
/// The path of an exchange over a transport that reaches the memory of all peers.
template <token_codec Codec>
struct row_path_over<peer_reach::all, Codec> {
  /// The path that stores rows at all peers.
  using type = direct_row_path<Codec>;
};

}  // namespace peerbus::moe
