// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/transport/simulated/platform.hpp>

#include "prediction.hpp"

/// The aggregated model: times of a dispatch and a combine without running the library. It computes
/// the messages of sampled ranks and when they leave and arrive. What a sampled rank receives comes
/// from other sampled ranks, which stand for its peers.
namespace ep_predict {

/// Returns how many ranks the model samples by default: as many as 4 million pairs of a rank and a
/// peer allow. That is all ranks up to 2000.
[[nodiscard]] std::size_t default_samples(std::size_t ranks) noexcept;

/// Predicts as `predict` does, from `samples` ranks, or from `default_samples` if that is 0.
/// Statistics are over sampled ranks and one round; `batch.rounds` has no effect.
/// Cost: about a microsecond and 40 bytes for each sampled rank and each of its peers.
/// Throws: std::invalid_argument if the batch is impossible; if ranks begin late, straggle or share
/// a port; or if not all ranks are sampled and not all hold equally many experts.
[[nodiscard]] prediction predict_aggregated(const load& batch, const work& own,
                                            const peerbus::simulated_platform& platform,
                                            std::size_t samples = 0);

/// The signals, one for each peer, that a rank raises and looks at in a call. They are what makes
/// times grow linearly with the number of ranks.
struct flag_words {
  std::size_t words = 0;    ///< that peers raise at a rank
  std::uint64_t bytes = 0;  ///< of these words
  double us = 0;            ///< that a rank takes to raise its own and to look at these
};

/// Returns the flag words of a dispatch. Those of a combine are as many as in a layout with slots.
[[nodiscard]] flag_words dispatch_flags(const load& batch,
                                        const peerbus::simulated_platform& platform);

}  // namespace ep_predict
