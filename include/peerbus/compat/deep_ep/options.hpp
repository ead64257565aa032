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
  /// The tokens of a rank for which the first normal `dispatch` of a shape takes memory. A dispatch
  /// in which some rank has more takes more, on all ranks.
  std::size_t num_max_tokens_per_rank = 4096;
  /// The number of dispatches of one shape that may wait for their combine at the same time.
  /// Results stay valid for as many dispatches. DeepEP's low-latency mode has two.
  std::size_t in_flight = 2;
  /// If true, low-latency outputs lie at the rank of their expert, in memory for every row that
  /// could arrive, so that callers can write them where a `zero_copy` combine reads them. If false,
  /// they lie at their home ranks, which have room for tokens x top_k rows.
  bool zero_copy = false;
  /// The bytes of a batch from which this rank uses streaming stores
  /// (`moe::exchange_config::stream_from`), also for the copies that a combine makes of outputs in
  /// the caller's memory. Ranks may differ in it.
  std::optional<std::size_t> stream_from{};
  /// The bytes of other memory that this rank reads and writes between two calls, a hint
  /// (`moe::exchange_config::between`). Ranks may differ in it.
  std::size_t between = 0;
  /// If true, the low-latency calls accept masks of ranks, and go on without ranks that have died
  /// or left, which they mask. The same on all ranks.
  bool enable_shrink = false;
  /// The treatment of expert ids of `num_experts` and more by `get_dispatch_layout` and the normal
  /// dispatch. DeepEP skips them. Targets other than DeepEP's `Buffer` refuse them in any case.
  moe::ids_outside other_ids = moe::ids_outside::refused;
  /// The platform that the program is meant to run on later. A call that this platform would
  /// refuse, or whose arguments it would ignore, is refused here too (`profile.hpp`).
  profile target = profile::unrestricted;
  target_environment target_is{};         ///< the environment variables of the target
  std::size_t target_ranks_per_node = 0;  ///< 0: the usual number of the target
  /// Whether a token crosses once for each group of near ranks (moe/relay.hpp), over transports
  /// such as `planes`. Rows of one source rank lie together as ever, in another order of source
  /// ranks. Partial sums are rounded to bf16 between groups, as DeepEP's between nodes are. Results
  /// are received in the order of their dispatches. Low-latency calls need groups of equal size,
  /// and `num_worst_tokens` is refused.
  moe::relay relay = moe::relay::never;
  /// If true, whatever would let a token's result depend on other ranks or tokens is refused
  /// (`moe::exchange_config::same_bits`): normal dispatches, whose callers add up the outputs of a
  /// rank, when they are first called, and `relay::always` by the constructor.
  bool same_bits = false;
  /// Where this rank writes what the exchange of a shape has chosen (moe/log_choices.hpp), when the
  /// shape is first used. Ranks may differ in it.
  stderr_log log{};
};

}  // namespace peerbus::deep_ep
