// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// Counts the bytes that a rank has put to all peers by one of its devices.
///
/// Threads: any.
class rail_load {
 public:
  // order: none in this class; the counts only choose a device, and say nothing about memory.
  void note_sent(std::uint64_t bytes) noexcept {
    sent_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void take_back(std::uint64_t bytes) noexcept {
    sent_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  void note_complete(std::uint64_t bytes) noexcept {
    complete_.fetch_add(bytes, std::memory_order_relaxed);
  }

  [[nodiscard]] std::uint64_t sent() const noexcept {
    return sent_.load(std::memory_order_relaxed);
  }
  /// Returns the number of bytes in flight, or 0 if bytes complete before the thread that sends
  /// them has counted them.
  [[nodiscard]] std::uint64_t outstanding() const noexcept {
    const std::uint64_t complete = complete_.load(std::memory_order_relaxed);
    const std::uint64_t all = sent();
    return all > complete ? all - complete : 0;
  }

 private:
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> complete_{0};
};

/// Counts the bytes of the requests of one queue pair, so that the completion of a request tells
/// the number of complete bytes. Counts nothing before `open`, because a rank with one device does
/// not need the counts.
///
/// Threads: `note` and `take_back` from one at a time, `complete` from one at a time.
class byte_count {
 public:
  /// Begins to count, and adds the counts to `load`. `places`, a power of two, is no less than the
  /// number of requests in flight.
  /// Throws: std::bad_alloc.
  void open(rail_load& load, std::uint32_t places) {
    totals_ = std::make_unique<std::atomic<std::uint64_t>[]>(places);
    mask_ = places - 1;
    load_ = &load;
  }
  [[nodiscard]] static constexpr std::size_t bytes_held(std::uint32_t places) noexcept {
    return places * sizeof(std::atomic<std::uint64_t>);
  }

  /// Notes that request `number` carries `bytes`. Call it before the request is posted.
  void note(std::uint32_t number, std::uint64_t bytes) noexcept {
    if (load_ == nullptr) return;
    total_ += bytes;
    // order: none; the device hands the request on to the thread that takes its completion.
    totals_[number & mask_].store(total_, std::memory_order_relaxed);
    load_->note_sent(bytes);
  }
  /// Notes that the device has refused the last requests, which carry `bytes` bytes.
  void take_back(std::uint64_t bytes) noexcept {
    if (load_ == nullptr || bytes == 0) return;
    total_ -= bytes;
    load_->take_back(bytes);
  }
  /// Notes that all requests up to `number` are complete, or have failed.
  void complete(std::uint32_t number) noexcept {
    if (load_ == nullptr) return;
    const std::uint64_t total = totals_[number & mask_].load(std::memory_order_relaxed);
    load_->note_complete(total - complete_);
    complete_ = total;
  }

 private:
  rail_load* load_ = nullptr;
  std::unique_ptr<std::atomic<std::uint64_t>[]> totals_;  ///< total bytes after each request, by
                                                          ///< its number
  std::uint32_t mask_ = 0;
  std::uint64_t total_ = 0;     ///< bytes of all requests that were posted
  std::uint64_t complete_ = 0;  ///< bytes of complete requests
};

}  // namespace peerbus::detail::rdma
