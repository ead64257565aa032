// SPDX-License-Identifier: MIT
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/fabric/resources.hpp>

namespace peerbus::detail::ofi {

/// A connection to each peer, for a provider that makes them: one rank of each pair calls, the
/// other accepts. What comes over a connection comes whole and in order; one that breaks stays
/// broken, and both ends learn it.
///
/// Threads: one at a time.
class connections {
 public:
  /// Peers may call from then on. `links`: by rank.
  /// Throws: `error` out_of_memory, system.
  connections(const resources& own, rank_id self, std::span<link> links)
      : own_{&own}, self_{self}, links_{links}, ends_{std::make_unique<end[]>(links.size())} {
    const auto random = draw_bytes<sizeof key_>();
    std::memcpy(&key_, random.data(), sizeof key_);
    events_ = open<fid_eq>("an event queue", [&](fid_eq** made) {
      fi_eq_attr wanted{};
      wanted.wait_obj = FI_WAIT_FD;
      return fi_eq_open(&own.fabric(), &wanted, made, nullptr);
    });
    if (fi_control(&events_->fid, FI_GETWAIT, &wake_descriptor_) != 0) wake_descriptor_ = -1;
    // The address is bound here or when it listens, as the provider likes.
    listener_ = open<fid_pep>(concat("a listener", describe_ports()), [&](fid_pep** made) {
      return fi_passive_ep(&own.fabric(), &own.info(), made, nullptr);
    });
    ofi::require(fi_pep_bind(listener_.get(), &events_->fid, 0), "binding an event queue");
    ofi::require(fi_listen(listener_.get()), concat("listening", describe_ports()));
  }
  connections(const connections&) = delete;
  connections& operator=(const connections&) = delete;
  ~connections() { close(); }

  /// Closes all connections: the provider gives up all requests and their memory.
  void close() noexcept {
    ends_.reset();
    if (events_ && events_.get_deleter().home.is_here()) refuse_all();
    listener_.reset();
    events_.reset();
  }

  /// Returns what a peer needs to call.
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
  /// Returns an address as text.
  [[nodiscard]] static std::string describe(std::span<const std::byte> address) {
    const auto socket = address.subspan(sizeof key_);
    std::uint16_t port = 0;  // At the same place in IPv4's and IPv6's.
    std::memcpy(&port, socket.data() + offsetof(sockaddr_in, sin_port), sizeof port);
    return concat(describe_host(socket), " port ", ntohs(port));
  }

  /// Calls `peer`, whose `address()` that is. One rank of a pair does.
  /// Throws: `error` out_of_memory, system.
  void call(rank_id peer, std::span<const std::byte> address) {
    caller mine{0, self_.index()};
    std::memcpy(&mine.key, address.data(), sizeof mine.key);
    fid_ep* const opened = open_end(own_->info(), peer);
    ofi::require(fi_connect(opened, address.data() + sizeof mine.key, &mine, sizeof mine),
                 "calling");
  }
  /// order: acquire, paired with the release of `take`, which another thread may have called.
  [[nodiscard]] bool is_open(rank_id peer) const noexcept {
    return ends_[peer.index()].is_open.load(std::memory_order_acquire);
  }

  /// Accepts calls, and calls `ended(link, reason)` for each connection that has ended or does not
  /// come about, with a libfabric error number above 0.
  template <class Ended>
  void take(Ended&& ended) noexcept {
    for (;;) {
      event next;
      std::uint32_t what = 0;
      const auto length = fi_eq_read(events_.get(), &what, next.bytes.data(), next.bytes.size(), 0);
      if (length == -FI_EAVAIL) {
        fi_eq_err_entry problem{};
        if (fi_eq_readerr(events_.get(), &problem, 0) < 0) return;
        if (problem.fid->context != nullptr)
          ended(link_of(*problem.fid), problem.err == 0 ? FI_EOTHER : problem.err);
        continue;
      }
      if (length < 0) return;
      if (what == FI_CONNREQ) {
        const provider_info info{next.info()};
        if (link* const failed = accept(*info, next, static_cast<std::size_t>(length)))
          ended(*failed, FI_ECONNREFUSED);
      } else if (what == FI_CONNECTED) {
        ends_[link_of(next.object()).peer().index()].is_open.store(true, std::memory_order_release);
      } else if (what == FI_SHUTDOWN) {
        ended(link_of(next.object()), FI_ECONNRESET);
      }
    }
  }
  /// Readable when there is something to take; -1 if the provider has no such descriptor.
  [[nodiscard]] int wake_descriptor() const noexcept { return wake_descriptor_; }
  /// Returns whether there is nothing to take, and what comes makes the descriptor readable.
  [[nodiscard]] bool nothing_is_here() const noexcept {
    fid* waited = &events_->fid;
    return fi_trywait(&own_->fabric(), &waited, 1) == 0;
  }

