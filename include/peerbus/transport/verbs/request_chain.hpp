// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/registered/window_part.hpp>

namespace peerbus::detail::rdma {

/// Registered memory of this rank.
struct local_bytes {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint32_t key = 0;
};

/// The start of memory of a peer, with the key for one device.
using wire_place = registered::remote_place<std::uint32_t>;

/// The requests of one queue pair that are not posted yet, linked so that one doorbell posts all of
/// them. A write whose target continues the target of the write before joins its request, as one
/// more piece to gather.
///
/// Threads: one at a time.
class request_chain {
 public:
  static constexpr std::size_t most_requests = 16;
  static constexpr std::size_t most_pieces = 16;  ///< largest number of pieces of one request
  /// The largest size of a request that writes have joined, in bytes. A further write begins
  /// another request.
  static constexpr std::uint32_t most_merged_bytes = 1U << 20U;

  request_chain() noexcept {
    for (std::size_t i = 0; i < most_requests; ++i) requests_[i].sg_list = pieces_[i].data();
  }
  request_chain(const request_chain&) = delete;
  request_chain& operator=(const request_chain&) = delete;
  ~request_chain() = default;

  /// Sets the largest number of pieces that the device gathers.
  void limit_pieces(std::size_t most) noexcept { pieces_limit_ = std::min(most, most_pieces); }

  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  /// Returns whether nothing can be appended until `clear`.
  [[nodiscard]] bool full() const noexcept { return end_ == most_requests; }
  [[nodiscard]] std::uint32_t count() const noexcept { return end_ - begin_; }
  /// Returns the number of bytes that all requests carry.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the number of bytes that `request` carries.
  [[nodiscard]] static std::size_t bytes_of(const ibv_send_wr& request) noexcept {
    std::size_t sum = 0;
    for (int i = 0; i < request.num_sge; ++i) sum += request.sg_list[i].length;
    return sum;
  }

  /// Adds `from` to the last request, if it is a write that ends where `place` begins. Returns
  /// whether it did.
  [[nodiscard]] bool extend_write(const local_bytes& from, const wire_place& place) noexcept {
    if (empty()) return false;
    ibv_send_wr& last = this->last();
    if (last.opcode != IBV_WR_RDMA_WRITE || last.num_sge == 0 || last.wr.rdma.rkey != place.key ||
        last.wr.rdma.remote_addr + last_bytes_ != place.address ||
        last_bytes_ + std::uint64_t{from.length} > most_merged_bytes)
      return false;
    ibv_sge& end = last.sg_list[last.num_sge - 1];
    if (end.lkey == from.key && end.addr + end.length == from.address) {
      end.length += from.length;
    } else {
      if (static_cast<std::size_t>(last.num_sge) == pieces_limit_) return false;
      last.sg_list[last.num_sge++] = {from.address, from.length, from.key};
    }
    last_bytes_ += from.length;
    bytes_ += from.length;
    return true;
  }

  /// Appends a request. The chain must not be `full`. A length of 0 reads and writes nothing.
  ibv_send_wr& append(ibv_wr_opcode opcode, const local_bytes& local,
                      const wire_place& remote) noexcept {
    // Only what may have changed since its last use; the constructor has zeroed the rest.
    ibv_send_wr& request = requests_[end_];
    request.next = nullptr;
    request.num_sge = 0;
    request.opcode = opcode;
    request.send_flags = 0;
    request.wr.rdma.remote_addr = remote.address;
    request.wr.rdma.rkey = remote.key;
    if (local.length != 0) {
      request.sg_list[0] = {local.address, local.length, local.key};
      request.num_sge = 1;
    }
    if (!empty()) last().next = &request;
    ++end_;
    last_bytes_ = local.length;
    bytes_ += local.length;
    return request;
  }

  /// Returns the last request if it is a write that can still be given immediate data, otherwise
  /// null.
  [[nodiscard]] ibv_send_wr* last_plain_write() noexcept {
    if (empty() || last().opcode != IBV_WR_RDMA_WRITE) return nullptr;
    return &last();
  }

  [[nodiscard]] ibv_send_wr* first() noexcept { return &requests_[begin_]; }
  [[nodiscard]] ibv_send_wr& last() noexcept { return requests_[end_ - 1]; }
  /// Removes the requests before `kept`, which is in the chain, because the device has taken them.
  void drop_before(const ibv_send_wr& kept) noexcept {
    for (; first() != &kept; ++begin_) bytes_ -= bytes_of(*first());
  }
  void clear() noexcept {
    begin_ = 0;
    end_ = 0;
    bytes_ = 0;
    last_bytes_ = 0;
  }

 private:
  std::array<ibv_send_wr, most_requests> requests_{};
  std::array<std::array<ibv_sge, most_pieces>, most_requests> pieces_;
  std::size_t pieces_limit_ = most_pieces;
  std::uint32_t begin_ = 0;  ///< the first request, above 0 after `drop_before`
  std::uint32_t end_ = 0;
  std::uint32_t last_bytes_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace peerbus::detail::rdma
