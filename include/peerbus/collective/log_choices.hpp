// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/log.hpp>

namespace peerbus::collective {

/// Tells `sink` the algorithms that `made` takes for each operation that has several: from which
/// size on, and why. If the costs that decide say where they were measured, `sink` is told that
/// first. Sizes are bytes of a rank's input, or of its output for `reduce_scatter`. Not collective.
/// Cost: allocates, and may read a file of /proc.
/// Throws: what `sink` throws.
void log_choices(const team& made, log_sink sink);

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/log_choices.ipp>  // IWYU pragma: keep
#endif
