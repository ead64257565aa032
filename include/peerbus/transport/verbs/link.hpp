// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/registered/guarded.hpp>
#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/link_failure.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>
#include <peerbus/transport/verbs/rail.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/request_id.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/result_entries.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

namespace peerbus::detail::rdma {

/// The state that sending to one peer changes.
struct outgoing {
  std::unique_ptr<send_queue[]> queues;  ///< queues, indexed by [queue pair]
  signal_names names;
  /// The queue pairs, except the first, that have puts since the last signal.
  queue_set unsignalled = 0;
  /// The queue pairs that have puts since the last `quiet`, one bit each.
  std::uint32_t unacked = 0;
  remote_place quiet_word;  ///< the peer's word for `quiet` of this rank
  std::size_t current = 0;  ///< the queue pair that the last put went to
  /// The time at which a wait may next ask the device whether the peer can be reached. It is kept
  /// here and not in the wait, so that many short waits ask as often as a long wait.
  deadline next_probe = deadline::never();

  /// Notes that a put uses queue pair `number`.
  void note_write(std::size_t number) noexcept {
    unacked |= 1U << number;
    if (number != 0) unsignalled |= static_cast<queue_set>(1U << (number - 1));
  }
};

/// A connection to one peer, for one class of traffic.
///
/// Threads: `open` before all else, the rest from any.
class link {
 public:
  link() = default;
  link(const link&) = delete;
  link& operator=(const link&) = delete;
  ~link() = default;

  /// Makes the queue pairs to `peer`, which can receive from then on.
  /// Throws: `error` out_of_memory, system; std::bad_alloc.
  void open(const resources& own, rank_id peer) {
    own_ = &own;
    peer_ = peer;
    const std::uint32_t queues = own.queues();
    counts_ = std::make_unique<registered::request_count[]>(queues);
    bytes_ = std::make_unique<byte_count[]>(queues);
    if (own.is_bulk()) pending_.open(own.options().queue_depth);
    const auto out = out_.lock();
    out->queues = std::make_unique<send_queue[]>(queues);
    out->next_probe = deadline::after(own.options().probe_interval);
    for (std::uint32_t q = 0; q < queues; ++q) {
      ibv_qp_cap granted{};
      const rail& own_rail = *own.rails()[own.rail_of(q)];
      ibv_qp& pair = *pairs_.emplace_back(own_rail.make_queue_pair(granted));
      if (own.counts_bytes())
        bytes_[q].open(own_rail.load(), send_queue::places(own.options().queue_depth));
      out->queues[q].open(pair, {counts_[q], bytes_[q]}, request_id::pair_of(peer, q, queues),
                          own.options().queue_depth, granted);
      for (std::uint32_t slot = 0; slot < receive_depth; ++slot)
        if (const int failed = post_receive(q, slot); failed != 0)
          throw system_failure(
              concat("verbs: posting a receive request with ", own_rail.port().describe()), failed);
    }
  }

  [[nodiscard]] rank_id peer() const noexcept { return peer_; }
  [[nodiscard]] std::span<const queue_pair> pairs() const noexcept { return pairs_; }
  [[nodiscard]] std::span<registered::request_count> counts() const noexcept {
    return {counts_.get(), pairs_.size()};
  }
  [[nodiscard]] std::span<byte_count> bytes() const noexcept {
    return {bytes_.get(), pairs_.size()};
  }
  [[nodiscard]] registered::guarded<outgoing>& out() noexcept { return out_; }
  [[nodiscard]] result_entries& results() noexcept { return results_; }
  /// Returns the calls that are sent in slices. Open only on links for bulk traffic.
  [[nodiscard]] pending_calls& pending() noexcept { return pending_; }
  [[nodiscard]] const pending_calls& pending() const noexcept { return pending_; }
  [[nodiscard]] link_failure& failure() noexcept { return failure_; }
  [[nodiscard]] const link_failure& failure() const noexcept { return failure_; }

  /// Lets the device receive one more notice, into buffer `slot` for the peer.
  /// Returns: 0, or the errno with which the device refuses the receive request.
  [[nodiscard]] int post_receive(std::size_t queue, std::uint32_t slot) const noexcept {
    const local_bytes buffer =
        own_->registered(queue, own_->map().receive_buffer(peer_, slot), sizeof(notice));
    ibv_sge piece{buffer.address, buffer.length, buffer.key};
    ibv_recv_wr request{};
    request.wr_id = request_id{request_id::pair_of(peer_, queue, own_->queues()), slot}.encode();
    if (queue == 0) {  // Notices on the others are immediate data alone.
      request.sg_list = &piece;
      request.num_sge = 1;
    }
    ibv_recv_wr* refused = nullptr;
    return ibv_post_recv(pairs_[queue].get(), &request, &refused);
  }

  /// Returns the number of requests on all queue pairs that are complete. `in_flight` counts
  /// requests that are posted and not complete.
  [[nodiscard]] std::uint32_t completed() const noexcept {
    std::uint32_t sum = 0;
    for (const registered::request_count& count : counts()) sum += count.completed();
    return sum;
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    std::uint32_t sum = 0;
    for (std::size_t q = 0; q < pairs_.size(); ++q) sum += in_flight(q);
    return sum;
  }
  [[nodiscard]] std::uint32_t in_flight(std::size_t queue) const noexcept {
    // Below 0 for a moment if another thread counts.
    const auto open = static_cast<std::int32_t>(counts()[queue].in_flight());
    return open > 0 ? static_cast<std::uint32_t>(open) : 0;
  }
  /// Returns the number of the queue pair with the most requests in flight.
  [[nodiscard]] std::size_t busiest_queue() const noexcept {
    std::size_t busiest = 0;
    for (std::size_t q = 1; q < pairs_.size(); ++q)
      if (in_flight(q) > in_flight(busiest)) busiest = q;
    return busiest;
  }

 private:
  const resources* own_ = nullptr;
  rank_id peer_;
  std::vector<queue_pair> pairs_;
  std::unique_ptr<registered::request_count[]> counts_;
  std::unique_ptr<byte_count[]> bytes_;
  registered::guarded<outgoing> out_;
  result_entries results_;
  pending_calls pending_;  ///< added to and sent under the lock of `out_`
  link_failure failure_;
};

}  // namespace peerbus::detail::rdma
