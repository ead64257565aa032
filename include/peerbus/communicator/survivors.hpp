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
/// They are processes. Collective among them. A communicator over it is one without the ranks that
/// are gone, for new windows and all that is built on windows. Ranks of a later view make another.
/// Ranks that met over TCP as a mesh do so again, at the first one that lives; then the group and
/// its bootstrap, with all that was made over them, serve no more and may be destroyed.
/// Cost: two rounds of signals or messages, then that of meeting by `environment_bootstrap` or
/// `tcp_bootstrap`.
/// Throws: `error` as `rank_group::gather_in_view`, and as the constructor of
/// `environment_bootstrap` or `tcp_bootstrap`; unsupported for ranks that are threads. If another
/// rank dies meanwhile, some ranks may get a bootstrap and others peer_dead. The former get it from
/// the first collective over that bootstrap, and all go on from the same group again.
[[nodiscard]] std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                   std::optional<deadline> until = std::nullopt);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/survivors.ipp>  // IWYU pragma: keep
#endif
