// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>

namespace peerbus::deep_ep::detail {

/// The routing of one expanded dispatch, which its handle keeps: the experts that each token goes
/// to, and the rows that this rank received.
struct expanded_routing {
  std::weak_ptr<const char> buffer;  ///< identifies the buffer
  /// The number of the collective call that made the routing. The same on all ranks.
  std::uint64_t number = 0;
  std::size_t tokens = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;  ///< slots per token
  std::size_t alignment = 1;
  std::size_t bound = 0;          ///< num_max_tokens_per_rank of the dispatch that made it, or 0
  bool knows_counts = true;       ///< do_cpu_sync of the dispatch that made it
  std::vector<std::int64_t> ids;  ///< [tokens, top_k]

  /// B: the bound, or the number of tokens of a rank that the dispatch had memory for. The same on
  /// all ranks. Before the dispatch, the number that this rank needs.
  std::size_t most_tokens = 0;
  /// The number of rows and gaps that this rank receives. Without `knows_counts`, the largest
  /// number that it may receive.
  std::size_t rows = 0;
  /// The latest dispatch with this routing.
  pending_operation latest;
};

}  // namespace peerbus::deep_ep::detail
