// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/detail/channel_memory.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The messages of a `batch_send_recv` under way. For each peer and direction one message is under
/// way, whose progress is in the channel's end.
class batch {
 public:
  /// Checks the messages and counts the call. Moves no message.
  /// Throws: as `batch_send_recv` for bad arguments.
  batch(channels& channels, std::span<const transfer> messages, const call_options& options);

  /// Moves all messages.
  void run() {
    report("batch_send_recv", [this] {
      begin();
      complete();
    });
  }
  /// Does the first half: moves messages without waiting for a peer. The channels then accept no
  /// other call until `finish` or `abandon`.
  /// Throws: `error` peer_dead or unreachable.
  void start();
  /// Does the second half. `until`, if any, is its deadline.
  /// Throws: as `batch_send_recv`; `error` view_changed if the channels have continued without
  /// ranks meanwhile.
  void finish(const std::optional<deadline>& until);
  /// Discards the messages between the halves. Poisons the communicator, because messages are then
  /// under way, unless the channels have already discarded them.
  void abandon() noexcept;
  /// Sets the new address of the messages, whose contents are unchanged.
  void find_messages_at(std::span<const transfer> messages) noexcept { messages_ = messages; }

 private:
  /// A receiver stops reading a peer's messages in private memory after this many have failed.
  static constexpr unsigned most_unreadable = 3;

  /// A message that has ended without being moved, because its ends differ or its memory is not
  /// mapped, with the descriptions of both ends.
  struct unmoved_message {
    rank_id sender, receiver;
    std::uint64_t message = 0;
    message_header sent, expected;
    errc reason = errc::mismatch;  // Else its sender has no such memory.
  };
  /// A signal that a message waits for.
  struct awaited_signal {
    rank_id peer;
    channel_signal kind = channel_signal::sent;
    std::uint64_t value = 0;
  };

  /// Returns whether the channels still wait for the second half of these messages.
  [[nodiscard]] bool is_pending() const noexcept {
    return channels_.is_pending_ && channels_.calls_ == number_;
  }
  [[nodiscard]] std::string object() const;
  [[nodiscard]] std::string object_to_overlap() const;
  /// Returns the objection to messages from this rank to itself that do not match, or an empty
  /// string. Copies them if `copies`.
  [[nodiscard]] std::string to_self(bool copies) const;

  /// Copies messages from this rank to itself, and finds the first messages to and from each peer.
  void begin();
  /// Moves slices of all messages without waiting. Returns whether anything moved.
  bool advance();
  /// Moves the rest of all messages.
  /// Throws: as `batch_send_recv`.
  void complete();
  /// Sets the end to the next message of its direction, from index `first` of the batch on.
  void find_next(channel_end& end, rank_id peer, bool sends, std::size_t first) noexcept;
  [[nodiscard]] bool has_message(const channel_end& end) const noexcept {
    return end.transfer < messages_.size();
  }
  /// Returns whether the message of a receiving end has arrived or is discarded.
  [[nodiscard]] bool is_complete(const channel_end& end) const noexcept;
  void finish(channel_end& end, rank_id peer, bool sends) noexcept;
  ///@{
  /// Sends slices of the message to `peer`, or receives those from `peer`, without waiting. Returns
  /// whether anything moved.
  bool push(rank_id peer);
  bool pull(rank_id peer);
  ///@}
  void push_slice(rank_id peer, channel_end& end);
  void pull_slice(rank_id peer, channel_end& end);
  [[nodiscard]] message_header header_of(const channel_end& end) const noexcept;
  /// Returns whether the receiver of a message may read it in private memory. Both ends get the
  /// same result if they describe the message alike.
  [[nodiscard]] bool may_read(rank_id peer, const channel_end& end) const noexcept;
  /// Reads a message of `peer` except its first slice, which is in `slot`. If that fails, tells the
  /// peer.
  void read_rest(rank_id peer, channel_end& end, std::size_t slot);
  /// Checks a message that its receiver could not read. If its rest is not all mapped memory, tells
  /// the receiver and leaves the message unmoved. Otherwise does nothing, and its slices are sent.
  void refuse_unmapped(rank_id peer, channel_end& end);
  /// Leaves a message unmoved. Its sender must have told that it is not all mapped memory.
  void note_unmapped(rank_id peer, channel_end& end) noexcept;
  /// Revokes the addresses of messages that peers may read, before this rank discards the messages.
  void take_back() noexcept;
  void match(channel_end& end, const unmoved_message& both);
  /// Ends the message of `end` without moving it. Keeps the first such message for the error.
  void leave_unmoved(channel_end& end, const unmoved_message& message) noexcept;

  /// Does `work`, and reports it to listeners.
  template <class Work>
  void report(const char* name, Work&& work);
  /// Returns the message of an end as an event for listeners.
  [[nodiscard]] operation_event event_of(const channel_end& end, rank_id peer,
                                         bool sends) const noexcept;
  [[nodiscard]] const event_listeners& listeners() const noexcept {
    return memory_.group().members()->listeners();
  }

  /// Calls `visit` for each signal that the messages under way wait for.
  template <class Visit>
  void for_each_awaited(Visit&& visit) const;
  void wait();
  void require(errc code) {
    if (code != errc::ok) fail(code);
  }
  [[noreturn]] void fail(errc code);
  [[noreturn]] void throw_unmoved() const;
  [[nodiscard]] std::string title() const;

  channels& channels_;
  channel_memory& memory_;
  std::uint64_t number_;  // Of the call.
  std::span<const transfer> messages_;
  std::optional<deadline> until_;             // Empty: from the first wait on.
  std::size_t left_ = 0;                      // Messages that are not complete.
  std::size_t idle_ = 0;                      // Waits since anything moved.
  std::optional<rank_id> awaited_{};          // The peer of the latest wait.
  std::optional<unmoved_message> unmoved_{};  // The first one.
  peerbus::detail::activity_line::begun activity_;
};

template <class Work>
void batch::report(const char* name, Work&& work) {
  if (!listeners().any()) return work();
  std::size_t bytes = 0;
  for (const transfer& message : messages_) bytes += message.bytes().size();
  peerbus::detail::reported(
      listeners(),
      {.what = {.operation = group_operation::batch_send_recv, .number = channels_.calls_},
       .name = name,
       .bytes = bytes},
      [&](const operation_event&) { work(); });
}

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/batch.ipp>         // IWYU pragma: keep
#include <peerbus/collective/detail/batch_checks.ipp>  // IWYU pragma: keep
#include <peerbus/collective/detail/batch_reads.ipp>   // IWYU pragma: keep
#include <peerbus/collective/detail/batch_waits.ipp>   // IWYU pragma: keep
#endif
