// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>

namespace peerbus_doctor {

struct try_options {
  std::size_t rounds = 200;                       ///< round trips of signals per pair
  std::size_t put_bytes = std::size_t{1} << 20U;  ///< a multiple of 8
  std::chrono::milliseconds timeout{30'000};      ///< of set-up, and of each pair
};

/// What one rank has measured to another.
struct pair_result {
  bool is_tried = false;
  std::string error;                ///< empty if every signal and put arrived
  double latency_us = 0;            ///< half of the median round trip of a signal
  double put_bytes_per_second = 0;  ///< from the call until the receiver's signal is back
};

/// The results of all ordered pairs of ranks.
struct pair_matrix {
  std::size_t ranks = 0;
  std::vector<pair_result> results{};
  std::string ended_by;          ///< who was gone when the tries ended early, such as "rank 3 died"
  bool has_silent_rank = false;  ///< a rank lives, but has not answered

  pair_matrix() = default;
  explicit pair_matrix(std::size_t count) : ranks{count}, results(count * count) {}

  [[nodiscard]] pair_result& at(std::size_t from, std::size_t to) {
    return results[from * ranks + to];
  }
  [[nodiscard]] const pair_result& at(std::size_t from, std::size_t to) const {
    return results[from * ranks + to];
  }
};

/// Collective: measures each ordered pair of ranks over `transport`, one pair at a time. Rank 0
/// says whose turn it is. If a rank dies, the pairs that are left are not tried. If a rank does not
/// answer, the pairs are tried that it does not belong to. Returns: on rank 0 the results, on other
/// ranks an empty matrix. Throws: `error` as the constructors of the transport and of
/// `communicator`; on ranks other than 0 also timed_out and peer_dead.
pair_matrix try_pairs(peerbus::bootstrap& boot, std::string_view transport,
                      const try_options& options);

}  // namespace peerbus_doctor
