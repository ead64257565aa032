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

/// Makes a bootstrap of `capacity` ranks, of which those are there that `met` connects: rank i of
/// `met` is rank `ranks_of_met[i]` of the result. The other ranks count as gone. A communicator on
/// the result begins in a view without them, and takes them in later by `admission`
/// (communicator/admission.hpp), so that a group starts with fewer ranks than it may have.
/// Collective over `met`, whose ranks are processes of one host.
/// Cost: three allgathers of `met`.
/// Throws, on all ranks: `error` invalid_argument (not as many numbers as `met` has ranks, one
/// twice or beyond `capacity`); mismatch (numbers that differ between ranks); unsupported (ranks
/// that are threads or on several hosts); as `bootstrap::allgather`.
[[nodiscard]] std::unique_ptr<bootstrap> with_vacancies(
    std::unique_ptr<bootstrap> met, const std::vector<rank_id>& ranks_of_met, std::size_t capacity,
    deadline until = deadline::after(std::chrono::seconds{30}));

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/with_vacancies.ipp>  // IWYU pragma: keep
#endif
