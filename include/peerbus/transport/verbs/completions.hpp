// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/registered/spin_guard.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/link_failure.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/request_id.hpp>
#include <peerbus/transport/verbs/resources.hpp>

namespace peerbus::detail::rdma {

/// Takes the completions of one class of traffic from a rank's devices: raises the arriving
/// signals, counts the complete requests, and breaks links whose requests fail.
///
/// Threads: any.
class completions {
 public:
  /// Takes the completions of `links`, by peer, on the queues of `own`. Signals are raised in
  /// `windows`.
  completions(const resources& own, std::span<link> links, const window_table& windows)
      : own_{&own}, links_{links}, windows_{&windows}, arrivals_(links.size()) {
    for (arrivals& from_peer : arrivals_) from_peer.open(receive_depth);
  }
  completions(const completions&) = delete;
  completions& operator=(const completions&) = delete;
  ~completions() = default;

  /// Takes completions, unless another thread is taking them.
  void poll() noexcept {
    poll_arrivals();
    poll_requests();
  }
  void poll_arrivals() noexcept {
    const std::unique_lock turn{polling_, std::try_to_lock};
    if (turn) take_arrivals();
  }
  /// Takes arrivals, after any other thread that is taking them. All their signals are raised on
  /// return.
  void poll_all_arrivals() noexcept {
    const std::lock_guard turn{polling_};
    take_arrivals();
  }
  /// Calls `change` while no arrival is taken, so that only `change` raises signals.
  template <class Change>
  void exclude_arrivals(Change&& change) noexcept {
    const std::lock_guard turn{polling_};
    change();
  }

  /// Makes the next arrival, and the next completion of requests if `also_of_requests`, set the
  /// devices' channels readable. Completions that are in the queues already do not, so poll after
  /// this call.
  /// Returns: whether all devices accept this.
  [[nodiscard]] bool ask_for_events(bool also_of_requests) const noexcept {
    for (const auto& each : own_->rails())
      if (ibv_req_notify_cq(&each->received(), 0) != 0 ||
          (also_of_requests && ibv_req_notify_cq(&each->sent(), 0) != 0))
        return false;
    return true;
  }

  /// Breaks a link for the reason `code`, found on `queue`, unless it is broken already. Nothing
  /// arrives over the link later, and the peer's devices notice the break.
  void break_link(link& broken, std::size_t queue, std::uint32_t code) noexcept {
    if (!broken.failure().set(code, own_->rail_of(queue))) return;
    broken_.fetch_add(1, std::memory_order_relaxed);
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_ERR;
    for (const queue_pair& pair : broken.pairs())
      static_cast<void>(ibv_modify_qp(pair.get(), &state, IBV_QP_STATE));
  }
  /// Returns whether any link is broken.
  [[nodiscard]] bool any_broken() const noexcept {
    return broken_.load(std::memory_order_relaxed) != 0;  // order: none; `link_failure` says which.
  }

 private:
  static constexpr int completions_at_once = 16;

  template <class Take>
  static void take_all(ibv_cq& queue, Take&& take) noexcept {
    std::array<ibv_wc, completions_at_once> batch;
    for (int count = completions_at_once; count == completions_at_once;) {
      count = ibv_poll_cq(&queue, completions_at_once, batch.data());
      for (int i = 0; i < count; ++i) take(batch[static_cast<std::size_t>(i)]);
    }
  }

  void poll_requests() noexcept {
    const std::unique_lock turn{reaping_, std::try_to_lock};
    if (!turn) return;
    for (const auto& each : own_->rails())
      take_all(each->sent(), [this](const ibv_wc& completion) noexcept {
        const request_id id = request_id::decode(completion.wr_id);
        link& peer_link = owner(id);
        const std::size_t queue = queue_of(id);
        peer_link.bytes()[queue].complete(id.number);
        if (completion.status != IBV_WC_SUCCESS)
          break_link(peer_link, queue, link_failure::code_of(completion.status));
        else
          peer_link.counts()[queue].complete(id.number);
      });
  }

  void take_arrivals() noexcept {
    for (const auto& each : own_->rails())
      take_all(each->received(),
               [this](const ibv_wc& completion) noexcept { take_arrival(completion); });
  }

  void take_arrival(const ibv_wc& completion) noexcept {
    const request_id id = request_id::decode(completion.wr_id);
    link& from = owner(id);
    if (completion.status != IBV_WC_SUCCESS)
      return break_link(from, queue_of(id), link_failure::code_of(completion.status));
    arrivals& coming = arrivals_[from.peer().index()];
    const auto raise = [&](const raised_signal& what, std::uint32_t held) noexcept {
      raise_signal(what);
      receive_again(from, 0, held);
    };
    if (const std::size_t queue = queue_of(id); queue != 0) {
      receive_again(from, queue, id.number);
      coming.fence_came(queue, raise);
    } else if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      coming.signal_came(short_notice::decode(ntohl(completion.imm_data)), id.number, raise);
    } else {
      notice full;
      std::memcpy(&full, own_->memory(own_->map().receive_buffer(from.peer(), id.number)),
                  sizeof full);
      coming.signal_came(full, id.number, raise);
    }
  }

  void raise_signal(const raised_signal& what) noexcept {
    const window_part* const part = windows_->find(what.window);
    if (part == nullptr || index(what.id) >= part->shape.signals) return;  // Released meanwhile.
    part->signal(what.id).raise_at_least(what.value);
  }

  void receive_again(link& from, std::size_t queue, std::uint32_t slot) noexcept {
    if (const int failed = from.post_receive(queue, slot); failed != 0)
      break_link(from, queue, link_failure::code_of_errno(failed));
  }

  [[nodiscard]] link& owner(request_id id) const noexcept {
    return links_[id.pair / own_->queues()];
  }
  [[nodiscard]] std::size_t queue_of(request_id id) const noexcept {
    return id.pair % own_->queues();
  }

  const resources* own_;
  std::span<link> links_;
  const window_table* windows_;
  std::vector<arrivals> arrivals_;  ///< indexed by [rank]; guarded by `polling_`

  registered::spin_guard polling_;
  registered::spin_guard reaping_;  ///< held while completions of requests are taken
  std::atomic<std::uint32_t> broken_{0};
};

}  // namespace peerbus::detail::rdma
