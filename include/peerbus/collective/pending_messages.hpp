// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::collective {

/// The second half of messages whose first half was done by `start_batch_send_recv`, `start_send`
/// or `start_recv`. A rank may compute between the halves. The other end of a message may be whole
/// or in halves.
///
/// The first half copies messages from this rank to itself, sends the first slice of the first
/// message to each peer, tells each peer which first message this rank expects, and takes what has
/// arrived. If a peer has already come to a message, more slices of it may move. The first half
/// waits for no rank. Therefore a rank that computes does not delay a message of one slice if it is
/// the first between two ranks in its direction, and the peer has taken all but one of the earlier
/// slices. All other messages may move in the second half only.
///
/// From the first half until `finish` returns, the elements of all messages belong to the channels:
/// elements to send must not change, elements to receive must not be accessed, and both must live.
/// The array of a batch must live, too.
///
/// The next call of the same channels must come after `finish`. Put messages that are to move at
/// the same time into one batch. An earlier call throws `error` invalid_argument on this rank and
/// has no effect.
///
/// Errors: bad arguments are thrown by the first half, as by the whole operation, because no other
/// rank learns of them. It also throws poisoned, and peer_dead and unreachable, which poison the
/// communicator. For messages that both ends describe differently, or that are not mapped memory,
/// `finish` throws.
///
/// A handle that is destroyed or replaced before `finish` discards the messages, and neither waits
/// nor accesses elements. It poisons the communicator: later operations throw poisoned with this
/// reason. Peers that need more of this rank wait until their deadlines. If the communicator has
/// continued without ranks since the first half, the messages are already discarded, and nothing is
/// poisoned.
///
/// Cost: no allocation; about 250 bytes in the handle.
/// Threads: the halves may run on different threads, one after the other. The channels must outlive
/// the handle.
class [[nodiscard]] pending_messages {
 public:
  /// Makes an empty handle.
  pending_messages() noexcept = default;
  ///@{
  /// Does the first half of a batch, or of one message. For the functions `start_...`.
  pending_messages(channels& channels, std::span<const transfer> messages,
                   const call_options& options);
  pending_messages(channels& channels, const transfer& message, const call_options& options);
  ///@}
  pending_messages(const pending_messages&) = delete;
  pending_messages& operator=(const pending_messages&) = delete;
  /// Takes the messages of `other`, which becomes empty.
  pending_messages(pending_messages&& other) noexcept;
  /// Discards the messages of this handle, if any, and takes those of `other`, which becomes empty.
  pending_messages& operator=(pending_messages&& other) noexcept;
  /// Discards the messages of this handle, if any.
  ~pending_messages();

  /// Returns whether the handle has messages to finish. A batch may be empty.
  [[nodiscard]] bool has_operation() const noexcept { return begun_.has_value(); }

  /// Moves the rest of the messages. Returns as `batch_send_recv` does. The handle is empty
  /// afterwards, also if this throws. `until` replaces the deadline of the first half. Without
  /// either, the default timeout of the communicator begins at the first wait.
  /// Throws: `error` invalid_argument on this rank only if the handle is empty; view_changed if the
  /// communicator has continued without ranks since the first half; otherwise as `batch_send_recv`.
  void finish(std::optional<deadline> until = std::nullopt);

 private:
  void abandon() noexcept;
  /// Takes the messages of `other`, if any. This handle must be empty.
  void take(pending_messages& other) noexcept;

  std::optional<transfer> single_;  // The message of a call that has one.
  std::optional<detail::batch> begun_;
};

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/pending_messages.ipp>  // IWYU pragma: keep
#endif
