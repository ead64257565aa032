// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/request_id.hpp>

namespace peerbus::detail::rdma {

/// The sending half of a queue pair: a chain of requests that wait for their doorbell. Only the
/// last request of each post asks for a completion. Requests complete in order, so its completion
/// covers all requests before it.
///
/// A device may hold fewer requests than it has promised, and free their places only when a request
/// completes that asked for a completion. So the first request asks as well, unless the device has
/// already taken a chain of this length at once.
///
/// Threads: one at a time.
class send_queue {
 public:
  send_queue() = default;

  /// The counts of a queue pair's requests, and of the bytes of these requests.
  struct counters {
    registered::request_count& requests;
    byte_count& bytes;
  };

  /// Sets the queue up for `pair`. `number` is the number of the queue pair in `request_id`. The
  /// counters must outlive the queue.
  void open(ibv_qp& pair, counters counts, std::uint32_t number, std::uint32_t depth,
            const ibv_qp_cap& granted) noexcept {
    chain_.limit_pieces(granted.max_send_sge);
    pair_ = &pair;
    count_ = &counts.requests;
    bytes_ = &counts.bytes;
    number_ = number;
    depth_ = depth;
    most_inline_ = granted.max_inline_data;
  }
  /// Returns the number that `open` was given.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] request_chain& chain() noexcept { return chain_; }
  [[nodiscard]] const registered::request_count& count() const noexcept { return *count_; }

  /// Returns whether one more request may join the chain.
  [[nodiscard]] bool has_room() const noexcept {
    return !chain_.full() && count_->in_flight() + chain_.count() < depth_;
  }
  /// Returns whether all requests are posted and complete.
  [[nodiscard]] bool is_idle() const noexcept {
    return chain_.empty() && count_->completed_up_to(count_->posted());
  }
  /// Returns a number below `places(depth)` for the next request. No other request that is chained
  /// or in flight has this number.
  [[nodiscard]] std::uint32_t next_place() const noexcept {
    return (count_->posted() + chain_.count()) & (places(depth_) - 1);
  }
  [[nodiscard]] static constexpr std::uint32_t places(std::uint32_t depth) noexcept {
    return std::bit_ceil(depth);  // A power of two, so that the count of requests may wrap around.
  }

  /// Posts the chain, or as much of it as the device takes now. The rest stays in the chain, to
  /// which requests may still be added.
  /// Returns: 0, EAGAIN if the rest must wait until earlier requests complete, or the errno of a
  /// failure.
  [[nodiscard]] int post() noexcept {
    if (chain_.empty()) return 0;
    finish();
    const bool others = count_->in_flight() != 0;
    const std::uint32_t before = chain_.count();
    ibv_send_wr* refused = nullptr;
    const int failed = ibv_post_send(pair_, chain_.first(), &refused);
    // The device may count places in another way than `has_room` does. That is no error.
    const bool full =
        failed == ENOMEM && refused != nullptr && (others || refused != chain_.first());
    was_full_ = full;
    if (failed == 0) acked_ = std::max(acked_, before);
    if (failed != 0)
      for (const ibv_send_wr* left = refused; left != nullptr; left = left->next)
        bytes_->take_back(bytes_sent_by(*left));
    if (full)
      chain_.drop_before(*refused);
    else
      chain_.clear();
    // After a failure as well: those requests never complete, and nobody is to think they did.
    count_->note_posted(before - chain_.count());
    return full ? EAGAIN : failed;
  }

 private:
  [[nodiscard]] static std::size_t bytes_sent_by(const ibv_send_wr& request) noexcept {
    const bool carries = request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_SEND ||
                         request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    return carries ? request_chain::bytes_of(request) : 0;
  }

  void finish() noexcept {
    std::uint32_t position = count_->posted();
    for (ibv_send_wr* request = chain_.first(); request != nullptr; request = request->next) {
      // On all of them: one that fails completes whether it asked for that or not.
      request->wr_id = request_id{number_, ++position}.encode();
      request->send_flags = 0;  // An earlier post may have been refused, and the chain has grown.
      const std::size_t length = bytes_sent_by(*request);
      bytes_->note(position, length);
      if (length != 0 && length <= most_inline_) request->send_flags = IBV_SEND_INLINE;
    }
    if (was_full_ || chain_.count() > acked_) chain_.first()->send_flags |= IBV_SEND_SIGNALED;
    chain_.last().send_flags |= IBV_SEND_SIGNALED;
  }

  request_chain chain_;
  ibv_qp* pair_ = nullptr;
  registered::request_count* count_ = nullptr;
  byte_count* bytes_ = nullptr;
  std::uint32_t number_ = 0;
  std::uint32_t depth_ = 0;
  std::uint32_t most_inline_ = 0;
  std::uint32_t acked_ = 0;  ///< the longest chain that the device has taken at once
  bool was_full_ = false;    ///< whether the device has refused a part of the last post
};

}  // namespace peerbus::detail::rdma
