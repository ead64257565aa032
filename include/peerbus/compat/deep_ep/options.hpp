// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep {

/// Options of a `buffer`; equal on all ranks, except for `stream_from`, `between` and `log`.
/// DeepEP's constructor takes sizes in bytes instead. Here the shape of each call states how much
/// memory it needs, and all ranks allocate together when a shape is first used.
struct buffer_options {
  /// The number of tokens of a rank that the first normal `dispatch` of a shape allocates for,
  /// unless that dispatch states a number. A dispatch in which a rank has more tokens allocates
  /// more, on all ranks.
  std::size_t num_max_tokens_per_rank = 4096;
  /// The number of dispatches of one shape that may wait for their combine at the same time.
  /// Results stay valid until the `in_flight`th next dispatch. DeepEP's low-latency mode has two.
  std::size_t in_flight = 2;
  /// If true, low-latency outputs lie at the rank of their expert, in memory for every row that
  /// could arrive, so that callers can write them where a `zero_copy` combine reads them. If false,
  /// they lie at their home ranks, which have room for tokens x top_k rows.
  bool zero_copy = false;
  /// The size of a batch in bytes from which on this rank uses streaming stores
  /// (`moe::exchange_config::stream_from`), also for the copies that a combine makes of outputs in
  /// the caller's memory. Ranks may differ in it.
  std::optional<std::size_t> stream_from{};
  /// The number of bytes of other memory that this rank reads and writes between two calls, a hint
  /// (`moe::exchange_config::between`). Ranks may differ in it.
  std::size_t between = 0;
  /// If true, the low-latency calls accept masks of ranks. They go on without ranks that have died
  /// or left, and mask these ranks. The same on all ranks.
  bool enable_shrink = false;
  /// The treatment of expert ids of `num_experts` and more by `get_dispatch_layout` and the normal
  /// dispatch. DeepEP skips them. Targets other than DeepEP's `Buffer` refuse them in any case.
  moe::ids_outside other_ids = moe::ids_outside::refused;
  /// The platform that the program is meant to run on later. A call that this platform would
  /// refuse, or whose arguments it would ignore, is refused here too (`profile.hpp`).
  profile target = profile::unrestricted;
  target_environment target_is{};         ///< the environment variables of the target
  std::size_t target_ranks_per_node = 0;  ///< 0: the usual number of the target
  /// The use of relays, over transports such as `planes`. With relays, a token crosses once for
  /// each group of near ranks (moe/relay.hpp). Rows of one source rank still lie together, but in
  /// another order of source ranks. Partial sums are rounded to bf16 between groups, as DeepEP
  /// rounds them between nodes. Results are received in the order of their dispatches. Low-latency
  /// calls need groups of equal size, and `num_worst_tokens` is refused.
  moe::relay relay = moe::relay::never;
  /// If true, calls that would let a token's result depend on other ranks or tokens are refused
  /// (`moe::exchange_config::same_bits`). Normal dispatches are refused when they are first called,
  /// because their callers add up the outputs of a rank. The constructor refuses `relay::always`.
  bool same_bits = false;
  /// The log for the choices of the exchange of a shape (moe/log_choices.hpp), which this rank
  /// writes when the shape is first used. Ranks may differ in it.
  stderr_log log{};
};

}  // namespace peerbus::deep_ep
