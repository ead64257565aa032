// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/connected_transport.hpp>
#include <peerbus/transport/verbs/connect.hpp>
#include <peerbus/transport/verbs/data_path.hpp>
#include <peerbus/transport/verbs/options.hpp>

namespace peerbus {

/// Connects processes, on one host or many, by RDMA: a reliable connection to every peer, RDMA
/// WRITE for puts, READ for gets, and completions at the receiver for signals. Needs libibverbs
/// (target `peerbus::verbs`) and a device. docs/transports.md says what it guarantees and how to
/// tune it.
///
/// The memory of a window is registered, and so committed and locked, when the window is made. A
/// rank's part stays until all ranks have released the window and make a later one.
///
/// Beyond what `transport` says: puts are posted by the next `signal`, `flush`, `quiet` or
/// `progress`, or when there are enough of them. A call that finds a queue full waits for room, and
/// gives the connection up after `verbs_options::stall_timeout`. Threads that use one connection at
/// once take turns. A turn lasts as long as noting or posting a few requests takes, or, if the
/// queue is full, until there is room.
///
/// Windows for bulk traffic (`window_shape::traffic`) have separate queue pairs, with a separate
/// service level and traffic class. A put, get or signal of a bulk window returns when it is noted,
/// and is sent in slices, of which few are in flight at a time (docs/transports.md). It waits only
/// for room among the `verbs_options::queue_depth` calls to the peer.
///
/// Cost: `make_window` takes one call of `bootstrap::allgather`, and registers the memory. The
/// first window for bulk traffic takes one more call, and connects all ranks as the constructor
/// does.
template <wait_policy Wait = adaptive_wait>
class basic_verbs : public detail::registered::connected_transport<detail::rdma::data_path,
                                                                   detail::rdma::connect> {
 public:
  /// The ranks that `run` starts for this transport.
  static constexpr rank_kind ranks_are = rank_kind::processes;

  /// Connects the ranks of `boot`, and keeps a reference to `boot`. Collective.
  /// Cost: three calls of `bootstrap::allgather`, and the connections to all peers.
  /// Throws, on all ranks: `error` unsupported (no device), invalid_argument (no such device, port
  /// or address, or an impossible option), mismatch (options or versions that differ),
  /// out_of_memory (too little may be locked), system; or as `bootstrap::allgather`.
  explicit basic_verbs(bootstrap& boot, const verbs_options& chosen = {}, Wait policy = {},
                       memory_hook on_memory = {})
      : basic_verbs::connected_transport{
            boot, chosen, sleeping_later(policy.thresholds(boot.ranks_here(), boot.cores_here())),
            std::move(on_memory)} {}

 private:
  /// Returns thresholds with more yields before a wait sleeps, because sleeping on a completion
  /// channel and waking takes four system calls, where a futex takes one. Measured with 4 ranks on
  /// 2 cores.
  static constexpr wait_thresholds sleeping_later(wait_thresholds thresholds) noexcept {
    thresholds.yields *= 8;
    return thresholds;
  }
};

/// The transport over RDMA, with the default wait policy.
using verbs = basic_verbs<>;
static_assert(runnable_transport<verbs> && adopting_transport<verbs> && !direct_transport<verbs>);

}  // namespace peerbus
