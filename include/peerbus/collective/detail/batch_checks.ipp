// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/text.hpp>

// The checks of the messages of a batch, before any of them has an effect.
namespace peerbus::collective::detail {

PEERBUS_INLINE batch::batch(channels& channels, std::span<const transfer> messages,
                            const call_options& options)
    : channels_{channels},
      memory_{*channels.memory_},
      number_{channels.calls_ + 1},
      messages_{messages},
      until_{options.until} {
  memory_.group().require_healthy("batch_send_recv", channels.view_);
  if (channels.is_pending_)
    throw error{errc::invalid_argument, peerbus::detail::concat("batch_send_recv was called while ",
                                                                title(), " is not finished")};
  if (options.as.count != 1)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("batch_send_recv was given lane ", options.as.index, " of ",
                                        options.as.count, ", expected one lane")};
  ++channels.calls_;
  if (const std::string objection = object(); !objection.empty())
    throw error{errc::invalid_argument, peerbus::detail::concat(title(), " was given ", objection)};
}

PEERBUS_INLINE std::string batch::object() const {
  using peerbus::detail::concat;
  for (const transfer& message : messages_) {
    if (message.peer().index() >= channels_.size())
      return concat("a message with ", message.peer(), ", expected a rank below ",
                    channels_.size());
    if (const group_view& view = memory_.group().view(); !view.contains(message.peer()))
      return concat("a message with ", message.peer(), ", which is not in view ", view.number());
    if (message.bytes().data() == nullptr && !message.bytes().empty())
      return concat("a message with ", message.peer(), " that is null but ",
                    message.bytes().size() / message.element().bytes, " elements long");
  }
  std::string objection = object_to_overlap();
  return objection.empty() ? to_self(false) : objection;
}

PEERBUS_INLINE std::string batch::object_to_overlap() const {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].sends()) continue;
    for (std::size_t j = 0; j < messages_.size(); ++j)
      if (i != j && !are_apart(messages_[i].bytes(), messages_[j].bytes()))
        return peerbus::detail::concat("an output for ", messages_[i].peer(), ", message ", i,
                                       ", that overlaps message ", j);
  }
  return {};
}

PEERBUS_INLINE std::string batch::to_self(bool copies) const {
  const auto next = [this](std::size_t place, bool sends) {
    while (place < messages_.size() &&
           (messages_[place].peer() != channels_.rank() || messages_[place].sends() != sends))
      ++place;
    return place;
  };
  std::size_t source = next(0, true);
  std::size_t target = next(0, false);
  while (source < messages_.size() && target < messages_.size()) {
    const transfer& sent = messages_[source];
    const transfer& received = messages_[target];
    if (copies)
      peerbus::detail::copy_bytes(received.output().data(), sent.input().data(),
                                  sent.input().size());
    else if (sent.element() != received.element() || sent.bytes().size() != received.bytes().size())
      return peerbus::detail::concat(
          "a message to its own rank of ", sent.bytes().size() / sent.element().bytes,
          " elements, message ", source, ", which message ", target, " expects to be ",
          received.bytes().size() / received.element().bytes, " elements of the same type");
    source = next(source + 1, true);
    target = next(target + 1, false);
  }
  if (source == target) return {};  // Both are past the end.
  return peerbus::detail::concat("message ", std::min(source, target),
                                 " with its own rank, which has no other end in the batch");
}

}  // namespace peerbus::collective::detail
