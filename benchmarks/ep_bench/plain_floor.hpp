// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/moe/stores.hpp>

namespace ep_bench {

using peerbus::moe::store_kind;

/// What moves the bytes of the limit.
class plain_floor {
 public:
  plain_floor() = default;
  plain_floor(const plain_floor&) = delete;
  plain_floor& operator=(const plain_floor&) = delete;
  virtual ~plain_floor() = default;

  /// Reads what is to be moved, as if it had just been computed.
  virtual void recall() const noexcept = 0;
  /// Moves the bytes of a dispatch.
  virtual void dispatch(store_kind stores) = 0;
  /// Moves the bytes of a combine.
  virtual void combine(store_kind stores) = 0;
  /// Returns the number of rows that this rank sends.
  [[nodiscard]] virtual std::size_t rows() const noexcept = 0;
};

}  // namespace ep_bench
