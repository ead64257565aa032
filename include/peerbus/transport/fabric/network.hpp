// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/fabric/completions.hpp>
#include <peerbus/transport/fabric/connections.hpp>
#include <peerbus/transport/fabric/delivery.hpp>
#include <peerbus/transport/fabric/failures.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/fabric/pending_calls.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/resources.hpp>
#include <peerbus/transport/fabric/slices.hpp>
#include <peerbus/transport/fabric/wake_set.hpp>
#include <peerbus/transport/fabric/yielding.hpp>
#include <peerbus/transport/registered/class_pair.hpp>
#include <peerbus/transport/registered/link_watch.hpp>

namespace peerbus::detail::ofi {

/// A rank's end of the network for one class of traffic: its endpoints, a link to each rank, and
/// its windows. Completions are also taken while the rank waits in its bootstrap, as idle work.
///
/// A wait for bulk traffic polls latency traffic before each poll of bulk traffic, which moves
/// about a slice. A wait for latency traffic polls bulk traffic when `yielding` says so.
class network final : public registered::class_pair<network> {
 public:
  static constexpr std::string_view name = "fabric";  ///< the name in errors
  /// True because a poll receives everything in sockets: waits check their deadline after each.
  static constexpr bool polls_may_last = true;
  using window_part = ofi::window_part;

  /// Opens the receiving ends, and takes completions from then on. `latency` is null for latency
  /// traffic. For bulk traffic it is the network for latency traffic, which outlives this network.
  /// Throws: `error` out_of_memory, system; std::bad_alloc.
  network(const bootstrap& boot, provider_info info, const fabric_options& options,
          wait_thresholds waiting, network* latency)
      : class_pair{boot, waiting, latency},
        own_{std::move(info), options, size(), latency == nullptr ? nullptr : &latency->own_},
        links_{std::make_unique<link[]>(size())},
        connections_{own_.connects() ? std::make_unique<connections>(own_, rank(), links())
                                     : nullptr},
        completions_{own_, links(), windows_, connections_.get()} {
    for (const rank_id peer : all_ranks{size()}) to(peer).open(own_, rank(), peer);
    idle().add(*this);
  }
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  /// Tells the peers that this end closes, and waits until they have taken everything that was sent
  /// to them. Waits up to 250 ms for peers that make no calls, and up to 5 s until the provider has
  /// sent everything. If the ranks did not connect, takes arrivals for 25 ms. A child by fork does
  /// neither.
  ~network() {
    drop_bulk();
    idle().remove(*this);
    if (members().is_here() && is_connected_)
      leave(members(), own_, completions_, links(), [this]() noexcept { poll(); });
    else if (members().is_here())
      finish_accepting();
    // Before the requests that they hold are gone.
    if (connections_) connections_->close();
    own_.close();
  }

  /// Notes that all links have their endpoints from now on, so peers can be answered.
  /// order: release, paired with the acquire of `send_what_is_due`: the endpoints are seen there.
  void note_endpoints() noexcept { has_endpoints_.store(true, std::memory_order_release); }
  void note_connected() noexcept { is_connected_ = true; }
  /// Makes `arrival_fd` report bulk traffic too.
  /// Throws: `error` system.
  void watch_bulk(const network& made) { arrivals_.add(made.own_.wake_descriptor()); }
  [[nodiscard]] const resources& own() const noexcept { return own_; }
  /// Returns the connections to peers, or null if peers are reached by datagrams.
  [[nodiscard]] connections* connected() noexcept { return connections_.get(); }
  [[nodiscard]] link& to(rank_id peer) noexcept { return links_[peer.index()]; }
  [[nodiscard]] const link& to(rank_id peer) const noexcept { return links_[peer.index()]; }
  [[nodiscard]] window_table& windows() noexcept { return windows_; }
  [[nodiscard]] const window_table& windows() const noexcept { return windows_; }

  /// Registers the memory of a window, so that peers reach it.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] registration register_window(std::span<std::byte> memory) const {
    return own_.make_reachable(memory, "a window");
  }
  /// Calls `change` while no arrival is taken, so that only `change` raises signals.
  template <class Change>
  void exclude_arrivals(Change&& change) noexcept {
    completions_.exclude_arrivals(change);
  }

