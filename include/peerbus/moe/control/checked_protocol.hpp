// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/control/control_protocol.hpp>

namespace peerbus::moe::detail {

/// `counts_first` for a rank that distrusts its peers. Batches have `peer_checks`. Wrong counts
/// refuse the dispatch before a row is written.
class checked_counts_first final : public counts_first {
 public:
  departure place(control_messages& messages, batch& counted, const step& this_step, bool wait,
                  deadline until, std::span<std::int64_t> waited) const override;
  void after_send(const control_messages& messages, batch& sent,
                  const step& this_step) const override;
  void receive(control_messages& messages, batch& sent, const step& rows_step, deadline until,
               std::span<std::int64_t> waited) const override;
};

/// `one_phase` for a rank that distrusts its peers. Batches have `peer_checks`.
class checked_one_phase final : public one_phase {
 public:
  void receive(control_messages& messages, batch& sent, const step& rows_step, deadline until,
               std::span<std::int64_t> waited) const override;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/checked_protocol.ipp>  // IWYU pragma: keep
#endif
