// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>

#include "arrival.hpp"

namespace ep_predict {

/// A batch, the same size on all ranks.
struct load {
  std::size_t ranks = 8;
  std::size_t tokens = 128;
  std::size_t hidden = 7168;
  std::size_t top_k = 8;
  std::size_t experts = 256;
  std::string layout = "expert_slots";
  std::string codec = "fp8";
  std::string relay = "never";  ///< whether a token crosses once per group of near ranks
  std::size_t in_flight = 1;    ///< batches that a rank of `layer_us_of` has under way
  std::size_t rounds = 3;       ///< that are measured, after one that is not
  std::uint64_t seed = 1;       ///< of the routing, which is even, and of `arrival`
  arrival_spread arrival;       ///< when ranks begin
};

///@{
/// Returns the layouts, codecs and choices of relay that a `load` may name: those of ep_bench.
[[nodiscard]] std::vector<std::string> layouts();
[[nodiscard]] std::vector<std::string> codecs();
[[nodiscard]] std::vector<std::string> relays();
///@}

/// Returns the configuration of the exchange of `batch`.
[[nodiscard]] peerbus::moe::exchange_config config_of(const load& batch);

/// Returns the bytes of a row of `batch` and of its scales.
[[nodiscard]] peerbus::moe::row_format format_of(const load& batch);

/// Returns why `batch` is impossible, as an exchange would refuse it, or an empty text. More ranks
/// than an exchange can have are not refused.
[[nodiscard]] std::string complaint_about(const load& batch);

/// Returns the experts of each token of `rank`: `top_k` different ones, drawn by `seed`.
[[nodiscard]] std::vector<std::int32_t> even_routing(const load& batch, std::size_t rank);

}  // namespace ep_predict