  ///@{
  /// Takes completions, answers peers that ask for acknowledgements, and sends pending calls.
  void poll() noexcept {
    if (is_bulk()) first().poll_here();
    poll_here();
    if (network* const other = bulk();
        other != nullptr && yielding_.bulk_is_due(completions_.taken()))
      other->poll_here();
  }
  void poll_arrivals() noexcept { poll(); }
  void poll_all_arrivals() noexcept {
    completions_.poll_all();
    send_what_is_due();
  }
  /// Takes arrivals of all classes, as `poll_all_arrivals` does for this class.
  void poll_all_classes() noexcept {
    poll_all_arrivals();
    if (network* const other = bulk(); other != nullptr) other->poll_all_arrivals();
  }
  void advance() noexcept override { poll_all_arrivals(); }
  /// Sleeps until something happens while the ranks connect, no longer than a rank sleeps in its
  /// bootstrap, because the state of a peer may change meanwhile.
  void sleep_while_connecting() noexcept {
    const auto until = deadline::after(idle_work::longest_pause);
    if (connections_)
      connections_->sleep(until);
    else if (!completions_.park(until, never))
      ::sched_yield();
  }
  ///@}
  void note_call() noexcept {
    if (bulk() != nullptr) yielding_.note_call();
  }
  /// Sends a slice of the pending calls to `peer_link`, if there are any and there is room for it.
  void send_slice_to(link& peer_link, outgoing& out) noexcept {
    if (peer_link.pending().is_empty() || peer_link.failure().is_set() || peer_link.has_left())
      return;
    const long failed = send_slice(own_, peer_link, out);
    if (failed == 0)
      has_sent_.store(true, std::memory_order_relaxed);
    else if (failed != -FI_EAGAIN)
      completions_.break_link(peer_link, static_cast<int>(-failed));
  }
  /// Arms `arrival_fd`. Contract as `arm` of `transport`.
  [[nodiscard]] bool arm() noexcept {
    network* const other = bulk();
    for (int polls = 0; polls < 16; ++polls) {  // More arrives meanwhile, but hardly that often.
      poll_all_classes();
      if (!completions_.arm()) continue;
      if (other == nullptr) return true;
      if (other->has_more_to_send()) arrivals_.wake();
      if (other->has_more_to_send() || other->completions_.nothing_is_here()) return true;
      completions_.disarm();
    }
    return false;
  }
  void disarm() noexcept {
    arrivals_.clear();
    completions_.disarm();
  }
  /// Returns the descriptor that becomes readable when something arrives while armed; -1 if the
  /// provider has none.
  [[nodiscard]] int arrival_fd() const noexcept { return arrivals_.fd(); }
  [[nodiscard]] bool park(const signal_word& word, std::uint64_t value, deadline until) noexcept {
    return park(until, [&]() noexcept { return word.value() >= value; });
  }
  /// Yields the core, until something arrives or until `until`.
  void pause(deadline until) noexcept {
    network* const other = first().bulk();
    if ((other != nullptr && other->has_more_to_send()) || !park(until, never)) ::sched_yield();
  }

  /// Polls until `done()`, and probes the peer. Contract as `registered::poll_until`.
  template <class Done>
  [[nodiscard]] errc poll_until(link& peer_link, Done&& done) noexcept {
    return registered::poll_until(*this, peer_link, [&]() noexcept {
      if (done()) return true;
      completions_.probe(peer_link);
      return false;
    });
  }
  /// Asks a peer for which this rank waits whether the connection lost anything, if a check is due.
  void probe(rank_id awaited) noexcept { completions_.probe(to(awaited)); }
  /// Breaks a link over which nothing completes.
  void give_up(link& peer_link) noexcept { completions_.break_link(peer_link, FI_ETIMEDOUT); }
  /// Breaks a link whose provider refused a request permanently with `failed`, below 0.
  void break_link(link& peer_link, long failed) noexcept {
    completions_.poll_all();  // If requests before it failed, their completions say why.
    completions_.break_link(peer_link, static_cast<int>(-failed));
  }

