// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

#include <peerbus/core/align.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/stream.hpp>

namespace peerbus::moe {

/// The stores of one lane for the rows of one batch: streaming stores if the batch is large,
/// otherwise plain ones. A row that is computed is made in `row()`, which stays in the first-level
/// cache, and copied from there to each of its places. So any codec can be streamed.
///
/// The destructor orders the stores before later ones of this thread, so that the signal that
/// follows covers them (docs/memory_model.md).
class row_stream {
 public:
  /// The longest row that `row()` holds. Longer ones are not streamed. The buffer lies on the stack
  /// of the lane.
  static constexpr std::size_t most_bytes = std::size_t{32} * 1024;

  /// The rows that this rank stores for a batch.
  struct batch_size {
    std::size_t rows;       ///< copies of tokens, at most
    std::size_t row_bytes;  ///< bytes of one row, without its scales
  };

  /// Streams the rows if they have `stream_from` bytes or more in all, and otherwise stores them
  /// plainly.
  row_stream(const batch_size& batch, std::size_t stream_from) noexcept
      : on_{batch.rows * batch.row_bytes >= stream_from && batch.row_bytes <= most_bytes} {}
  row_stream(const row_stream&) = delete;
  row_stream& operator=(const row_stream&) = delete;
  ~row_stream() {
    if (on_) kernel::fence_streams();
  }

  /// Returns whether rows are streamed.
  explicit operator bool() const noexcept { return on_; }

  /// Returns the memory in which a row is made before it is copied.
  [[nodiscard]] std::byte* row() noexcept { return row_; }

  /// Copies a row of `bytes` bytes, by streaming or by plain stores.
  void copy(std::byte* out, const std::byte* source, std::size_t bytes) const noexcept {
    if (on_)
      kernel::stream(kernels_, out, source, bytes);
    else
      std::memcpy(out, source, bytes);
  }

 private:
  const kernel::kernel_set& kernels_ = kernel::best();
  bool on_;
  alignas(cache_line_bytes) std::byte row_[most_bytes];
};

}  // namespace peerbus::moe
