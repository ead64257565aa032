// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// The sending half of a queue pair: requests that wait for their doorbell, and how many are on
/// their way. The last request of each post asks for a completion, the others do not; requests
/// complete in order, so it speaks for all before it.
///
/// Threads: one at a time, but for `complete` and the questions about completion.
class send_queue {
 public:
  send_queue() = default;

  /// `number` tells the queue's completions from those of others.
  void open(queue_pair pair, std::uint32_t number, std::uint32_t depth, const ibv_qp_cap& granted) {
    chain_.limit_pieces(granted.max_send_sge);
    pair_ = std::move(pair);
    number_ = number;
    depth_ = depth;
    most_inline_ = granted.max_inline_data;
  }
  [[nodiscard]] ibv_qp* pair() const noexcept { return pair_.get(); }
  [[nodiscard]] request_chain& chain() noexcept { return chain_; }

  /// Whether one more request may join the chain.
  [[nodiscard]] bool has_room() const noexcept {
    return !chain_.full() && on_their_way() + chain_.count() < depth_;
  }
  /// A number below `places(depth)` for the next request: no other that is on its way has the same.
  [[nodiscard]] std::uint32_t next_place() const noexcept {
    return (posted() + chain_.count()) & (places(depth_) - 1);
  }
  [[nodiscard]] static constexpr std::uint32_t places(std::uint32_t depth) noexcept {
    return std::bit_ceil(depth);  // A power of two, so that the count of requests may wrap around.
  }

  /// Posts the chain, or as much of it as the device takes now. The rest stays in the chain, to
  /// which requests may be added as before.
  /// Returns: 0, EAGAIN if the rest must wait until earlier requests complete, or what broke.
  [[nodiscard]] int post() noexcept {
    if (chain_.empty()) return 0;
    finish(chain_);
    const bool others = on_their_way() != 0;
    const std::uint32_t before = chain_.count();
    ibv_send_wr* refused = nullptr;
    const int failed = ibv_post_send(pair_.get(), chain_.first(), &refused);
    // The device may count places in another way than `has_room` does. That is no error.
    const bool full =
        failed == ENOMEM && refused != nullptr && (others || refused != chain_.first());
    if (full)
      chain_.drop_before(*refused);
    else
      chain_.clear();
    // After a failure as well: those requests never complete, and nobody is to think they did.
    posted_.store(posted() + before - chain_.count(), std::memory_order_relaxed);
    return full ? EAGAIN : failed;
  }

  /// Requests so far, chain excluded; they are complete once `completed_up_to` says so.
  [[nodiscard]] std::uint32_t posted() const noexcept {
    return posted_.load(std::memory_order_relaxed);  // order: none; whoever posts knows it.
  }
  [[nodiscard]] bool completed_up_to(std::uint32_t posted) const noexcept {
    // order: acquire; pairs with the release in `complete`: what was got is there.
    const std::uint32_t done = completed_.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(done - posted) >= 0;
  }
  void complete(std::uint32_t up_to) noexcept {
    completed_.store(up_to, std::memory_order_release);
  }

  /// Posted and not complete.
  [[nodiscard]] std::uint32_t on_their_way() const noexcept {
    return posted() - completed_.load(std::memory_order_acquire);  // order: as above.
  }

 private:
  void finish(request_chain& chain) const noexcept {
    std::uint32_t position = posted();
    for (ibv_send_wr* one = chain.first(); one != nullptr; one = one->next) {
      // On all of them: one that fails completes whether it asked for that or not.
      one->wr_id = std::uint64_t{number_} << 32U | ++position;
      one->send_flags = 0;  // An earlier post may have been refused, and the chain has grown.
      const std::size_t length = request_chain::bytes_of(*one);
      const bool carries = one->opcode == IBV_WR_RDMA_WRITE || one->opcode == IBV_WR_SEND ||
                           one->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      if (carries && length != 0 && length <= most_inline_) one->send_flags = IBV_SEND_INLINE;
    }
    chain.last().send_flags |= IBV_SEND_SIGNALED;
  }

  queue_pair pair_;
  request_chain chain_;
  std::uint32_t number_ = 0;
  std::uint32_t depth_ = 0;
  std::uint32_t most_inline_ = 0;
  std::atomic<std::uint32_t> posted_{0};
  std::atomic<std::uint32_t> completed_{0};
};

}  // namespace peerbus::detail::rdma