  /// Returns ok, or the reason why nothing can arrive any more from `awaited`, or from some rank if
  /// it is empty.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept {
    if (const errc found = registered::health(*this, awaited); found != errc::ok) return found;
    return awaited && awaited->index() < size() && to(*awaited).has_left()
               ? why_broken(to(*awaited))
               : errc::ok;
  }
  [[nodiscard]] bool any_broken() const noexcept { return completions_.any_broken(); }

  /// Waits until every running peer has acknowledged all puts of any class, because sources may lie
  /// in windows of the other class.
  /// Returns: whether all have acknowledged them by `until`.
  [[nodiscard]] bool settle(deadline until) noexcept {
    network* const other = first().bulk();
    while (!all_delivered(members(), first().links()) ||
           (other != nullptr && !all_delivered(members(), other->links()))) {
      if (until.expired()) return false;
      first().poll_all_classes();
      ::sched_yield();
    }
    return true;
  }

  [[nodiscard]] std::string describe_trouble() const {
    return ofi::describe_failures(own_, links());
  }
  /// Returns the number of bytes kept for each peer, without windows and the provider's memory.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept {
    const std::size_t places = request_ring::places(own_.options().queue_depth);
    return sizeof(link) + places * (sizeof(request) + sizeof(notice_buffer)) +
           8 * (sizeof(notice_buffer) + sizeof(request)) +
           (is_bulk() ? places * sizeof(pending_call) : 0);
  }

 private:
  void poll_here() noexcept {
    completions_.poll();
    send_what_is_due();
  }

  /// Answers peers that ask for acknowledgements. Sends a slice to each peer with pending calls.
  void send_what_is_due() noexcept {
    // A peer that has all endpoints may ask while this rank still waits for them.
    if (has_endpoints_.load(std::memory_order_acquire)) answer_all(completions_, links());
    if (!is_bulk()) return;
    has_sent_.store(false, std::memory_order_relaxed);
    for (link& peer_link : links()) {
      if (peer_link.pending().is_empty()) continue;
      if (auto out = peer_link.out().try_lock()) send_slice_to(peer_link, **out);
    }
  }
  /// Returns whether the last poll has sent slices, so that more may be sent at once.
  [[nodiscard]] bool has_more_to_send() const noexcept {
    return has_sent_.load(std::memory_order_relaxed);
  }

  static constexpr auto never = []() noexcept { return false; };
  template <class IsHere>
  [[nodiscard]] bool park(deadline until, IsHere&& is_here) noexcept {
    const network* const other = first().bulk();
    return (other != nullptr && other->has_more_to_send()) ||
           first().completions_.park(until, is_here,
                                     other == nullptr ? nullptr : &other->completions_);
  }

  [[nodiscard]] std::span<link> links() const noexcept { return {links_.get(), size()}; }

  /// Polls for 25 ms, so that the provider reads the first message of each peer that it has
  /// accepted while the ranks connect. The provider tcp of libfabric 1.17 never closes the socket
  /// of an accepted peer before it has read that message. For datagrams, it accepts and reads only
  /// once in 10 ms.
  void finish_accepting() noexcept {
    if (!own_.opens_sockets()) return;
    const auto until = deadline::after(std::chrono::milliseconds{25});
    while (!until.expired()) {
      poll_all_arrivals();
      ::sched_yield();
    }
  }

  resources own_;
  window_table windows_;
  std::unique_ptr<link[]> links_;
  std::unique_ptr<connections> connections_;
  completions completions_;
  std::atomic<bool> has_endpoints_{false};
  bool is_connected_ = false;
  wake_set arrivals_{is_bulk() ? -1 : own_.wake_descriptor()};
  std::atomic<bool> has_sent_{false};  ///< whether the last poll of bulk traffic sent a slice
  class yielding yielding_;            ///< decides when waits for latency traffic poll bulk traffic
};

}  // namespace peerbus::detail::ofi
