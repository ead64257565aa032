// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/verbs/connection.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/spin_guard.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// Everything that a rank has of the network, and what moves it along: looking at completions,
/// which it also does as idle work of its bootstrap. Made by `connect`.
class endpoint final : public idle_work::task {
 public:
  endpoint(const bootstrap& boot, open_port port, const verbs_options& chosen,
           wait_thresholds waiting)
      : members_{boot.members()},
        idle_{boot.idle()},
        port_{std::move(port)},
        options_{chosen},
        map_{members_->size(), chosen.queue_depth},
        waiting_{waiting} {}
  endpoint(const endpoint&) = delete;
  endpoint& operator=(const endpoint&) = delete;

  /// Waits until the peers have what was posted to them, as a queue pair that is destroyed takes
  /// its requests along: for 5 s at most, and for nobody who is gone.
  ~endpoint() {
    idle_->remove(*this);
    if (connections_) static_cast<void>(settle(deadline::after(std::chrono::seconds{5})));
    connections_.reset();
    if (events_ != 0) ibv_ack_cq_events(received_.get(), events_);
  }

  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  [[nodiscard]] const open_port& port() const noexcept { return port_; }
  [[nodiscard]] const verbs_options& options() const noexcept { return options_; }
  [[nodiscard]] membership& members() const noexcept { return *members_; }
  [[nodiscard]] const wait_thresholds& waiting() const noexcept { return waiting_; }
  [[nodiscard]] connection& to(rank_id peer) noexcept { return connections_[peer.index()]; }
  [[nodiscard]] const connection& to(rank_id peer) const noexcept {
    return connections_[peer.index()];
  }
  [[nodiscard]] const control_map& map() const noexcept { return map_; }
  [[nodiscard]] window_table& windows() noexcept { return windows_; }
  /// What is kept for each peer besides windows, but for what the device's driver keeps.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept {
    return sizeof(connection) + options_.queue_pairs_per_peer * sizeof(send_queue) +
           arrivals::bytes_held(receive_depth) + map_.bytes_per_peer();
  }
  /// Held while arrivals are looked at; also by who takes a window out of the table.
  [[nodiscard]] spin_guard& looking() noexcept { return looking_; }

  /// Takes what has completed: raises the signals that came, and notes which requests are done.
  /// What another thread is looking at already is left to it.
  void look() noexcept {
    look_at_arrivals();
    look_at_requests();
  }
  void advance() noexcept override { look(); }
  void look_at_arrivals() noexcept {
    const std::unique_lock mine{looking_, std::try_to_lock};
    if (mine) take_arrivals();
  }
  /// The same, after whoever is looking is through: what has come is raised on return.
  void look_at_all_arrivals() noexcept {
    const std::lock_guard mine{looking_};
    take_arrivals();
  }

  /// Posts what was not, and waits until all that can arrive has. Returns: whether it has.
  [[nodiscard]] bool settle(deadline until) noexcept {
    while (!all_arrived()) {
      if (until.expired()) return false;
      look();
      ::sched_yield();
    }
    return true;
  }

  // --- sending; the caller holds the connection's `sending` -----------------------------------

  /// Makes room for one more request in the queue's chain.
  /// Returns: ok, timed_out if the queue stayed full, unreachable, peer_dead.
  [[nodiscard]] errc make_room(connection& to, send_queue& queue) noexcept {
    if (queue.has_room()) return errc::ok;
    if (const errc code = post(to, queue); code != errc::ok) return code;
    return stall(to, [&]() noexcept { return queue.has_room(); });
  }

  /// Rings the doorbell for what is in the chain. Returns: as `make_room`.
  [[nodiscard]] errc post(connection& to, send_queue& queue) noexcept {
    int failed = try_post(to, queue);
    if (failed == EAGAIN)
      if (const errc code = stall(to,
                                  [&]() noexcept {
                                    failed = try_post(to, queue);
                                    return failed != EAGAIN;
                                  });
          code != errc::ok)
        return code;
    return failed == 0 ? errc::ok : why_broken(to);
  }

  /// Whether a broken connection is the end of the peer (peer_dead) or its own (unreachable). A
  /// dying process loses its queue pairs and registrations a moment before its end can be seen.
  [[nodiscard]] errc why_broken(const connection& to) const noexcept {
    const rank_id peer = peer_of(to);
    if (members_->state(peer) == rank_state::running && !members_->ends_within(peer, slowest_end))
      return errc::unreachable;
    return members_->health(peer);
  }

  /// Looks at completions until `done()`; a peer that lets nothing through for too long is given
  /// up. Returns: ok, unreachable, peer_dead, timed_out.
  template <class Done>
  [[nodiscard]] errc stall(connection& to, Done&& done) noexcept {
    auto until = deadline::after(options_.stall_timeout);
    auto next_check = deadline::after(waiting_.check_interval);
    std::uint32_t before = completed(to);
    for (std::uint32_t i = 0;; ++i) {
      if (done()) return errc::ok;
      if (to.is_broken()) return why_broken(to);
      look();
      if (i < waiting_.tight + waiting_.paused) {
        pause_core();
        continue;
      }
      if (next_check.expired()) {
        if (const errc found = members_->health(peer_of(to)); found != errc::ok)
          return done() ? errc::ok : found;
        next_check = deadline::after(waiting_.check_interval);
        if (completed(to) != before) {
          before = completed(to);
          until = deadline::after(options_.stall_timeout);
        }
      }
      if (until.expired()) {
        break_connection(to, IBV_WC_RESP_TIMEOUT_ERR);
        return errc::timed_out;
      }
      ::sched_yield();
    }
  }

  // --- waiting ---------------------------------------------------------------------------------

  /// Sleeps until something arrives or `until`, unless `word` is `value` already. One thread at a
  /// time may, the others get false at once.
  [[nodiscard]] bool park(const signal_word& word, std::uint64_t value, deadline until) noexcept {
    const std::unique_lock mine{parking_, std::try_to_lock};
    if (!mine) return false;
    if (ibv_req_notify_cq(received_.get(), 0) != 0) return false;
    // What came before the request rings no bell, and another thread may have taken it.
    look_at_all_arrivals();
    if (word.value() < value) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until.remaining());
      const timespec span{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
      pollfd entry{channel_->fd, POLLIN, 0};
      static_cast<void>(::ppoll(&entry, 1, &span, nullptr));
    }
    ibv_cq* queue = nullptr;
    void* nothing = nullptr;
    while (ibv_get_cq_event(channel_.get(), &queue, &nothing) == 0) ++events_;
    return true;
  }

  /// Whether nothing can come from `awaited`, or from somebody, any more.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept {
    if (const errc found = members_->health(awaited); found != errc::ok) return found;
    if (broken_.load(std::memory_order_relaxed) == 0) return errc::ok;
    for (const rank_id peer : all_ranks{size()})
      if ((!awaited || *awaited == peer) && to(peer).is_broken() &&
          members_->state(peer) == rank_state::running)
        return why_broken(to(peer));
    return errc::ok;
  }

  /// "no connection to rank 3 any more: transport retry counter exceeded: …", and who keeps this
  /// rank waiting for acknowledgements; or nothing.
  [[nodiscard]] std::string describe_trouble() const {
    std::string text;
    for (const rank_id peer : all_ranks{size()}) {
      const connection& one = to(peer);
      std::int32_t open = 0;  // Another thread may count at this moment.
      for (std::uint32_t q = 0; q < options_.queue_pairs_per_peer; ++q)
        open += std::max(static_cast<std::int32_t>(one.queues[q].on_their_way()), 0);
      if (!one.is_broken() && open == 0) continue;
      text += text.empty() ? "" : "; ";
      text += one.is_broken() ? concat("no connection to ", peer, " any more: ", one.describe())
                              : concat(peer, " has not acknowledged ", open,
                                       " requests yet (its link may be down, or it is busy)");
    }
    return text;
  }

 private:
  friend class connector;
  friend class window_maker;

  static constexpr int completions_at_once = 16;

  void take_arrivals() noexcept {
    std::array<ibv_wc, completions_at_once> batch;
    for (int count = completions_at_once; count == completions_at_once;) {
      count = ibv_poll_cq(received_.get(), completions_at_once, batch.data());
      for (int i = 0; i < count; ++i) take_arrival(batch[static_cast<std::size_t>(i)]);
    }
  }

  /// Posts as much of the chain as the device takes now. If the device refuses a request for good,
  /// breaks the connection. Returns: as `send_queue::post`.
  [[nodiscard]] int try_post(connection& to, send_queue& queue) noexcept {
    const int failed = queue.post();
    if (failed == 0 || failed == EAGAIN) return failed;
    look();  // If the queue pair has failed, its completions say why.
    if (!to.is_broken())
      break_connection(to, connection::errno_base + static_cast<std::uint32_t>(failed));
    return failed;
  }

  [[nodiscard]] bool all_arrived() noexcept {
    bool all = true;
    for (std::size_t r = 0; r < size(); ++r) {
      connection& to = connections_[r];
      const std::lock_guard turn{to.sending};
      for (std::size_t q = 0; to.queues && q < options_.queue_pairs_per_peer; ++q) {
        send_queue& queue = to.queues[q];
        if (queue.pair() == nullptr || to.is_broken()) continue;
        if (try_post(to, queue) == EAGAIN || !queue.completed_up_to(queue.posted()))
          all = all && members_->state(rank_id{r}) != rank_state::running;
      }
    }
    return all;
  }

  [[nodiscard]] std::uint32_t completed(const connection& to) const noexcept {
    std::uint32_t sum = 0;
    for (std::uint32_t q = 0; q < options_.queue_pairs_per_peer; ++q)
      sum += to.queues[q].posted() - to.queues[q].on_their_way();
    return sum;
  }

  /// From when a dying process's device lets go of it to when its end can be seen.
  static constexpr std::chrono::milliseconds slowest_end{300};

  /// Completions are told apart by the number of their queue: peer x queue pairs + queue pair.
  [[nodiscard]] connection& owner(std::uint64_t request) noexcept {
    return connections_[static_cast<std::size_t>(request >> 32U) / options_.queue_pairs_per_peer];
  }
  [[nodiscard]] std::size_t queue_of(std::uint64_t request) const noexcept {
    return static_cast<std::size_t>(request >> 32U) % options_.queue_pairs_per_peer;
  }
  [[nodiscard]] rank_id peer_of(const connection& to) const noexcept {
    return rank_id{static_cast<std::size_t>(&to - connections_.get())};
  }

  void look_at_requests() noexcept {
    const std::unique_lock mine{reaping_, std::try_to_lock};
    if (!mine) return;
    std::array<ibv_wc, completions_at_once> batch;
    for (int count = completions_at_once; count == completions_at_once;) {
      count = ibv_poll_cq(sent_.get(), completions_at_once, batch.data());
      for (int i = 0; i < count; ++i) {
        const ibv_wc& one = batch[static_cast<std::size_t>(i)];
        connection& to = owner(one.wr_id);
        if (one.status != IBV_WC_SUCCESS)
          break_connection(to, one.status);
        else
          to.queues[queue_of(one.wr_id)].complete(static_cast<std::uint32_t>(one.wr_id));
      }
    }
  }

  void take_arrival(const ibv_wc& one) noexcept {
    connection& from = owner(one.wr_id);
    const std::size_t queue = queue_of(one.wr_id);
    const auto slot = static_cast<std::uint32_t>(one.wr_id);
    if (one.status != IBV_WC_SUCCESS) return break_connection(from, one.status);
    const auto raise = [&](const raised_signal& what, std::uint32_t held) noexcept {
      raise_signal(what);
      receive(from, 0, held);
    };
    if (queue != 0) {
      receive(from, queue, slot);
      from.coming.fence_came(queue, raise);
    } else if (one.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      from.coming.signal_came(short_notice::decode(ntohl(one.imm_data)), slot, raise);
    } else {
      notice said;
      std::memcpy(&said, control_.data() + map_.receive_buffer(peer_of(from), slot), sizeof said);
      from.coming.signal_came(said, slot, raise);
    }
  }

  void raise_signal(const raised_signal& what) noexcept {
    const window_part* const part = windows_.find(what.window);
    if (part == nullptr || index(what.id) >= part->shape.signals) return;  // Released meanwhile.
    signal_word& word = part->signal(what.id);
    if (word.value() < what.value) word.raise(what.value);
  }

  void receive(connection& from, std::size_t queue, std::uint32_t slot) noexcept {
    if (const int failed = post_receive(from, queue, slot); failed != 0)
      break_connection(from, connection::errno_base + static_cast<std::uint32_t>(failed));
  }
  /// Returns: 0, or why the device takes no receive request.
  [[nodiscard]] int post_receive(connection& from, std::size_t queue, std::uint32_t slot) noexcept {
    ibv_sge buffer{address_of(map_.receive_buffer(peer_of(from), slot)), sizeof(notice),
                   registration_->lkey};
    ibv_recv_wr request{};
    const std::size_t number = peer_of(from).index() * options_.queue_pairs_per_peer + queue;
    request.wr_id = std::uint64_t{number} << 32U | slot;
    if (queue == 0) {
      request.sg_list = &buffer;
      request.num_sge = 1;
    }
    ibv_recv_wr* refused = nullptr;
    return ibv_post_recv(from.queues[queue].pair(), &request, &refused);
  }

  void break_connection(connection& with, ibv_wc_status why) noexcept {
    break_connection(with, connection::code_of(why));
  }
  void break_connection(connection& with, std::uint32_t code) noexcept {
    if (!with.break_with(code)) return;
    broken_.fetch_add(1, std::memory_order_relaxed);
    // Nothing of it may arrive later, and the peer is to notice.
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_ERR;
    for (std::uint32_t q = 0; q < options_.queue_pairs_per_peer; ++q)
      static_cast<void>(ibv_modify_qp(with.queues[q].pair(), &state, IBV_QP_STATE));
  }

  [[nodiscard]] std::uint64_t address_of(std::size_t place) const noexcept {
    return reinterpret_cast<std::uintptr_t>(control_.data() + place);
  }

  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_;
  open_port port_;
  verbs_options options_;
  control_map map_;
  wait_thresholds waiting_;

  /// Not the same each time: packets of an earlier connection that linger must not fit this one.
  std::uint32_t first_packet_ = std::random_device{}() & 0xff'ffffU;

  // In the order of their making; each needs those before it.
  protection_domain domain_;
  completion_channel channel_;
  completion_queue sent_;
  completion_queue received_;
  mapping control_;
  memory_region registration_;
  std::vector<std::unique_ptr<window_part>> parts_;
  window_table windows_;
  std::unique_ptr<connection[]> connections_;

  spin_guard looking_;
  spin_guard reaping_;
  spin_guard parking_;
  std::atomic<std::uint32_t> broken_{0};
  unsigned events_ = 0;  ///< to be acknowledged; under `parking_`
};

}  // namespace peerbus::detail::rdma
