// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Makes a bootstrap of the ranks in the view of `group`, numbered 0, 1 and so on in their order.
/// They are processes of one host. Collective among them. A communicator over it is one without the
/// ranks that are gone, for new windows and all that is built on windows. Ranks of a later view
/// make another.
/// Cost: two rounds of signals, then that of meeting by `environment_bootstrap`.
/// Throws: `error` as `rank_group::gather_in_view`, and as the constructor of
/// `environment_bootstrap`; unsupported for ranks that are threads or on several hosts.
[[nodiscard]] std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                   std::optional<deadline> until = std::nullopt);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/survivors.ipp>  // IWYU pragma: keep
#endif
