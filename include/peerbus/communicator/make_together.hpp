// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <utility>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// The former name of `rank_group::on_all_ranks`, to be removed in the next minor version.
template <class Make>
[[deprecated("use rank_group::on_all_ranks")]] [[nodiscard]] auto make_together(
    rank_group& group, std::string_view what, deadline until, Make&& make) {
  return group.on_all_ranks(what, until, std::forward<Make>(make));
}

}  // namespace peerbus
