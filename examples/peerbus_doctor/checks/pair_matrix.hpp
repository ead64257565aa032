// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace peerbus_doctor {

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

}  // namespace peerbus_doctor
