// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>
#include <sched.h>

#include <cerrno>
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
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/registered/class_pair.hpp>
#include <peerbus/transport/registered/link_watch.hpp>
#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/registered/spin_guard.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>
#include <peerbus/transport/verbs/completions.hpp>
#include <peerbus/transport/verbs/failures.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/link_failure.hpp>
#include <peerbus/transport/verbs/opened_device.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>
#include <peerbus/transport/verbs/rail.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>
#include <peerbus/transport/verbs/slice_rounds.hpp>

namespace peerbus::detail::rdma {

/// A rank's end of the network for one class of traffic: its rails, a link to each rank, and its
/// windows. Completions are also taken while the rank waits in its bootstrap, as idle work.
///
/// A long wait polls both classes. The first polls of a wait for latency traffic, while it spins,
/// seldom poll bulk traffic.
class network final : public registered::class_pair<network> {
 public:
  static constexpr std::string_view name = "verbs";  ///< the name in errors
  /// False because a poll only takes completions that the device has ready, so short waits need not
  /// check their deadline.
  static constexpr bool polls_may_last = false;
  using window_part = rdma::window_part;

  /// Opens links that can receive, and takes completions from then on. `latency` is null for
  /// latency traffic. For bulk traffic it is the network for latency traffic, which outlives this
  /// network and owns the same devices.
  /// Throws: `error` invalid_argument, unsupported, out_of_memory, system; std::bad_alloc.
  network(const bootstrap& boot, const opened_devices& devices, const verbs_options& options,
          wait_thresholds waiting, network* latency)
      : class_pair{boot, waiting, latency},
        own_{devices, options, size(),
             latency == nullptr ? traffic_class::latency : traffic_class::bulk},
        links_{std::make_unique<link[]>(size())},
        completions_{own_, {links_.get(), size()}, windows_} {
    for (const rank_id peer : all_ranks{size()}) to(peer).open(own_, peer);
    if (latency == nullptr) idle().add(*this);
  }
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  /// Waits until the peers have all posted requests, because a destroyed queue pair loses its
  /// requests. Waits up to 5 s. Does not wait for peers that have exited. A child by fork does not
  /// wait.
  ~network() {
    if (is_bulk()) return;  // That one has waited for both.
    idle().remove(*this);
    if (members().is_here()) static_cast<void>(settle(deadline::after(std::chrono::seconds{5})));
    drop_bulk();
  }

  [[nodiscard]] const resources& own() const noexcept { return own_; }
  [[nodiscard]] link& to(rank_id peer) noexcept { return links_[peer.index()]; }
  [[nodiscard]] const link& to(rank_id peer) const noexcept { return links_[peer.index()]; }
  [[nodiscard]] window_table& windows() noexcept { return windows_; }
  [[nodiscard]] const window_table& windows() const noexcept { return windows_; }

  /// Registers the memory of a window, so that peers reach it.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] registration register_window(std::span<std::byte> memory) const {
    return own_.register_window(memory);
  }
  /// Calls `change` while no arrival is taken, so that only `change` raises signals.
  template <class Change>
  void exclude_arrivals(Change&& change) noexcept {
    completions_.exclude_arrivals(change);
  }

  ///@{
  /// Takes completions of both classes, and sends slices of bulk traffic.
  void poll() noexcept {
    if (is_bulk()) first().completions_.poll();
    poll_here();
    if (network* const other = bulk()) other->poll_here();
  }
  void advance() noexcept override { poll(); }
  ///@}
  /// Takes arrivals of this class. For bulk traffic, also sends slices. One in 1024 polls of
  /// latency traffic also polls bulk traffic.
  void poll_arrivals() noexcept {
    if (is_bulk()) return poll_here();
    completions_.poll_arrivals();
    if (network* const other = bulk(); other != nullptr && other->slices_.are_due())
      other->poll_here();
  }
  void poll_all_arrivals() noexcept { completions_.poll_all_arrivals(); }

  /// Returns the descriptor that becomes readable when something arrives in any class while armed.
  [[nodiscard]] int arrival_fd() const noexcept { return own_.wake_descriptor(); }
  /// Arms `arrival_fd` for both classes. Contract as `arm` of `transport`. While bulk calls are
  /// pending, completions of bulk requests wake as well. Must be called on the network for latency
  /// traffic.
  [[nodiscard]] bool arm() noexcept {
    if (!parking_.try_lock()) return false;
    network* const other = bulk();
    if (completions_.ask_for_events(false) &&
        (other == nullptr || other->completions_.ask_for_events(other->slices_.has_pending()))) {
      // An arrival before the request rings no bell, and another thread may have taken it.
      poll_all_arrivals();
      if (other != nullptr) {
        other->poll_all_arrivals();
        other->poll_here();
      }
      return true;
    }
    parking_.unlock();
    return false;
  }
  /// Ends `arm`. The thread that armed must call it.
  void disarm() noexcept {
    for (const auto& each : own_.rails()) rail::take_events(*each->device());
    parking_.unlock();
  }
  /// Sleeps until something arrives or until `until`, unless `word` is at least `value` already.
  /// Only one thread at a time may sleep.
  /// Returns: false, at once, if another thread sleeps or is armed, or if a device cannot report
  /// arrivals.
  [[nodiscard]] bool park(const signal_word& word, std::uint64_t value, deadline until) noexcept {
    if (!first().arm()) return false;
    if (word.value() < value) wait_readable(first().own_.wake_descriptor(), until);
    first().disarm();
    return true;
  }

