// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

/// Completes the combine of `rows`, which this rank has sent with `refuse`: waits until all ranks
/// have sent it too. `out` has the size of its sums, and is not written.
template <class Exchange>
void finish_refused_combine(Exchange& moe, const typename Exchange::received_type& rows,
                            std::span<bf16> out, deadline until) {
  try {
    moe.combine_recv(rows, out, {.until = until});
  } catch (const error& refused) {
    if (refused.code() != errc::invalid_argument) throw;
  }
}

}  // namespace peerbus::deep_ep::detail
