// SPDX-License-Identifier: MIT
#pragma once

#include <csignal>
#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/ranks.hpp"
#include "support/tally.hpp"

namespace test {

/// Kills this rank when `others` ranks have added themselves to `met`: those that are still in the
/// collective call before it would be told of the death there.
template <peerbus::transport Transport>
void die_after(peerbus::communicator<Transport>& comm, const tally& met, std::size_t others) {
  while (met.count() < others) expect_ok(comm.bus().progress(), "progress");
  ::raise(SIGKILL);
}

}  // namespace test