 private:
  /// What a call brings: the key of the rank that is called, and the rank that calls. Whoever does
  /// not know the key is of another job, or of none.
  struct caller {
    std::uint64_t key;
    std::uint64_t rank;
  };
  struct end {
    handle<fid_ep> endpoint;
    std::atomic<bool> is_open{false};
  };
  /// What the provider says of an event: its `fi_eq_cm_entry`, and the data of a call behind that.
  struct event {
    std::array<std::byte, sizeof(fi_eq_cm_entry) + sizeof(caller)> bytes;

    [[nodiscard]] fid& object() const noexcept { return *entry().fid; }
    [[nodiscard]] fi_info* info() const noexcept { return entry().info; }
    [[nodiscard]] caller data() const noexcept {
      caller found;
      std::memcpy(&found, bytes.data() + sizeof(fi_eq_cm_entry), sizeof found);
      return found;
    }

   private:
    [[nodiscard]] fi_eq_cm_entry entry() const noexcept {
      fi_eq_cm_entry found;
      std::memcpy(&found, bytes.data(), sizeof found);
      return found;
    }
  };

  [[nodiscard]] static link& link_of(const fid& endpoint) noexcept {
    return *static_cast<link*>(endpoint.context);
  }

  /// Opens this rank's end of the connection to `peer`.
  /// Throws: `error` out_of_memory, system.
  fid_ep* open_end(fi_info& info, rank_id peer) {
    link& to_peer = links_[peer.index()];
    handle<fid_ep> opened = open<fid_ep>("an endpoint", [&](fid_ep** made) {
      return fi_endpoint(&own_->domain(), &info, made, &to_peer);
    });
    ofi::require(fi_ep_bind(opened.get(), &own_->receiver().fid, 0), "binding a receive context");
    ofi::require(fi_ep_bind(opened.get(), &own_->queue().fid, FI_TRANSMIT | FI_RECV),
                 "binding a completion queue");
    ofi::require(fi_ep_bind(opened.get(), &events_->fid, 0), "binding an event queue");
    ofi::require(fi_enable(opened.get()), "enabling an endpoint");
    to_peer.set_endpoint(*opened, FI_ADDR_UNSPEC);
    return (ends_[peer.index()].endpoint = std::move(opened)).get();
  }

  /// Accepts a call of a peer, or refuses it.
  /// Returns: the link to a peer whose call this rank cannot accept, or null.
  [[nodiscard]] link* accept(fi_info& info, const event& call, std::size_t length) noexcept {
    const auto [key, peer] = call.data();
    if (length != call.bytes.size() || key != key_ || peer >= links_.size() ||
        peer == self_.index() || ends_[peer].endpoint) {
      static_cast<void>(fi_reject(listener_.get(), info.handle, nullptr, 0));
      return nullptr;
    }
    try {
      fid_ep* const opened = open_end(info, rank_id{peer});
      return fi_accept(opened, nullptr, 0) == 0 ? nullptr : &links_[peer];
    } catch (const std::exception&) {
      static_cast<void>(fi_reject(listener_.get(), info.handle, nullptr, 0));
      return &links_[peer];
    }
  }
  /// Refuses the calls that nobody has taken: the provider keeps their sockets otherwise.
  void refuse_all() noexcept {
    event next;
    std::uint32_t what = 0;
    fi_eq_err_entry problem{};
    for (;;) {
      const auto length = fi_eq_read(events_.get(), &what, next.bytes.data(), next.bytes.size(), 0);
      if (length == -FI_EAVAIL && fi_eq_readerr(events_.get(), &problem, 0) >= 0) continue;
      if (length < 0) return;
      if (what != FI_CONNREQ) continue;
      const provider_info info{next.info()};
      static_cast<void>(fi_reject(listener_.get(), info->handle, nullptr, 0));
    }
  }

  const resources* own_;
  rank_id self_;
  std::span<link> links_;
  std::uint64_t key_ = 0;
  int wake_descriptor_ = -1;
  // In the order in which they are made.
  handle<fid_eq> events_;
  handle<fid_pep> listener_;
  std::unique_ptr<end[]> ends_;  ///< by peer
};

}  // namespace peerbus::detail::ofi
