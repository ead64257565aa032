// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/registered/request_count.hpp>

namespace peerbus::detail::ofi {

/// A call on a bulk window that has returned, and is sent in slices later.
struct pending_call {
  enum class kind : std::uint8_t { write, read, notice };

  kind what = kind::notice;
  ///@{
  /// The part of a write or a read that is not posted yet.
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  void* key = nullptr;
  remote_place place{};
  ///@}
  notice head{};
  std::array<std::byte, notice::most_payload> payload;  ///< `head.bytes` of it are set
};

/// The pending calls to one peer, in their order.
///
/// Threads: `is_empty`, `added` and `sent_up_to` from any, the rest from one at a time.
class pending_calls {
 public:
  /// Makes room for `depth` calls. Without it there is room for none.
  void open(std::uint32_t depth) {
    calls_ = std::make_unique<pending_call[]>(places(depth));
    depth_ = depth;
  }
  [[nodiscard]] bool is_open() const noexcept { return depth_ != 0; }
  /// A power of two, so that counts may wrap around.
  [[nodiscard]] static constexpr std::uint32_t places(std::uint32_t depth) noexcept {
    return std::bit_ceil(depth);
  }

  [[nodiscard]] bool has_room() const noexcept { return count_.in_flight() < depth_; }
  /// The place of the next call, if there is room. `note_added` adds it.
  [[nodiscard]] pending_call& next() noexcept { return at(count_.posted()); }
  void note_added() noexcept { count_.note_posted(1); }
  [[nodiscard]] bool is_empty() const noexcept { return count_.in_flight() == 0; }
  /// The call to send next, if there is any. `note_sent` removes it.
  [[nodiscard]] pending_call& first() noexcept { return at(count_.completed()); }
  void note_sent() noexcept { count_.complete(count_.completed() + 1); }

  /// Returns the number of calls that were ever added.
  [[nodiscard]] std::uint32_t added() const noexcept { return count_.posted(); }
  [[nodiscard]] bool sent_up_to(std::uint32_t number) const noexcept {
    return count_.completed_up_to(number);
  }

 private:
  [[nodiscard]] pending_call& at(std::uint32_t number) noexcept {
    return calls_[number & (places(depth_) - 1)];
  }

  std::unique_ptr<pending_call[]> calls_;
  std::uint32_t depth_ = 0;
  registered::request_count count_;
};

}  // namespace peerbus::detail::ofi
