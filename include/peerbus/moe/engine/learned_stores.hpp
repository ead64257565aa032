// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/control/store_trials.hpp>

/// @file
/// The times of both kinds of stores as costs. For each size of batch, of B to 2 B - 1 bytes of
/// rows with B a power of two, a table has both or none of
///
///     local.moe.stores.B.plain_byte_ns
///     local.moe.stores.B.streaming_byte_ns
///
/// in nanoseconds for each byte of the rows, so that exchanges with other rows can use them.
namespace peerbus::moe::detail {

/// Returns the error for times of stores in `costs` that are 0 or without their pair, if any.
std::optional<error> objection_to_stores(const cost_table& costs);
/// Starts `trials` from the times in `costs`, which `objection_to_stores` accepts. The rows of a
/// token have `token_bytes` bytes.
void start_from(store_trials& trials, const cost_table& costs, std::size_t token_bytes);
/// Returns the times that `trials` has measured, with the name of this machine.
[[nodiscard]] cost_table costs_of(const store_trials& trials, std::size_t token_bytes);
/// Returns the choice for batches whose rows have `bytes` bytes, with the times of such a batch.
[[nodiscard]] store_choice choice_of(const store_trials& trials, std::size_t token_bytes,
                                     std::size_t bytes) noexcept;
/// Returns the choice for each size that `trials` knows.
[[nodiscard]] std::vector<size_stores> choices_of(const store_trials& trials,
                                                  std::size_t token_bytes);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/learned_stores.ipp>  // IWYU pragma: keep
#endif
