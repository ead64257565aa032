// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>

namespace peerbus::deep_ep::detail {

/// What expanded calls must have in common to share memory.
struct expanded_shape {
  bool bytes = false;  ///< rows of bytes, otherwise of bf16
  std::size_t hidden = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;
  bool weighted = false;
  std::size_t alignment = 1;
  bool zero_padding = false;
  friend bool operator==(const expanded_shape&, const expanded_shape&) = default;
};

/// Expanded calls of one shape, whatever carries them.
class expanded_channel : public pending_operations {
 public:
  explicit expanded_channel(const expanded_shape& shape) : shape_{shape} {}
  [[nodiscard]] const expanded_shape& shape() const noexcept { return shape_; }
  virtual elastic_dispatch_result dispatch(const elastic_dispatch_args& args) = 0;
  virtual elastic_combine_result combine(const elastic_combine_args& args) = 0;

 private:
  expanded_shape shape_;
};

}  // namespace peerbus::deep_ep::detail
