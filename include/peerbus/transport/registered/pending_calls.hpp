// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <memory>

#include <peerbus/transport/registered/request_count.hpp>

namespace peerbus::detail::registered {

/// Calls to one peer that have returned and are sent later, in their order. `Call` holds the unsent
/// rest of a call.
///
/// Threads: `is_empty`, `added` and `sent_up_to` from any, the rest from one at a time.
template <class Call>
class pending_calls {
 public:
  /// Makes room for `depth` calls. Before it is called, there is no room.
  /// Throws: std::bad_alloc.
  void open(std::uint32_t depth) {
    calls_ = std::make_unique<Call[]>(places(depth));
    depth_ = depth;
  }
  [[nodiscard]] bool is_open() const noexcept { return depth_ != 0; }
  /// Returns the number of places for `depth` calls: a power of two, so that counts may wrap
  /// around.
  [[nodiscard]] static constexpr std::uint32_t places(std::uint32_t depth) noexcept {
    return std::bit_ceil(depth);
  }

  [[nodiscard]] bool has_room() const noexcept { return count() < depth_; }
  /// Returns the place of the next call. There must be room. `note_added` adds the call.
  [[nodiscard]] Call& next() noexcept { return at(count_.posted()); }
  void note_added() noexcept { count_.note_posted(1); }
  [[nodiscard]] bool is_empty() const noexcept { return count() == 0; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_.in_flight(); }
  /// Returns the call to send after `before` other calls. There must be more than `before`.
  [[nodiscard]] Call& first(std::uint32_t before = 0) noexcept {
    return at(count_.completed() + before);
  }
  /// Removes the first `calls` calls.
  void note_sent(std::uint32_t calls = 1) noexcept { count_.complete(count_.completed() + calls); }

  /// Returns the number of calls that were ever added.
  [[nodiscard]] std::uint32_t added() const noexcept { return count_.posted(); }
  [[nodiscard]] bool sent_up_to(std::uint32_t number) const noexcept {
    return count_.completed_up_to(number);
  }

 private:
  [[nodiscard]] Call& at(std::uint32_t number) noexcept {
    return calls_[number & (places(depth_) - 1)];
  }

  std::unique_ptr<Call[]> calls_;
  std::uint32_t depth_ = 0;
  request_count count_;
};

}  // namespace peerbus::detail::registered
