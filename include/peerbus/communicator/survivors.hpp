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

/// Makes a bootstrap of the ranks in the view of `group`, numbered 0, 1 and so on in their order.
/// They are processes. Collective among them. A communicator over it is one without the ranks that
/// are gone, for new windows and all that is built on windows. Ranks of a later view make another.
/// Ranks keep their slots (`bootstrap::slot`), so that processes may join the group that it is of.
/// Ranks that met over TCP as a mesh do so again, at the first one that lives. If another rank dies
/// meanwhile, some ranks may get a bootstrap, and others peer_dead.
/// Cost: two rounds of signals or messages, then that of meeting by `environment_bootstrap` or
/// `tcp_bootstrap`.
/// Throws: `error` as `rank_group::gather_in_view`, and as the constructor of
/// `environment_bootstrap` or `tcp_bootstrap`; unsupported for ranks that are threads.
[[nodiscard]] std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                   std::optional<deadline> until = std::nullopt);

/// Makes what the ranks in the view of `group` go on with in new memory, also on several hosts.
/// Collective among them. `make(boot)` gets the bootstrap of `survivors(group)`, as a
/// `std::unique_ptr`, and returns an object that owns it. It is collective among these ranks. All
/// of them that live get the object, or all throw: then all have `group` as it was, and do the same
/// again once they have continued without the rank that ended meanwhile. Whoever has the object
/// needs `group` no more, and may destroy it with its bootstrap.
///
///     now->comm.continue_without_the_dead();
///     now = peerbus::survivors(now->comm, [](std::unique_ptr<peerbus::bootstrap> boot) {
///       return std::make_unique<serving>(std::move(boot));
///     });
///
/// Cost: that of `survivors(group)` and of `make`, and one `gather_in_view`.
/// Throws: `error` peer_dead if another rank has ended; that of a rank which could not make its
/// object, on all of them; as `rank_group::gather_in_view`.
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
