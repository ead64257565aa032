// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/copy.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/stream.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>

namespace peerbus::moe {

/// The stores of one lane for the rows of one batch: streaming stores if the batch has a given
/// size, otherwise plain ones. A row that is computed is made in a buffer of `row_buffers`, which
/// stays in the first-level cache, and copied from there to each of its places. So any codec can be
/// streamed.
///
/// The destructor orders the stores before later ones of this thread, so that the signal that
/// follows covers them (docs/proofs.md).
class row_stream {
 public:
  /// The rows that this rank stores for a batch.
  struct batch_size {
    std::size_t rows;       ///< copies of tokens, at most
    std::size_t row_bytes;  ///< bytes of one row, without its scales
  };

  /// Streams the rows if they have `stream_from` bytes or more in all and fit into a buffer of
  /// `row_buffers`, and otherwise stores them plainly.
  row_stream(const batch_size& batch, std::size_t stream_from) noexcept
      : on_{batch.rows * batch.row_bytes >= stream_from &&
            batch.row_bytes <= row_buffers::most_bytes} {}
  row_stream(const row_stream&) = delete;
  row_stream& operator=(const row_stream&) = delete;
  ~row_stream() {
    if (on_) kernel::fence_streams();
  }

  /// Returns whether rows are streamed.
  explicit operator bool() const noexcept { return on_; }

  /// Copies a row of `bytes` bytes, by streaming or by plain stores.
  void copy(std::byte* out, const std::byte* source, std::size_t bytes) const noexcept {
    if (on_)
      kernel::stream(kernels_, out, source, bytes);
    else
      peerbus::detail::copy_bytes(out, source, bytes);
  }

 private:
  const kernel::kernel_set& kernels_ = kernel::best();
  bool on_;
};

}  // namespace peerbus::moe
