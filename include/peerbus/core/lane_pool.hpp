// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/lane_barrier.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::detail {

/// The lanes of one rank. Lane 0 carries out operations and gives the other lanes shares of the
/// work. Only lane 0 communicates with other ranks, so that an operation supports lanes by calling
/// `share` where it has much to do.
class lane_pool {
 public:
  /// The smallest number of bytes that lanes divide among themselves. Giving a share to a lane
  /// takes longer than working on fewer bytes.
  static constexpr std::size_t least_shared_bytes = std::size_t{16} << 10U;

  /// Work that lanes divide. Lane `index` handles the items from `begin` to the item before `end`.
  using work = function_ref<void(std::size_t index, std::size_t begin, std::size_t end)>;

  /// Carries out `operation` by all lanes, which call this function. Lane 0 calls `operation()`
  /// once all lanes have called. The other lanes help until it has ended. All return, or throw the
  /// exception of `operation`. If lanes do not fit together, as for `lane_barrier::serial`, or if a
  /// lane does not call before `until()`, calls `unfit(code, text)`, which throws. A single lane
  /// only calls `operation()`.
  template <class Operation, class Until, class Unfit>
  void carry_out(lane caller, Operation&& operation, Until&& until, Unfit&& unfit,
                 const char* call = nullptr) {
    if (caller.index == 0 && caller.count == 1)
      return team_.serial(caller, deadline::never(), operation, unfit);
    carry_out_together(caller, operation, until, unfit, call);
  }

  /// Returns the number of lanes of the operation that lane 0 carries out now, or 1 if there is
  /// none.
  [[nodiscard]] std::size_t lanes() const noexcept { return lanes_; }

  /// Calls `share_of` for a share of `items` items on each lane, at the same time, and returns when
  /// all shares are done. Shares begin at multiples of `granule`. There are at most `most` shares.
  /// `share_of` throws nothing. Only lane 0 may call this, in an operation.
  /// Cost: a signal to the lanes and one from each; no allocation.
  void share(std::size_t items, std::size_t granule, work share_of,
             std::size_t most = max_lanes) noexcept {
    if (lanes_ == 1) return share_of(0, 0, items);
    share_together({share_of, items, granule, std::min(most, lanes_)});
  }

 private:
  /// Work for all lanes.
  struct job {
    work share_of;
    std::size_t items;
    std::size_t granule;
    std::size_t shares;

    /// Does the share of lane `index`, if it has one.
    void operator()(std::size_t index) const noexcept;
  };
  using operation_ref = function_ref<void()>;
  using until_ref = function_ref<deadline()>;
  using unfit_ref = function_ref<void(errc, const std::string&)>;

  void carry_out_together(lane caller, operation_ref operation, until_ref until, unfit_ref unfit,
                          const char* call);
  void share_together(const job& given) noexcept;
  /// Gives `given` to the other lanes. nullptr ends their help.
  void post(const job* given) noexcept;
  /// Does shares until lane 0 ends the help of the other lanes.
  void help(std::size_t index) noexcept;

  static constexpr std::uint64_t bit_of(std::size_t index) noexcept {
    return std::uint64_t{1} << index;
  }
  /// Returns whether a lane of `bits` has timed out.
  [[nodiscard]] bool is_lost(std::uint64_t bits) const noexcept {
    // order: relaxed; no other data is read.
    return (lost_.load(std::memory_order_relaxed) & bits) != 0;
  }
  static_assert(max_lanes <= 64);

  lane_barrier team_;
  std::size_t lanes_ = 1;         // Lane 0 writes and reads it.
  std::uint64_t posts_ = 0;       // Lane 0 writes and reads it.
  std::uint64_t first_post_ = 0;  // Of the operation. Written while all lanes wait.
  const job* job_ = nullptr;      // Published by `posted_`.
  signal_word posted_;
  std::array<signal_word, max_lanes> helped_;  // By lane: the latest post that it has done.
  std::atomic<std::uint64_t> lost_{0};  // By lane: a bit if it has timed out while lane 0 came.
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/lane_pool.ipp>  // IWYU pragma: keep
#endif
