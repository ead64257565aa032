// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus {

/// Starts `ranks` ranks on this host and calls `body` in each with a communicator of all ranks. The
/// ranks are threads, processes or fibres, depending on what `Transport` connects. `body` returns
/// an exit status or nothing. `options` apply to processes only, `comm_options` to each
/// communicator. No deadline ends `body`.
/// Cost: one thread, fork or fibre per rank, and one communicator.
/// Returns: the worst exit status. An exception that `body` throws is printed and counts as 1.
/// Throws: `error` as `run_threads`, `run_local` or `Transport::run_ranks`.
/// Threads: ranks that are threads call the same `body` object at the same time.
template <runnable_transport Transport, class Body>
[[nodiscard]] int run(std::size_t ranks, Body body, run_options options = {},
                      communicator_options comm_options = {}) {
  auto with_communicator = [&body, comm_options](bootstrap& boot) -> int {
    communicator<Transport> comm{Transport{boot}, comm_options};
    if constexpr (std::is_void_v<std::invoke_result_t<Body&, communicator<Transport>&>>) {
      body(comm);
      return 0;
    } else {
      return body(comm);
    }
  };
  if constexpr (Transport::ranks_are == rank_kind::threads)
    return run_threads(ranks, with_communicator);
  else if constexpr (Transport::ranks_are == rank_kind::fibres)
    return Transport::run_ranks(ranks, with_communicator);
  else
    return run_local(ranks, with_communicator, options);
}

/// Refuses a transport that cannot be made from its type alone, such as `any_transport`. The error
/// of the compiler names the remedy.
template <class Transport, class Body>
[[nodiscard]] int run(std::size_t /*ranks*/, Body /*body*/, run_options /*options*/ = {},
                      communicator_options /*comm_options*/ = {}) {
  static_assert(runnable_transport<Transport>,
                "run cannot make this transport from its type alone; use run_local or run_threads "
                "and make the transport in each rank: docs/transports.md, "
                "\"Choosing at run time\"");
  return 1;
}

}  // namespace peerbus
