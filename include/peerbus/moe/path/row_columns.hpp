// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/staging_map.hpp>

namespace peerbus::moe {

/// A kind of data of a row.
enum class row_part : std::uint8_t {
  row,        ///< the token, encoded
  scales,     ///< the codec's scales
  origin,     ///< a `wire_origin`
  experts,    ///< local expert ids of the slots, layouts by rank only
  weights,    ///< weights of the slots, layouts by rank only
  attachment  ///< one of the tensors that travel with the tokens
};

/// One kind of data of all rows, with its array at the receiver and its staging array at the
/// sender.
struct row_column {
  row_part what;         ///< kind of data
  bool packed;           ///< true: staged by copy, in the order of destinations; false: by token
  std::size_t number;    ///< index of the attachment
  std::size_t bytes;     ///< bytes of the data of one row
  std::size_t received;  ///< offset of the receiver's array in a batch set
  std::size_t staged;    ///< offset of the sender's staging array in a batch set
};

/// The columns of rows that are put. The rows themselves come first, and kinds of data that rows do
/// not have are left out.
class row_columns {
 public:
  /// Lists the columns of an exchange with this map.
  explicit row_columns(const memory_map& map) noexcept {
    const staging_map& staging = map.staged;
    add({row_part::row, false, 0, map.format.row_bytes, map.rows, staging.rows});
    add_small({row_part::scales, false, 0, map.format.scale_bytes, map.scales, staging.scales},
              staging.packed_scales);
    add({row_part::origin, true, 0, sizeof(wire_origin), map.origins, staging.packed_origins});
    add({row_part::experts, true, 0, map.slot_bytes, map.experts, staging.packed_experts});
    add({row_part::weights, true, 0, map.slot_bytes, map.weights, staging.packed_weights});
    for (std::size_t a = 0; a < max_attachments; ++a)
      add_small({row_part::attachment, false, a, map.attachment_bytes[a], map.attachments[a],
                 staging.attachments[a]},
                staging.packed_attachments[a]);
  }

  /// Returns the first column, that of the rows, unless rows have no bytes.
  [[nodiscard]] const row_column* begin() const noexcept { return columns_.data(); }
  /// Returns the end of the columns.
  [[nodiscard]] const row_column* end() const noexcept { return columns_.data() + count_; }

 private:
  void add(const row_column& column) noexcept {
    if (column.bytes != 0) columns_[count_++] = column;
  }
  /// Adds a column that is packed if it is small. `packed` is the offset of its packed array.
  void add_small(row_column column, std::size_t packed) noexcept {
    if (staging_map::packs(column.bytes)) {
      column.packed = true;
      column.staged = packed;
    }
    add(column);
  }

  std::array<row_column, 5 + max_attachments> columns_{};
  std::size_t count_ = 0;
};

}  // namespace peerbus::moe
