// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>

namespace peerbus::deep_ep {

/// What a buffer is made for; the same on all ranks. DeepEP's constructor takes bytes instead; here
/// the calls say what they need, and memory is taken when a shape is first used, by all ranks
/// together.
struct buffer_options {
  /// The most tokens that a rank gives to `dispatch` at once.
  std::size_t num_max_tokens_per_rank = 4096;
  /// How many dispatches of one kind may be between dispatch and combine, and how many results stay
  /// valid. DeepEP's low-latency mode has two.
  std::size_t in_flight = 2;
  /// Whether low-latency outputs lie at the expert, in memory for every row that could come, so
  /// that they may be written where `zero_copy` finds them. Otherwise they go to their home ranks,
  /// which have room for tokens x top_k.
  bool zero_copy = false;
  /// Whether ranks may be masked.
  bool enable_shrink = false;
  /// The platform that the program is to run on one day: every call that it would refuse, or whose
  /// arguments it would ignore, is refused here (`profile.hpp`).
  profile target = profile::unrestricted;
  target_environment target_is{};         ///< what is set there
  std::size_t target_ranks_per_node = 0;  ///< 0: the platform's usual
};

}  // namespace peerbus::deep_ep
