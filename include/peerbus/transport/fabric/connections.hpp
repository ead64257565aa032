// SPDX-License-Identifier: MIT
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/fabric/resources.hpp>

namespace peerbus::detail::ofi {

/// The connections to all peers, for a provider that makes connections. One rank of each pair
/// calls, the other accepts. Everything that arrives over a connection arrives whole and in order.
/// A broken connection stays broken.
///
/// Threads: one at a time, unless a call says otherwise.
class connections {
 public:
  /// Listens, so that peers may call from now on. `links` has the link to each rank.
  /// Throws: `error` out_of_memory, system.
  connections(const resources& own, rank_id self, std::span<link> links)
      : own_{&own}, self_{self}, links_{links}, ends_{std::make_unique<end[]>(links.size())} {
    const auto random = draw_bytes<sizeof key_>();
    std::memcpy(&key_, random.data(), sizeof key_);
    events_ = open_queue();
    calls_ = open_queue();
    listen();
  }
  connections(const connections&) = delete;
  connections& operator=(const connections&) = delete;
  ~connections() { close(); }

  /// Stops listening. Refuses calls that have arrived and were not taken.
  void stop_listening() noexcept {
    // Reads what has come, because the provider keeps the sockets of calls that nobody has taken;
    // and nothing after the listener is closed, of which the provider's calls keep the address.
    if (calls_ && calls_.get_deleter().home.is_here()) {
      event next;
      while (read(*calls_, next) == FI_CONNREQ) {
        const provider_info info{next.info()};
        refuse(info->handle);
      }
    }
    listener_.reset();
    calls_.reset();
  }
  /// Closes all connections. The provider then gives up all requests and their memory.
  void close() noexcept {
    stop_listening();
    ends_.reset();
    events_.reset();
  }

  /// Returns this rank's key and address, which a peer needs to call.
  /// Throws: `error` system.
  [[nodiscard]] std::vector<std::byte> address() const {
    std::vector<std::byte> found(sizeof key_ + 256);
    std::size_t length = found.size() - sizeof key_;
    std::memcpy(found.data(), &key_, sizeof key_);
    ofi::require(fi_getname(&listener_->fid, found.data() + sizeof key_, &length),
                 "asking for the address");
    found.resize(sizeof key_ + length);
    return found;
  }
  /// Returns `address`, as `address()` makes it, as text.
  [[nodiscard]] static std::string describe(std::span<const std::byte> address) {
    const auto socket = address.subspan(sizeof key_);
    std::uint16_t port = 0;  // At the same place in IPv4's and IPv6's.
    std::memcpy(&port, socket.data() + offsetof(sockaddr_in, sin_port), sizeof port);
    return concat(describe_host(socket), " port ", ntohs(port));
  }

  /// Calls `peer`, which has made `address` by `address()`. Only one rank of a pair calls. Another
  /// thread may `take` meanwhile.
  /// Throws: `error` out_of_memory, system.
  void call(rank_id peer, std::span<const std::byte> address) {
    caller mine{0, self_.index()};
    std::memcpy(&mine.key, address.data(), sizeof mine.key);
    int failed = open_end(own_->info(), peer);
    if (failed == 0)
      failed = fi_connect(ends_[peer.index()].endpoint.get(), address.data() + sizeof mine.key,
                          &mine, sizeof mine);
    ofi::require(failed, concat("calling ", peer, " at ", describe(address)));
  }
  /// Returns whether the connection to `peer` is open.
  /// order: acquire, paired with the release of `take`, which another thread may have called.
  [[nodiscard]] bool is_open(rank_id peer) const noexcept {
    return ends_[peer.index()].is_open.load(std::memory_order_acquire);
  }

  /// Accepts calls, and notes which connections have opened or ended.
  /// Returns: whether a connection has ended or cannot be made; `take_ended` says which. Everything
  /// that arrived over it is then in the completion queue.
  [[nodiscard]] bool take() noexcept {
    bool any_ended = false;
    const auto note_ended = [&](rank_id peer, int reason) noexcept {
      ends_[peer.index()].reason = reason;
      any_ended = true;
    };
    event next;
    while (calls_ && read(*calls_, next) == FI_CONNREQ) {
      const provider_info info{next.info()};
      const auto [key, rank] = next.data();
      if (next.length != next.bytes.size() || key != key_ || rank >= links_.size() ||
          rank == self_.index() || ends_[rank].endpoint)
        refuse(info->handle);
      else if (const int failed = accept(*info, rank_id{rank}); failed != 0)
        note_ended(rank_id{rank}, -failed);
    }
    for (;;) {
      const std::uint32_t what = read(*events_, next);
      if (what == no_event) return any_ended;
      if (what == FI_CONNECTED)
        ends_[next.peer().index()].is_open.store(true, std::memory_order_release);
      else
        note_ended(next.peer(), next.reason == 0 ? FI_ECONNRESET : next.reason);
    }
  }
  /// Calls `ended(link, reason)` for the connections that have ended since the last call, with a
  /// libfabric error number above 0.
  template <class Ended>
  void take_ended(Ended&& ended) noexcept {
    for (link& peer_link : links_)
      if (const int reason = std::exchange(ends_[peer_link.peer().index()].reason, 0); reason != 0)
        ended(peer_link, reason);
  }

  /// Sleeps until there is something to take, if the provider can tell, or until `until`. Call it
  /// only while ranks connect.
  void sleep(deadline until) const noexcept {
    fid* waited[]{&events_->fid, &calls_->fid};
    if (fi_trywait(&own_->fabric(), waited, 2) == 0)
      wait_readable(descriptor(*events_), descriptor(*calls_), until);
  }

