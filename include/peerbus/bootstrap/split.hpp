// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Collective: makes a subgroup of the ranks that pass the same `color`. Members are numbered in
/// the order of `key`. Ranks with equal keys are numbered in the order of their ranks in `boot`. A
/// rank that needs no subgroup passes a color that no other rank passes.
///
/// The result is a bootstrap with the contract of `bootstrap::subgroup`: a communicator on it works
/// beside those of `boot` and of the other subgroups, and sets up windows of its own.
/// Cost: one `allgather` of 16 bytes per rank, and `bootstrap::subgroup`.
/// Throws: `error` as `bootstrap::allgather` and `bootstrap::subgroup`.
[[nodiscard]] std::unique_ptr<bootstrap> split(
    bootstrap& boot, std::uint64_t color, std::uint64_t key = 0,
    deadline until = deadline::after(std::chrono::seconds{30}));

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/split.ipp>  // IWYU pragma: keep
#endif
