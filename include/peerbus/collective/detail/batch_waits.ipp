// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/text.hpp>

// The waits of a batch, and its errors if a wait fails or messages did not move.
namespace peerbus::collective::detail {

template <class Visit>
void batch::for_each_awaited(Visit&& visit) const {
  for (const rank_id peer : memory_.group().peers()) {
    if (const channel_end& end = memory_.out(peer); has_message(end)) {
      if (end.has_begun && !end.is_matched)
        visit(awaited_signal{peer, channel_signal::expected, end.messages + 1});
      else if (end.has_begun && end.is_read)
        visit(awaited_signal{peer, channel_signal::taken, end.slices + 1});
      else
        visit(
            awaited_signal{peer, channel_signal::taken, end.slices + 1 - channel_map::generations});
    }
    if (const channel_end& end = memory_.in(peer); has_message(end))
      visit(awaited_signal{peer, channel_signal::sent, end.slices + 1});
  }
}

PEERBUS_INLINE void batch::wait() {
  using std::chrono::microseconds;
  std::size_t count = 0;
  for_each_awaited([&](const awaited_signal&) { ++count; });
  if (count == 0) return;
  if (!until_) until_ = memory_.group().default_deadline();
  // A transport waits for one signal. Of several, each gets a turn, and longer ones while nothing
  // comes.
  const std::size_t turn = idle_++ % count;
  const auto longest =
      microseconds{20} * (std::size_t{1} << std::min<std::size_t>(idle_ / count, 6));
  const deadline shortly =
      count == 1 ? *until_ : deadline{std::min(until_->when(), deadline::after(longest).when())};
  std::size_t place = 0;
  errc code = errc::ok;
  for_each_awaited([&](const awaited_signal& signal) {
    if (place++ != turn) return;
    awaited_ = signal.peer;
    code = memory_.await(signal.peer, signal.kind, signal.value, shortly);
  });
  if (code == errc::timed_out && !until_->expired()) return;
  require(code);
}

PEERBUS_ERROR_PATH std::string batch::title() const {
  return peerbus::detail::concat("batch_send_recv (call ", channels_.calls_, " of the channels)");
}

PEERBUS_ERROR_PATH void batch::fail(errc code) {
  take_back();
  const membership& members = *memory_.group().members();
  members.fail_wait(activity_, code, awaited_);
  std::string text = peerbus::detail::concat(title(), " failed in the middle, after ",
                                             peerbus::detail::describe_elapsed(activity_));
  std::size_t named = 0;
  for_each_awaited([&](const awaited_signal& signal) {
    const bool sends = signal.kind != channel_signal::sent;
    const channel_end& end = sends ? memory_.out(signal.peer) : memory_.in(signal.peer);
    text += peerbus::detail::concat(named++ == 0 ? ": " : ", ", "message ", end.messages,
                                    sends ? " to " : " from ", signal.peer, " waited for ",
                                    sends ? "it to be received" : "it to be sent", " (", end.done,
                                    " of ", messages_[end.transfer].bytes().size(), " bytes");
    if (const auto seen = members.describe_last_seen(signal.peer); !seen.empty())
      text += "; " + seen;
    text += ")";
  });
  if (const auto gone = memory_.group().missing(); !gone.empty()) text += "; " + gone;
  memory_.group().fail(code, text);
}

PEERBUS_ERROR_PATH void batch::throw_unmoved() const {
  using peerbus::detail::concat;
  const auto& [sender, receiver, message, sent, expected, reason] = *unmoved_;
  const auto describe = [](const message_header& header) {
    return detail::describe(header.element, header.count);
  };
  throw error{
      reason,
      concat(title(), " did not move message ", message, " from ", sender, " to ", receiver, ": ",
             reason == errc::mismatch ? concat(sender, " sends ", describe(sent), ", ", receiver,
                                               " receives ", describe(expected))
                                      : concat("of its ", sent.count * sent.element.bytes,
                                               " bytes not all are mapped memory at ", sender))};
}

}  // namespace peerbus::collective::detail
