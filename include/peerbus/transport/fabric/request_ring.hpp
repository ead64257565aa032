// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/registered/request_count.hpp>

namespace peerbus::detail::ofi {

class link;

/// A request that the provider holds. Its completion carries the address of `context`.
struct request {
  fi_context2 context{};  ///< memory of the provider while the request is in flight
  link* owner = nullptr;  ///< the link of the request; null for a receive
  std::uint32_t place = 0;
  bool done = false;

  [[nodiscard]] static request& of(void* context) noexcept {
    return *static_cast<request*>(context);
  }
};
static_assert(std::is_standard_layout_v<request>);  // So `context` lies at the request's address.

/// The requests to one peer that may be in flight. They may complete in any order. A request counts
/// as complete once it and all earlier requests are complete.
///
/// Threads: `next` and `note_posted` from one at a time, `complete` from one at a time.
class request_ring {
 public:
  void open(link& owner, std::uint32_t depth) {
    depth_ = depth;
    requests_ = std::make_unique<request[]>(places(depth));
    for (std::uint32_t i = 0; i < places(depth); ++i) {
      requests_[i].owner = &owner;
      requests_[i].place = i;
    }
  }
  /// Returns the number of places for `depth` requests: a power of two, so that counts may wrap
  /// around.
  [[nodiscard]] static constexpr std::uint32_t places(std::uint32_t depth) noexcept {
    return std::bit_ceil(depth);
  }

  [[nodiscard]] bool has_room() const noexcept { return count_.in_flight() < depth_; }
  /// Returns the request to post next. There must be room.
  [[nodiscard]] request& next() noexcept { return at(count_.posted()); }
  void note_posted() noexcept { count_.note_posted(1); }

  void complete(request& finished) noexcept {
    finished.done = true;
    std::uint32_t number = count_.completed();
    for (; at(number).done; ++number) at(number).done = false;
    count_.complete(number);
  }

  [[nodiscard]] const registered::request_count& count() const noexcept { return count_; }
  [[nodiscard]] bool is_idle() const noexcept { return count_.completed_up_to(count_.posted()); }

 private:
  [[nodiscard]] request& at(std::uint32_t number) noexcept {
    return requests_[number & (places(depth_) - 1)];
  }

  std::unique_ptr<request[]> requests_;
  std::uint32_t depth_ = 1;
  registered::request_count count_;
};

}  // namespace peerbus::detail::ofi
