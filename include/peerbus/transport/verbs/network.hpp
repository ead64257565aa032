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
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/registered/link_watch.hpp>
#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>
#include <peerbus/transport/verbs/completions.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/link_failure.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/rail.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>
#include <peerbus/transport/verbs/trouble.hpp>

namespace peerbus::detail::rdma {

/// A rank's end of the network: its devices, a link to each rank, and its windows. Completions are
/// also taken while the rank waits in its bootstrap, as idle work.
class network final : public idle_work::task {
 public:
  static constexpr std::string_view name = "verbs";  ///< in errors
  /// A look takes what the device has ready, so short waits need not ask for their deadline.
  static constexpr bool looks_may_last = false;
  using window_part = rdma::window_part;

  /// Opens links that can receive, and takes completions from then on.
  /// Throws: `error` invalid_argument, unsupported, out_of_memory, system; std::bad_alloc.
  network(const bootstrap& boot, std::vector<open_port> ports, const verbs_options& options,
          wait_thresholds waiting)
      : members_{boot.members()},
        idle_{boot.idle()},
        own_{std::move(ports), options, members_->size()},
        waiting_{waiting},
        links_{std::make_unique<link[]>(size())},
        completions_{own_, {links_.get(), size()}, windows_} {
    for (const rank_id peer : all_ranks{size()}) to(peer).open(own_, peer);
    idle_->add(*this);
  }
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  /// Waits until the peers have what was posted to them, because a queue pair that is destroyed
  /// takes its requests along. Waits up to 5 s. Does not wait for peers that have exited.
  ~network() {
    idle_->remove(*this);
    static_cast<void>(settle(deadline::after(std::chrono::seconds{5})));
  }

  [[nodiscard]] const membership& members() const noexcept { return *members_; }
  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  [[nodiscard]] const resources& own() const noexcept { return own_; }
  [[nodiscard]] const wait_thresholds& waiting() const noexcept { return waiting_; }
  [[nodiscard]] link& to(rank_id peer) noexcept { return links_[peer.index()]; }
  [[nodiscard]] const link& to(rank_id peer) const noexcept { return links_[peer.index()]; }
  [[nodiscard]] window_table& windows() noexcept { return windows_; }
  [[nodiscard]] const window_table& windows() const noexcept { return windows_; }
  /// Returns the local key of memory in a window. Empty if it is in none.
  [[nodiscard]] auto key_of(std::span<const std::byte> memory) const noexcept {
    return windows_.key_of(memory);
  }
  [[nodiscard]] completions& arriving() noexcept { return completions_; }

  /// Lets peers reach the memory of a window. Throws: `error` out_of_memory, system.
  [[nodiscard]] registration register_window(std::span<std::byte> memory) const {
    return own_.register_window(memory);
  }
  /// Calls `change` while no arrival is taken, so that no signal is raised but by `change`.
  template <class Change>
  void exclude_arrivals(Change&& change) noexcept {
    completions_.exclude_arrivals(change);
  }

  void advance() noexcept override { completions_.look(); }

  /// Memory kept for each peer besides windows, except what the device's driver keeps.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept {
    return sizeof(link) + sizeof(arrivals) + arrivals::bytes_held(receive_depth) +
           own_.queues() * (sizeof(send_queue) + sizeof(registered::request_count) +
                            sizeof(byte_count) + bytes_counted() + sizeof(queue_pair)) +
           own_.map().bytes_per_peer();
  }

  /// Posts as much of the chain of `queue`, one of the link's, as the device takes now. If the
  /// device refuses a request for good, breaks the link. Returns: as `send_queue::post`.
  [[nodiscard]] int post(link& to, send_queue& queue) noexcept {
    const int failed = queue.post();
    if (failed == 0 || failed == EAGAIN) return failed;
    completions_.look();  // If the queue pair has failed, its completions say why.
    if (!to.failure().is_set())
      completions_.break_link(to, queue.number() % own_.queues(),
                              link_failure::code_of_errno(failed));
    return failed;
  }

  /// Takes completions until `done()`. If a link completes nothing for `stall_timeout`, breaks it.
  /// Returns: ok, unreachable, peer_dead, timed_out.
  template <class Done>
  [[nodiscard]] errc stall(link& to, Done&& done) noexcept {
    return registered::stall(*this, to, done);
  }
  [[nodiscard]] std::chrono::milliseconds stall_timeout() const noexcept {
    return own_.options().stall_timeout;
  }
  /// Breaks a link over which nothing completes.
  void give_up(link& to) noexcept {
    completions_.break_link(to, to.busiest_queue(), link_failure::code_of(IBV_WC_RESP_TIMEOUT_ERR));
  }

  /// Posts all chains, and waits until every peer that runs has what was posted to it.
  /// Returns: whether this is so.
  [[nodiscard]] bool settle(deadline until) noexcept {
    while (!all_delivered()) {
      if (until.expired()) return false;
      completions_.look();
      ::sched_yield();
    }
    return true;
  }

  /// Returns why a link is broken: peer_dead or unreachable.
  [[nodiscard]] errc why_broken(const link& broken) const noexcept {
    return registered::why_broken(*members_, broken.peer());
  }
  /// Returns why nothing can come any more from `awaited`, or from some rank if it is empty.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept {
    return registered::health(*this, awaited);
  }
  /// Returns whether any link is broken.
  [[nodiscard]] bool any_broken() const noexcept { return completions_.any_broken(); }

  /// Describes broken connections, and the peers that have not acknowledged requests.
  [[nodiscard]] std::string describe_trouble() const {
    return rdma::describe_trouble(own_, {links_.get(), size()});
  }

 private:
  [[nodiscard]] std::size_t bytes_counted() const noexcept {
    if (own_.rails().size() == 1) return 0;
    return byte_count::bytes_held(send_queue::places(own_.options().queue_depth));
  }

  [[nodiscard]] bool all_delivered() noexcept {
    bool all = true;
    for (const rank_id peer : all_ranks{size()}) {
      link& to = links_[peer.index()];
      const auto out = to.out().lock();
      for (std::size_t q = 0; q < to.pairs().size(); ++q) {
        send_queue& queue = out->queues[q];
        if (to.failure().is_set()) continue;
        if (post(to, queue) == EAGAIN || !queue.is_idle())
          all = all && members_->state(peer) != rank_state::running;
      }
    }
    return all;
  }

  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_;
  resources own_;
  wait_thresholds waiting_;
  window_table windows_;
  std::unique_ptr<link[]> links_;
  completions completions_;
};

}  // namespace peerbus::detail::rdma
