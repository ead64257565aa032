// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

/// Completes the combine of `rows`, which this rank has sent with `refuse`: waits until all ranks
/// have sent it too. `tokens` is the number of tokens of this rank's dispatch.
template <class Exchange>
void finish_refused_combine(Exchange& moe, const typename Exchange::received_type& rows,
                            std::size_t tokens, deadline until) {
  std::vector<bf16> unused(tokens * moe.config().hidden);  // Checked for its size, and not written.
  try {
    moe.combine_recv(rows, unused, {.until = until});
  } catch (const error& refused) {
    if (refused.code() != errc::invalid_argument) throw;
  }
}

}  // namespace peerbus::deep_ep::detail
