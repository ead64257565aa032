// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

PEERBUS_INLINE std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                    std::optional<deadline> until) {
  if (group.are_threads())
    throw error{errc::unsupported, "survivors: the ranks are threads, expected processes"};
  const deadline limit = until.value_or(group.default_deadline());
  return bootstrap_by_all_gather(
      group.view().place_of(group.rank()), group.view().members().size(),
      [&](std::span<const std::byte> own) { return group.gather_in_view("survivors", own, limit); },
      [](const tcp_settings&, deadline) -> std::unique_ptr<bootstrap> {
        throw error{errc::unsupported, "survivors: the ranks are on several hosts, expected one"};
      },
      limit);
}

}  // namespace peerbus
