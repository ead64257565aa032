// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/direct.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/memory_hook.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void require_shared_addresses(const bootstrap& boot) {
  if (boot.addresses() != address_space::shared)
    throw error{errc::unsupported,
                "loopback connects threads of one process, but these ranks are processes: start "
                "them with run_threads, or use unified_bus"};
}

PEERBUS_INLINE direct_window make_private_window(bootstrap& boot, window_shape shape,
                                                 const memory_hook& on_memory, deadline until) {
  bootstrap::contribution mine;
  auto objection = objection_to(shape);
  if (!objection) {
    try {
      // One byte at least: an empty mapping does not exist.
      const auto own = std::make_shared<const mapping>(
          mapping::anonymous(direct_window::mapped_bytes(shape) + 1));
      if (on_memory) on_memory({own->data(), own->size()});
      mine.object = own;
    } catch (const error& problem) {
      objection = problem;
    }
  }
  const auto all = gather_or_refuse(boot, "window", std::move(mine), objection, until);
  std::vector<std::shared_ptr<const mapping>> parts;
  parts.reserve(all.size());
  for (const auto& from : all)
    parts.push_back(std::static_pointer_cast<const mapping>(from.object));
  return direct_window{shape, boot.rank(), std::move(parts)};
}

}  // namespace peerbus::detail
