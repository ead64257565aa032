// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/staging_map.hpp>

namespace peerbus::moe {

enum class row_part : std::uint8_t { row, scales, origin, experts, weights, attachment };

/// One part of all rows: the array that it has at the receiver and the one that it leaves from.
struct row_column {
  row_part what;
  bool packed;           ///< staged by copy, in the order of destinations; else by token
  std::size_t number;    ///< of the attachment
  std::size_t bytes;     ///< per row
  std::size_t received;  ///< offset of the receiver's array in a batch set
  std::size_t staged;    ///< and of the sender's
};

/// The parts that rows that are put have, the row itself first.
class row_columns {
 public:
  explicit row_columns(const memory_map& map) noexcept {
    const staging_map& from = map.staged;
    add({row_part::row, false, 0, map.format.row_bytes, map.rows, from.rows});
    add_small({row_part::scales, false, 0, map.format.scale_bytes, map.scales, from.scales},
              from.packed_scales);
    add({row_part::origin, true, 0, sizeof(wire_origin), map.origins, from.packed_origins});
    add({row_part::experts, true, 0, map.slot_bytes, map.experts, from.packed_experts});
    add({row_part::weights, true, 0, map.slot_bytes, map.weights, from.packed_weights});
    for (std::size_t a = 0; a < max_attachments; ++a)
      add_small({row_part::attachment, false, a, map.attachment_bytes[a], map.attachments[a],
                 from.attachments[a]},
                from.packed_attachments[a]);
  }

  [[nodiscard]] const row_column* begin() const noexcept { return columns_.data(); }
  [[nodiscard]] const row_column* end() const noexcept { return columns_.data() + count_; }

 private:
  void add(const row_column& one) noexcept {
    if (one.bytes != 0) columns_[count_++] = one;
  }
  void add_small(row_column one, std::size_t packed) noexcept {
    if (staging_map::packs(one.bytes)) {
      one.packed = true;
      one.staged = packed;
    }
    add(one);
  }

  std::array<row_column, 5 + max_attachments> columns_{};
  std::size_t count_ = 0;
};

}  // namespace peerbus::moe
