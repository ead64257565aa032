// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fabric/connect.hpp>
#include <peerbus/transport/fabric/data_path.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/connected_transport.hpp>

namespace peerbus {

/// Connects processes, on one host or many, by a provider of libfabric: over any network by TCP,
/// and over RDMA devices. Needs libfabric (target `peerbus::fabric`). docs/transports.md lists the
/// providers, the guarantees and the tuning.
///
/// Beyond what `transport` says: a provider such as tcp has no thread of its own. It moves data
/// only inside calls of this transport, and while a rank waits in a collective of its bootstrap. So
/// `quiet` and a barrier wait until each peer that was put to makes its next call, also if the peer
/// computes. Once the sockets between two ranks are full, a put and `flush` wait in the same way.
/// With a provider of datagrams (`fabric_options::provider`), each `flush` does, and so does a
/// signal behind puts. Signals alone make none of these calls wait. A put or signal waits while the
/// peer has not taken 32 MiB of earlier puts, or 2048 earlier signals. A call that waits for a peer
/// or for room in its queue gives the connection up after `fabric_options::stall_timeout`, also if
/// the deadline of a barrier is earlier. Threads that send to one peer at once take turns.
/// `fetch_add` is not supported.
///
/// Windows for bulk traffic (`window_shape::traffic`) have a separate endpoint. A put, get or
/// signal of a bulk window returns when it is noted, and is sent in slices while there is no
/// latency traffic to move (docs/transports.md). It waits only for room among the
/// `fabric_options::queue_depth` calls to the peer.
///
/// The data path of peerbus allocates nothing and throws nothing; libfabric's own calls may take
/// locks and make system calls.
///
/// Cost: `make_window` takes one call of `bootstrap::allgather`, and registers the memory. The
/// first window for bulk traffic takes one more call, and connects all ranks as the constructor
/// does.
template <wait_policy Wait = adaptive_wait>
class basic_fabric
    : public detail::registered::connected_transport<detail::ofi::data_path, detail::ofi::connect> {
 public:
  /// The ranks that `run` starts for this transport.
  static constexpr rank_kind ranks_are = rank_kind::processes;

  /// Connects the ranks of `boot`, and keeps a reference to `boot`. Collective.
  /// Cost: three calls of `bootstrap::allgather`, and a connection to each peer.
  /// Throws, on all ranks: `error` unsupported (no such provider), invalid_argument (no such
  /// domain, or an impossible option), mismatch (options or versions that differ), timed_out (a
  /// peer that cannot be reached), out_of_memory, system; or as `bootstrap::allgather`.
  explicit basic_fabric(bootstrap& boot, const fabric_options& chosen = {}, Wait policy = {},
                        memory_hook on_memory = {})
      : basic_fabric::connected_transport{
            boot, chosen, polling_slowly(policy.thresholds(boot.ranks_here(), boot.cores_here())),
            std::move(on_memory)} {}

  /// Lets libfabric look for its providers, which it does once per process. A process that is about
  /// to join a running group calls this first, so that the members do not wait for the search
  /// (bootstrap/tcp_join_running.hpp).
  /// Cost: up to half a second the first time.
  /// Throws: `error` unsupported, invalid_argument, out_of_memory or system, as the constructor.
  static void prepare(const fabric_options& chosen = {}) {
    static_cast<void>(detail::ofi::provider_search{chosen, true}.find());
  }

 private:
  /// Returns thresholds with fewer polls before a wait yields, because a poll of a socket is a
  /// system call, where other transports load a word. A wait also yields more often before it
  /// sleeps, as in `verbs`.
  static constexpr wait_thresholds polling_slowly(wait_thresholds thresholds) noexcept {
    thresholds.tight /= 16;
    thresholds.paused /= 16;
    thresholds.yields *= 8;
    return thresholds;
  }
};

/// The transport over libfabric, with the default wait policy.
using fabric = basic_fabric<>;
static_assert(runnable_transport<fabric> && adopting_transport<fabric> &&
              !direct_transport<fabric>);

}  // namespace peerbus
