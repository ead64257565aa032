// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::collective {

PEERBUS_INLINE pending::pending(detail::operation begun, const request& given,
                                const detail::kept_work& work)
    : begun_{std::move(begun)}, given_{given}, work_{work} {
  begun_->start(given_, work_.get());
}

PEERBUS_INLINE pending::pending(pending&& other) noexcept
    : begun_{std::move(other.begun_)}, given_{other.given_}, work_{other.work_} {
  other.begun_.reset();
}

PEERBUS_INLINE pending& pending::operator=(pending&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  if (other.begun_) begun_.emplace(std::move(*other.begun_));
  given_ = other.given_;
  work_ = other.work_;
  other.begun_.reset();
  return *this;
}

PEERBUS_INLINE pending::~pending() { abandon(); }

PEERBUS_INLINE void pending::abandon() noexcept {
  if (begun_) begun_->abandon();
  begun_.reset();
}

PEERBUS_INLINE void pending::finish(const call_options& options) {
  if (!begun_)
    throw error{errc::invalid_argument, "finish of a handle without a collective operation"};
  const detail::call_rounds& rounds = begun_->rounds();
  const detail::short_text<16> operation = rounds.operation();
  const call_options given{.until = options.until ? options.until : rounds.until(),
                           .as = options.as};
  // Lane 0 empties the handle only after all lanes have come, so that each has looked into it.
  detail::by_lanes(rounds.own_team(), operation.view(), "finish", given, [&] {
    detail::operation begun = std::move(*begun_);
    begun_.reset();
    begun.finish(given_, work_.get(), given.until);
  });
}

}  // namespace peerbus::collective
