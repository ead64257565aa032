// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>

#include "ep_bench/rank_impl.hpp"
#include "support/join_hosts.hpp"

namespace ep_bench {

using bench::hosts_over;

/// One layout, in one codec: rows travel by either plane as they do in the others.
template <class Far>
outcome measure_layout(peerbus::communicator<hosts_over<Far>>& comm, const options& chosen,
                       lane_pool& crew, std::size_t cores) {
  return measure<hosts_over<Far>, peerbus::moe::compact>(comm, chosen, crew, cores);
}

}  // namespace ep_bench