  /// Sends the slices that may leave now of the bulk calls that are pending to `peer_link`. The
  /// caller holds the lock of `peer_link`.
  void send_slices_to(link& peer_link, outgoing& out) noexcept {
    slices_.send_to(*this, peer_link, out);
  }

  /// Returns the number of bytes kept for each peer, without windows and the memory of the device's
  /// driver.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept {
    return sizeof(link) + sizeof(arrivals) + arrivals::bytes_held(receive_depth) +
           own_.queues() * (sizeof(send_queue) + sizeof(registered::request_count) +
                            sizeof(byte_count) + bytes_counted() + sizeof(queue_pair)) +
           own_.map().bytes_per_peer() +
           (own_.is_bulk()
                ? pending_calls::places(own_.options().queue_depth) * sizeof(pending_call)
                : 0);
  }

  /// Posts as much of the chain of `queue`, one of the link's, as the device takes now. If the
  /// device refuses a request permanently, breaks the link.
  /// Returns: as `send_queue::post`.
  [[nodiscard]] int post(link& peer_link, send_queue& queue) noexcept {
    const int failed = queue.post();
    if (failed == 0 || failed == EAGAIN) return failed;
    completions_.poll();  // If the queue pair has failed, its completions say why.
    if (!peer_link.failure().is_set())
      completions_.break_link(peer_link, queue.number() % own_.queues(),
                              link_failure::code_of_errno(failed));
    return failed;
  }

  /// Takes completions until `done()`. If `peer_link` completes nothing for `stall_timeout`, breaks
  /// it.
  /// Returns: ok, unreachable, peer_dead, timed_out.
  template <class Done>
  [[nodiscard]] errc poll_until(link& peer_link, Done&& done) noexcept {
    return registered::poll_until(*this, peer_link, done);
  }
  /// Yields the core once, because devices complete requests without help, and soon.
  void pause(deadline /*until*/) noexcept { ::sched_yield(); }
  /// Breaks a link over which nothing completes.
  void give_up(link& peer_link) noexcept {
    completions_.break_link(peer_link, peer_link.busiest_queue(),
                            link_failure::code_of(IBV_WC_RESP_TIMEOUT_ERR));
  }

  /// Posts all noted requests of any class, because sources may lie in windows of the other class.
  /// Waits until every running peer has them.
  /// Returns: whether the peers have them by `until`.
  [[nodiscard]] bool settle(deadline until) noexcept {
    network* const other = first().bulk();
    while (!first().all_delivered() || (other != nullptr && !other->all_delivered())) {
      if (until.expired()) return false;
      first().poll();
      ::sched_yield();
    }
    return true;
  }

  /// Returns ok, or the reason why nothing can arrive any more from `awaited`, or from some rank if
  /// it is empty.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept {
    return registered::health(*this, awaited);
  }
  /// Returns whether any link is broken.
  [[nodiscard]] bool any_broken() const noexcept { return completions_.any_broken(); }

  /// Returns a text that names broken connections of this class, and peers that have not
  /// acknowledged requests.
  [[nodiscard]] std::string describe_trouble() const {
    return rdma::describe_failures(own_, {links_.get(), size()});
  }

 private:
  void poll_here() noexcept {
    completions_.poll();
    if (is_bulk()) slices_.send_all(*this);
  }

  [[nodiscard]] std::size_t bytes_counted() const noexcept {
    if (!own_.counts_bytes()) return 0;
    return byte_count::bytes_held(send_queue::places(own_.options().queue_depth));
  }

  [[nodiscard]] bool all_delivered() noexcept {
    bool all = true;
    for (const rank_id peer : all_ranks{size()}) {
      link& peer_link = links_[peer.index()];
      const auto out = peer_link.out().lock();
      if (!peer_link.pending().is_empty() && !peer_link.failure().is_set()) {
        send_slices_to(peer_link, *out);
        all = all && members().state(peer) != rank_state::running;
      }
      for (std::size_t q = 0; q < peer_link.pairs().size(); ++q) {
        send_queue& queue = out->queues[q];
        if (peer_link.failure().is_set()) continue;
        if (post(peer_link, queue) == EAGAIN || !queue.is_idle())
          all = all && members().state(peer) != rank_state::running;
      }
    }
    return all;
  }

  resources own_;
  window_table windows_;
  std::unique_ptr<link[]> links_;
  completions completions_;
  registered::spin_guard parking_;
  slice_rounds slices_{own_, {links_.get(), size()}};  ///< the rounds of bulk traffic
};

}  // namespace peerbus::detail::rdma
