// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/two_level_gather.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void all_gather_by_two_levels(call_rounds& all, const request& given,
                                             const reducer&) {
  const near_groups& groups = all.groups();
  const std::size_t block = given.input.size();
  const auto put_to_far = [&](std::size_t done, std::size_t bytes) {
    all.offer(0, done, bytes);
    all.put([&](rank_id peer) noexcept {
      return byte_range{0, groups.is_counterpart(peer) ? bytes : 0};
    });
  };
  const auto gather_slice = [&](std::size_t done, std::size_t bytes) {
    // Far ranks may write the slots again before near ranks have read them, but not the page.
    for (std::size_t group = 0; group < groups.count(); ++group)
      all.copy(all.page() + group * bytes, all.payload(groups.counterpart(group), 0), bytes);
    all.meet([](rank_id) noexcept { return byte_range{}; });
    for (std::size_t place = 0; place < groups.near().size(); ++place)
      for (std::size_t group = 0; group < groups.count(); ++group)
        all.copy(given.output.data() + groups.groups[group][place].index() * block + done,
                 all.payload(groups.near()[place], group * bytes), bytes);
  };
  all.in_slices(block, slice_of(algorithm::two_levels, choice_of::all_gather, all.shape()),
                put_to_far, gather_slice);
}

PEERBUS_INLINE void broadcast_by_two_levels(call_rounds& all, const request& given,
                                            const reducer&) {
  const near_groups& groups = all.groups();
  const auto put_to_relays = [&](std::size_t done, std::size_t bytes) {
    const bool is_root = all.self() == all.root();
    if (is_root) all.offer(0, done, bytes);
    all.put([&](rank_id peer) noexcept {
      return byte_range{0, is_root && groups.is_counterpart(peer) ? bytes : 0};
    });
  };
  const auto pass_on = [&](std::size_t done, std::size_t bytes) {
    const rank_id relay = groups.near_counterpart(all.root());  // The root itself in its group.
    std::byte* const output = given.output.data() + done;
    const auto take_from = [&](rank_id source) {
      if (all.self() != all.root()) all.copy(output, all.payload(source, 0), bytes);
    };
    if (all.self() == relay && relay != all.root())
      all.copy(all.page(), all.payload(all.root(), 0), bytes);
    if (all.self() == relay || relay == all.root()) take_from(all.root());
    all.meet([](rank_id) noexcept { return byte_range{}; });
    if (all.self() != relay && relay != all.root()) take_from(relay);
  };
  all.in_slices(given.output.size(),
                slice_of(algorithm::two_levels, choice_of::broadcast, all.shape()), put_to_relays,
                pass_on);
}

}  // namespace peerbus::collective::detail
