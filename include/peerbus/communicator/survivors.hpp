// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/verdict.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Makes a bootstrap of the ranks in the view of `group`, renumbered from 0 in their order. The
/// ranks must be processes. Collective among them. A communicator over it excludes the ranks that
/// are gone, also in new windows. Call it again in a later view. Ranks keep their slots
/// (`bootstrap::slot`), so that processes may join the new group. Ranks that met over TCP as a mesh
/// meet again at the first living rank. If another rank dies meanwhile, some ranks may get a
/// bootstrap, and others peer_dead.
/// Cost: two rounds of signals or messages, then the cost of meeting by `environment_bootstrap` or
/// `tcp_bootstrap`.
/// Throws: `error` as `rank_group::gather_in_view`, and as the constructor of
/// `environment_bootstrap` or `tcp_bootstrap`; unsupported for ranks that are threads.
[[nodiscard]] std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                   std::optional<deadline> until = std::nullopt);

/// Makes an object that owns a bootstrap of the ranks in the view of `group`, also on several
/// hosts. Collective among them. `make(boot)` gets the bootstrap of `survivors(group)`, as a
/// `std::unique_ptr`, and returns the object; it is collective too. Either all living ranks get the
/// object, or all throw and `group` is unchanged: they call this again after they have continued
/// without the rank that ended. A rank with the object may destroy `group` and its bootstrap.
///
///     now->comm.continue_without_the_dead();
///     now = peerbus::survivors(now->comm, [](std::unique_ptr<peerbus::bootstrap> boot) {
///       return std::make_unique<serving>(std::move(boot));
///     });
///
/// Cost: the costs of `survivors(group)` and of `make`, and one `gather_in_view`.
/// Throws: `error` peer_dead if another rank has ended; on all ranks, the error of a rank that
/// could not make its object; as `rank_group::gather_in_view`.
template <class Make>
  requires std::invocable<Make&, std::unique_ptr<bootstrap>>
[[nodiscard]] auto survivors(rank_group& group, Make&& make,
                             std::optional<deadline> until = std::nullopt) {
  const deadline limit = until.value_or(group.default_deadline());
  std::optional<std::invoke_result_t<Make&, std::unique_ptr<bootstrap>>> made;
  const auto objection =
      objection_of("what the survivors need", [&] { made.emplace(make(survivors(group, limit))); });
  if (const auto found =
          detail::gather_objections(group, "survivors: what all have made", objection, limit))
    throw agreed_error{*found};
  return std::move(*made);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/survivors.ipp>  // IWYU pragma: keep
#endif
