// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>

#include "checks/pair_matrix.hpp"

namespace peerbus_doctor {

struct try_options {
  std::size_t rounds = 200;                       ///< round trips of signals per pair
  std::size_t put_bytes = std::size_t{1} << 20U;  ///< a multiple of 8
  std::chrono::milliseconds timeout{30'000};      ///< of set-up, and of each pair
};

/// Collective: measures each ordered pair of ranks over `transport`, one pair at a time. Rank 0
/// says whose turn it is. If a rank dies, the pairs that are left are not tried. If a rank does not
/// answer, the pairs are tried that it does not belong to. Calls `begin` once all ranks have told
/// this one of their windows, before the first pair. Returns: on rank 0 the results, on other ranks
/// an empty matrix. Throws: `error` as the constructors of the transport and of `communicator`; on
/// ranks other than 0 also timed_out and peer_dead.
pair_matrix try_pairs(peerbus::bootstrap& boot, std::string_view transport,
                      const try_options& options, const std::function<void()>& begin);

}  // namespace peerbus_doctor