 private:
  /// The data of a call: the key of the called rank, and the calling rank. A caller without the key
  /// belongs to another job, or to none.
  struct caller {
    std::uint64_t key;
    std::uint64_t rank;
  };
  struct end {
    handle<fid_ep> endpoint;
    std::atomic<bool> is_open{false};
    int reason = 0;  ///< reason why the connection has ended, until it is taken
  };
  static constexpr std::uint32_t no_event = 0;  ///< the value of FI_NOTIFY, which no call requests
  /// An event of the provider: its `fi_eq_cm_entry`, followed by the data of a call.
  struct event {
    std::array<std::byte, sizeof(fi_eq_cm_entry) + sizeof(caller)> bytes;
    std::size_t length = 0;
    fid* object = nullptr;
    int reason = 0;  ///< reason of a failure

    /// Returns the peer of the connection.
    [[nodiscard]] rank_id peer() const noexcept {
      return static_cast<const link*>(object->context)->peer();
    }
    [[nodiscard]] fi_info* info() const noexcept { return entry().info; }
    [[nodiscard]] caller data() const noexcept {
      caller found;
      std::memcpy(&found, bytes.data() + sizeof(fi_eq_cm_entry), sizeof found);
      return found;
    }
    [[nodiscard]] fi_eq_cm_entry entry() const noexcept {
      fi_eq_cm_entry found;
      std::memcpy(&found, bytes.data(), sizeof found);
      return found;
    }
  };
  /// Returns the next event of a queue, FI_SHUTDOWN for a failure, or `no_event`.
  [[nodiscard]] static std::uint32_t read(fid_eq& queue, event& next) noexcept {
    std::uint32_t what = 0;
    // libfabric 1.17 looks at errno when a caller has closed its socket. Left from something else,
    // that may say "later", for ever.
    errno = 0;
    const auto length = fi_eq_read(&queue, &what, next.bytes.data(), next.bytes.size(), 0);
    next.reason = 0;
    if (length >= 0) {
      next.length = static_cast<std::size_t>(length);
      next.object = next.entry().fid;
      return what;
    }
    fi_eq_err_entry problem{};
    if (length != -FI_EAVAIL || fi_eq_readerr(&queue, &problem, 0) < 0) return no_event;
    next.object = problem.fid;
    next.reason = problem.err == 0 ? FI_EOTHER : problem.err;
    return FI_SHUTDOWN;
  }

  [[nodiscard]] handle<fid_eq> open_queue() const {
    return open<fid_eq>("an event queue", [&](fid_eq** made) {
      fi_eq_attr wanted{};
      wanted.wait_obj = FI_WAIT_FD;
      return fi_eq_open(&own_->fabric(), &wanted, made, nullptr);
    });
  }
  [[nodiscard]] static int descriptor(fid_eq& queue) noexcept {
    int found = -1;
    return fi_control(&queue.fid, FI_GETWAIT, &found) == 0 ? found : -1;
  }

  /// Opens the listener for calls.
  /// Throws: `error` out_of_memory, system.
  void listen() {
    // Two ranks may bind a port of a range at once; the second then may not listen.
    for (int tries = 16;; --tries) {
      listener_ = open<fid_pep>(concat("a listener", describe_ports()), [&](fid_pep** made) {
        return fi_passive_ep(&own_->fabric(), &own_->info(), made, nullptr);
      });
      ofi::require(fi_pep_bind(listener_.get(), &calls_->fid, 0), "binding an event queue");
      const int failed = fi_listen(listener_.get());
      if (failed == -FI_EADDRINUSE && tries > 0) continue;
      ofi::require(failed, concat("listening", describe_ports()));
      return;
    }
  }

  /// Opens this rank's end of the connection to `peer`.
  /// Returns: 0, or libfabric's error.
  [[nodiscard]] int open_end(fi_info& info, rank_id peer) noexcept {
    link& to_peer = links_[peer.index()];
    fid_ep* made = nullptr;
    if (const int failed = fi_endpoint(&own_->domain(), &info, &made, &to_peer); failed != 0)
      return failed;
    handle<fid_ep> opened{made};
    int failed = fi_ep_bind(made, &own_->receiver().fid, 0);
    if (failed == 0) failed = fi_ep_bind(made, &own_->queue().fid, FI_TRANSMIT | FI_RECV);
    if (failed == 0) failed = fi_ep_bind(made, &events_->fid, 0);
    if (failed == 0) failed = fi_enable(made);
    if (failed != 0) return failed;
    to_peer.set_endpoint(*made, FI_ADDR_UNSPEC);
    ends_[peer.index()].endpoint = std::move(opened);
    return 0;
  }
  /// Accepts the call of a peer, or refuses it after an error.
  /// Returns: 0, or libfabric's error.
  [[nodiscard]] int accept(fi_info& info, rank_id peer) noexcept {
    int failed = open_end(info, peer);
    if (failed == 0) failed = fi_accept(ends_[peer.index()].endpoint.get(), nullptr, 0);
    if (failed != 0) refuse(info.handle);
    return failed;
  }
  void refuse(fid* call) noexcept {
    static_cast<void>(fi_reject(listener_.get(), call, nullptr, 0));
  }

  const resources* own_;
  rank_id self_;
  std::span<link> links_;
  std::uint64_t key_ = 0;
  // In the order in which they are made.
  handle<fid_eq> events_;  ///< events of connections
  handle<fid_eq> calls_;   ///< events of the listener
  handle<fid_pep> listener_;
  std::unique_ptr<end[]> ends_;  ///< ends of connections, by peer
};

}  // namespace peerbus::detail::ofi
