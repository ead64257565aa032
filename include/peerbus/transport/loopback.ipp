// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/process_memory.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/loopback.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void require_shared_addresses(const bootstrap& boot) {
  if (boot.addresses() != address_space::shared)
    throw error{errc::unsupported,
                "loopback connects threads of one process, but these ranks are processes: start "
                "them with run_threads, or use unified_bus"};
}

PEERBUS_INLINE direct_window make_private_window(bootstrap& boot, window_shape shape,
                                                 const memory_hook& on_memory, deadline until) {
  bootstrap::contribution own_part;
  auto objection = objection_to(shape);
  if (!objection)
    objection = objection_of("a window's memory", [&] {
      // One byte at least: an empty mapping does not exist.
      const auto own = std::make_shared<const mapping>(
          mapping::anonymous(direct_window::mapped_bytes(shape) + 1));
      if (on_memory) on_memory({own->data(), own->size()});
      own_part.object = own;
    });
  const auto all = gather_or_refuse(boot, "window", std::move(own_part), objection, until);
  std::vector<window_memory> parts;
  parts.reserve(all.size());
  for (const auto& from : all) {
    // Ranks that are gone have none: in their place lies memory that nobody shares.
    auto memory = from.object ? std::static_pointer_cast<const mapping>(from.object)
                              : std::make_shared<const mapping>(
                                    mapping::anonymous(direct_window::mapped_bytes(shape) + 1));
    std::byte* const start = memory->data();
    parts.push_back(direct_window::part_at(start, std::move(memory), shape));
  }
  return direct_window{shape, boot.rank(), std::move(parts),
                       std::vector(all.size(), process_memory::own())};
}

PEERBUS_INLINE direct_window make_adopted_window(bootstrap& boot, window_memory memory,
                                                 deadline until) {
  const window_shape shape{memory.data.size(), memory.signals.size()};
  bootstrap::contribution own_part;
  auto objection = objection_to(memory);
  if (!objection)
    objection = objection_of("a window's list of parts", [&] {
      own_part.object = std::make_shared<const window_memory>(std::move(memory));
    });
  const auto all = gather_or_refuse(boot, "window", std::move(own_part), objection, until);
  std::vector<window_memory> parts;
  parts.reserve(all.size());
  for (const auto& from : all) {
    if (!from.object)
      throw agreed_error{errc::unsupported,
                         "window: memory of the ranks' own in a group that has lost ranks"};
    parts.push_back(*std::static_pointer_cast<const window_memory>(from.object));
  }
  for (const window_memory& part : parts)
    if (part.data.size() != parts[0].data.size() || part.signals.size() != parts[0].signals.size())
      throw agreed_error{
          errc::mismatch,
          concat("window: ", rank_id{0}, " lends ", parts[0].data.size(), " bytes and ",
                 parts[0].signals.size(), " signals, but another rank ", part.data.size(), " and ",
                 part.signals.size())};
  return direct_window{shape, boot.rank(), std::move(parts),
                       std::vector(all.size(), process_memory::own())};
}

}  // namespace peerbus::detail
