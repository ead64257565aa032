// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/collective/pending_messages.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::collective {

PEERBUS_INLINE pending_messages::pending_messages(channels& channels,
                                                  std::span<const transfer> messages,
                                                  const call_options& options)
    : begun_{std::in_place, channels, messages, options} {
  begun_->start();
}

PEERBUS_INLINE pending_messages::pending_messages(channels& channels, const transfer& message,
                                                  const call_options& options)
    : single_{message}, begun_{std::in_place, channels, std::span{&*single_, 1}, options} {
  begun_->start();
}

PEERBUS_INLINE pending_messages::pending_messages(pending_messages&& other) noexcept {
  take(other);
}

PEERBUS_INLINE pending_messages& pending_messages::operator=(pending_messages&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  take(other);
  return *this;
}

PEERBUS_INLINE pending_messages::~pending_messages() { abandon(); }

PEERBUS_INLINE void pending_messages::take(pending_messages& other) noexcept {
  single_ = other.single_;
  if (!other.begun_) return;
  begun_.emplace(*other.begun_);
  if (single_) begun_->find_messages_at({&*single_, 1});
  other.begun_.reset();
}

PEERBUS_INLINE void pending_messages::abandon() noexcept {
  if (begun_) begun_->abandon();
  begun_.reset();
}

PEERBUS_INLINE void pending_messages::finish(std::optional<deadline> until) {
  if (!begun_) throw error{errc::invalid_argument, "finish of a handle without messages"};
  detail::batch begun = *begun_;
  begun_.reset();
  begun.finish(until);
}

}  // namespace peerbus::collective
