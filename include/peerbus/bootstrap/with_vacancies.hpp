// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// Makes a bootstrap of a group with `capacity` slots, some of which the ranks of `met` fill: rank
/// i of `met` has slot `ranks_of_met[i]`. Processes fill the others later by `admission`
/// (communicator/admission.hpp), so that a group can start with fewer ranks than it may have.
/// Collective over `met`, whose ranks must be processes of one host or a mesh over TCP.
///
/// On one host the result has `capacity` ranks, each with the number of its slot. The ranks of
/// empty slots count as gone, and a communicator on the result begins in a view without them. In a
/// mesh the result has only the ranks of `met`, numbered in the order of their slots
/// (`bootstrap::slot`).
/// Cost: three allgathers of `met`. In a mesh one allgather, and another meeting if the order
/// changes.
/// Throws, on all ranks: `error` invalid_argument (the wrong number of slots, a slot that occurs
/// twice or is not below `capacity`); mismatch (slots that differ between ranks); unsupported
/// (ranks that are threads, or on several hosts and no mesh); as `bootstrap::allgather`.
[[nodiscard]] std::unique_ptr<bootstrap> with_vacancies(
    std::unique_ptr<bootstrap> met, const std::vector<rank_id>& ranks_of_met, std::size_t capacity,
    deadline until = deadline::after(std::chrono::seconds{30}));

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/with_vacancies.ipp>  // IWYU pragma: keep
#endif
