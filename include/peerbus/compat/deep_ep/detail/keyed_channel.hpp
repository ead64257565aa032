// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/fnv_hash.hpp>

namespace peerbus::deep_ep::detail {

/// A channel: calls that share one exchange because their keys are equal. This base knows neither
/// transport nor codec.
template <class Key>
class keyed_channel : public pending_operations {
 public:
  explicit keyed_channel(const Key& shape) : shape_{shape} {}

  [[nodiscard]] const Key& shape() const noexcept { return shape_; }
  /// Returns whether calls of `wanted` can use this channel.
  [[nodiscard]] virtual bool has_room_for(const Key& wanted) const noexcept {
    return wanted == shape_;
  }
  /// Returns the number of this channel in its set, by the order in which the channels were made,
  /// which is the same on all ranks.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  void set_id(std::uint64_t id) noexcept { id_ = id; }
  /// Returns whether dispatch `number` has been received and not replaced. It may have been
  /// combined.
  [[nodiscard]] virtual bool is_received(std::uint64_t /*number*/) const noexcept { return false; }
  /// Returns whether a hook or event has not been called.
  [[nodiscard]] virtual bool anything_pending() const noexcept { return false; }
  /// Continues in the present view of the group.
  virtual void resume() {}
  /// Adds the progress of the channel's batches to `hash`.
  virtual void add_to(peerbus::detail::fnv_hash& /*hash*/) const {}
  ///@{
  /// Contract as in `agreeing_channels`, for an operation of this channel.
  virtual void refuse(const started_operation& /*begun*/, deadline /*until*/) {}
  virtual void finish_refusal(const started_operation& /*begun*/, deadline /*until*/) {}
  ///@}

 private:
  Key shape_;
  std::uint64_t id_ = 0;
};

}  // namespace peerbus::deep_ep::detail
