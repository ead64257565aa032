// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE deadline lane_deadline(team& team, const call_options& options) {
  return options.until ? *options.until : team_access::communicator(team).default_deadline();
}

PEERBUS_ERROR_PATH void fail_lanes(team& team, std::string_view operation, errc code,
                                   const std::string& text) {
  team_access::communicator(team).fail(code, peerbus::detail::concat(operation, ": ", text));
}

PEERBUS_INLINE void reduce_by_lanes(const call_rounds& in, const request& given,
                                    const reducer& reduce, std::byte* out,
                                    std::span<const std::byte* const> sources,
                                    std::size_t bytes) noexcept {
  const std::size_t elements = bytes / given.element.bytes;
  if (in.pool().lanes() == 1 || bytes < peerbus::detail::lane_pool::least_shared_bytes)
    return reduce(out, sources, elements);
  reduce(out, sources, 0);  // A reduction may set what all lanes read.
  // A multiple of the elements that a reduction takes together.
  constexpr std::size_t granule = 128;
  in.pool().share(elements, granule, [&](std::size_t, std::size_t begin, std::size_t end) {
    reduce.part(out, sources, begin, end - begin);
  });
}

}  // namespace peerbus::collective::detail
