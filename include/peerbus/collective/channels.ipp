// SPDX-License-Identifier: MIT
#pragma once

#include <array>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/detail/enter_view.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective {

PEERBUS_INLINE channels::channels(rank_group& group, window_source make_window,
                                  const channel_options& options, const channel_map& map,
                                  deadline until)
    : memory_{(agree_on(group, options, map, until),
               detail::make_channel_memory(group, make_window, map, until))},
      options_{options},
      view_{group.view().number()} {}

PEERBUS_INLINE void channels::resume(std::optional<deadline> until) {
  rank_group& group = memory_->group();
  std::uint64_t latest = memory_->latest();
  const std::uint64_t view = detail::enter_view(group, "channels", view_, {&latest, 1}, until);
  if (const errc code = memory_->go_on(latest); code != errc::ok)
    group.fail(code, "resume of channels: a signal could not be raised");
  ++calls_;  // No handle has this number.
  is_pending_ = false;
  view_ = view;
}

PEERBUS_INLINE void channels::agree_on(rank_group& group, const channel_options& options,
                                       const channel_map& map, deadline until) {
  std::optional<error> objection;
  if (map.slot_bytes < least_slot_bytes)
    objection = error{
        errc::invalid_argument,
        peerbus::detail::concat("channel_options::scratch_bytes is ", options.scratch_bytes,
                                ", which gives each of ", map.ranks, " ranks slices of ",
                                map.slot_bytes, " bytes, expected at least ", least_slot_bytes)};
  const std::array values{declared{"scratch_bytes", options.scratch_bytes},
                          declared{"slot_bytes", map.slot_bytes},
                          declared{"private_bytes", options.private_bytes}};
  group.agree("collective::channels", values, until, objection);
}

}  // namespace peerbus::collective
