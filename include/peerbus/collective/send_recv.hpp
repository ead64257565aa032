// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <initializer_list>
#include <span>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/pending_messages.hpp>
#include <peerbus/collective/transfer.hpp>  // IWYU pragma: export
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

///@{
/// Moves all messages of `messages`, in both directions at once. Neither their order nor the order
/// of the peers' batches can make ranks wait for each other in a ring. A message that a rank sends
/// in a batch may be received by a separate call or in several batches, and the reverse. Messages
/// between the same two ranks in the same direction are matched in their order. Messages from a
/// rank to itself are matched within the batch. Ranges of a batch may overlap if they are only
/// sent.
///
/// Returns when this rank's inputs may be reused and its outputs are complete. A send is complete
/// when the peer has come to the message, and all of it is in flight or has been read by the peer
/// (`channel_options::private_bytes`). Therefore `send` may wait for `recv`.
///
/// Cost: as `channels` says. To find overlaps, each output is compared with every other range of
/// the batch. While several messages are awaited and none moves, the rank looks at one after the
/// other.
/// Throws: `error` mismatch at both ends of a message whose sizes or types differ; all other
/// messages are then complete. If a peer cannot read a message in private memory because not all of
/// it is mapped memory, invalid_argument at the sender and refused at the receiver, whose output
/// may then hold some of it; all other messages are complete. If several messages fail like this,
/// each end names the first that it finds. Other unmapped memory faults where it is copied: in a
/// message that comes in slices, in the first slice of a message that is read, and in outputs. On
/// the calling rank only, and without any effect, invalid_argument if a peer does not exist, a
/// range is null with a size or overlaps an output, or messages from this rank to itself do not
/// match. Also poisoned; timed_out, peer_dead and unreachable, which poison the communicator and
/// leave outputs undefined.
void batch_send_recv(channels& channels, std::span<const transfer> messages,
                     const call_options& options = {});
inline void batch_send_recv(channels& channels, std::initializer_list<transfer> messages,
                            const call_options& options = {}) {
  batch_send_recv(channels, std::span{messages.begin(), messages.size()}, options);
}
///@}

/// Sends `input` to `peer`. Contract as `batch_send_recv`.
template <spannable Input>
void send(channels& channels, const Input& input, rank_id peer, const call_options& options = {}) {
  batch_send_recv(channels, {send_to(peer, input)}, options);
}

/// Receives a message of `peer` into `output`. Contract as `batch_send_recv`.
template <detail::output_range Output>
void recv(channels& channels, Output&& output, rank_id peer, const call_options& options = {}) {
  batch_send_recv(channels, {recv_from(peer, output)}, options);
}

///@{
/// Does the first half of `batch_send_recv`, `send` or `recv`, with the same arguments.
/// `pending_messages::finish` does the rest. `pending_messages` says what holds between the halves.
/// The array of a batch must live until then, so a list in braces is not accepted.
template <detail::lasting_range Messages>
  requires std::convertible_to<Messages, std::span<const transfer>>
pending_messages start_batch_send_recv(channels& channels, Messages&& messages,
                                       const call_options& options = {}) {
  return {channels, std::span<const transfer>{messages}, options};
}
template <spannable Input>
  requires detail::lasting_range<Input>
pending_messages start_send(channels& channels, Input&& input, rank_id peer,
                            const call_options& options = {}) {
  return {channels, send_to(peer, input), options};
}
template <detail::output_range Output>
  requires detail::lasting_range<Output>
pending_messages start_recv(channels& channels, Output&& output, rank_id peer,
                            const call_options& options = {}) {
  return {channels, recv_from(peer, output), options};
}
///@}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/send_recv.ipp>  // IWYU pragma: keep
#endif
