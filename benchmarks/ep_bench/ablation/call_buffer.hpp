// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include "support/pages.hpp"

namespace ep_bench {

/// Whether the basic flow allocates its buffers in every call and frees them at its end, or once.
enum class buffers { per_call, kept };

/// Private memory of a call: new pages each time it is taken, huge ones where the machine has any,
/// or always the same.
class call_buffer {
 public:
  /// `capacity`: the most bytes that are ever taken, for a kept buffer.
  call_buffer(buffers kind, std::size_t capacity) : kind_{kind} {
    if (kind == buffers::kept) pages_.emplace(capacity);
  }

  std::byte* take(std::size_t bytes) {
    if (kind_ == buffers::per_call) pages_.emplace(bytes);
    return data();
  }
  /// What was taken last.
  [[nodiscard]] std::byte* data() const noexcept { return pages_->all().data(); }
  void give_back() noexcept {
    if (kind_ == buffers::per_call) pages_.reset();
  }

 private:
  buffers kind_;
  std::optional<bench::pages<std::byte>> pages_;
};

}  // namespace ep_bench
