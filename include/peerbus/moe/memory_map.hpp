// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/staging_map.hpp>

namespace peerbus::moe {

/// Bytes of one row of tokens on the wire, as the codec has it.
struct row_format {
  std::size_t row_bytes = 0;
  std::size_t scale_bytes = 0;
};

/// Needs of a road towards each rank's window.
struct road_memory {
  bool stages = false;              ///< whether rows pass through registered memory of their sender
  bool outputs_may_be_home = true;  ///< whether experts can store outputs at their home ranks
};

/// What travels beside each row: whose token it is, and in which slot its output goes home. The
/// triple that Ascend's operators call the assist info.
struct wire_origin {
  std::uint32_t token;
  std::uint16_t rank;
  std::uint16_t slot;
};
static_assert(sizeof(wire_origin) == 8);

/// How counts of rows travel: as narrow as the most tokens allow, since every rank reads those of
/// all ranks.
constexpr std::size_t count_bytes_for(std::size_t max_tokens) noexcept {
  if (max_tokens <= std::numeric_limits<std::uint8_t>::max()) return 1;
  return max_tokens <= std::numeric_limits<std::uint16_t>::max() ? 2 : 4;
}

/// Where everything lies in one rank's part of an exchange's window, in bytes from its start, and
/// how large that is. Exact: the exchange allocates `total` and touches no more. Besides, the
/// window has its signals, 3 x in_flight x ranks of `sizeof(signal_word)`, and each rank keeps, in
/// ordinary memory, plans of about 28 bytes per slot of max_tokens x top_k x in_flight, and on
/// roads that stage 8 more and 8 per row. Rows are counted for the worst case, in which every rank
/// sends all it may to this one; memory that no row reaches is never touched. What belongs to a
/// batch is there `in_flight` times: the offsets are those of the first, each further one begins
/// `set_bytes` later.
struct memory_map {
  /// Space before the counts in a count message, for the sender's refusal.
  static constexpr std::size_t header_bytes = cache_line_bytes;

  /// Notes begin at multiples of this many bytes.
  static constexpr std::size_t note_alignment = 8;

  std::size_t in_flight;
  std::size_t row_capacity;   ///< rows that can arrive in one dispatch
  bool outputs_home;          ///< whether outputs lie at their token's home rank
  std::size_t output_rows;    ///< rows of outputs that this rank keeps room for
  std::size_t copies;         ///< the most rows that one token becomes
  std::size_t count_bytes;    ///< of one count
  std::size_t note_at;        ///< start of the note in a count message
  std::size_t message_bytes;  ///< one count message: header, a count per block, the rank's note
  row_format format;
  std::size_t hidden;
  std::array<std::size_t, max_attachments> attachment_bytes;
  std::size_t output_attachment_bytes;
  std::size_t slot_bytes;  ///< of a row's local expert ids, and of their weights; rank-major only

  std::size_t counts;    ///< [2 x in_flight][ranks] count messages
  std::size_t refusals;  ///< [in_flight][2][ranks] refusals of combine, a cache line each

  std::size_t sets;     ///< start of the first batch's memory
  std::size_t rows;     ///< [row_capacity][row_bytes]
  std::size_t scales;   ///< [row_capacity][scale_bytes]
  std::size_t origins;  ///< [row_capacity] wire_origin
  std::size_t experts;  ///< [row_capacity][top_k] int32, rank-major only
  std::size_t weights;  ///< [row_capacity][top_k] float, rank-major only
  std::array<std::size_t, max_attachments> attachments;  ///< [row_capacity][attachment bytes]
  std::size_t outputs;                                   ///< [output_rows][hidden] bf16
  /// What came home beside outputs: [max_tokens][copies][output attachment bytes].
  std::size_t returned_attachments;
  /// What goes home beside outputs from here, where homes cannot be stored to:
  /// [row_capacity][output attachment bytes] on roads that stage, else empty.
  std::size_t output_attachments;
  staging_map staged;  ///< empty unless the road stages
  std::size_t set_bytes;
  std::size_t total;

  constexpr memory_map(const exchange_config& config, const block_geometry& geometry,
                       std::size_t ranks, row_format row, road_memory way = {}) noexcept
      : in_flight{config.in_flight},
        row_capacity{geometry.row_capacity},
        outputs_home{config.outputs == outputs_at::home && way.outputs_may_be_home},
        output_rows{outputs_home ? config.max_tokens * geometry.copies_per_token
                                 : geometry.row_capacity},
        copies{geometry.copies_per_token},
        count_bytes{count_bytes_for(config.max_tokens)},
        note_at{align_up(header_bytes + geometry.blocks.experts() * count_bytes, note_alignment)},
        message_bytes{align_up(note_at + config.note_bytes, cache_line_bytes)},
        format{row},
        hidden{config.hidden},
        attachment_bytes{config.attachments},
        output_attachment_bytes{config.output_attachment},
        slot_bytes{geometry.by_rank ? config.top_k * sizeof(std::int32_t) : 0},
        attachments{} {
    std::size_t end = 0;
    const auto place = [&end](std::size_t bytes) {
      const std::size_t at = end;
      end = align_up(end + bytes, cache_line_bytes);
      return at;
    };
    counts = place(2 * in_flight * ranks * message_bytes);
    refusals = place(2 * in_flight * ranks * cache_line_bytes);
    sets = end;
    rows = place(row_capacity * format.row_bytes);
    scales = place(row_capacity * format.scale_bytes);
    origins = place(row_capacity * sizeof(wire_origin));
    experts = place(row_capacity * slot_bytes);
    weights = place(row_capacity * slot_bytes);
    for (std::size_t a = 0; a < max_attachments; ++a)
      attachments[a] = place(row_capacity * attachment_bytes[a]);
    outputs = place(output_rows * output_bytes());
    returned_attachments = place(config.max_tokens * copies * output_attachment_bytes);
    output_attachments = place(way.stages ? row_capacity * output_attachment_bytes : 0);
    staged.begin = end;
    staging_map::for_each_area(staged, way.stages ? config.max_tokens : 0, copies, format.row_bytes,
                               extras(), output_bytes(),
                               [&](std::size_t& area, std::size_t bytes) { area = place(bytes); });
    set_bytes = end - sets;
    total = sets + in_flight * set_bytes;
  }

  /// Bytes of one output.
  [[nodiscard]] constexpr std::size_t output_bytes() const noexcept {
    return hidden * sizeof(bf16);
  }
  /// What travels beside one row.
  [[nodiscard]] constexpr row_extras extras() const noexcept {
    return {format.scale_bytes, sizeof(wire_origin), slot_bytes, slot_bytes, attachment_bytes};
  }
  /// Bytes that one row brings with it.
  [[nodiscard]] constexpr std::size_t row_bytes_in_all() const noexcept {
    std::size_t bytes =
        format.row_bytes + format.scale_bytes + sizeof(wire_origin) + 2 * slot_bytes;
    for (const std::size_t more : attachment_bytes) bytes += more;
    return bytes;
  }

  struct component {
    std::string_view name;
    std::size_t bytes;
  };
  /// The same by component, for people who ask where the memory goes. Sums to `total`.
  [[nodiscard]] constexpr std::array<component, 7> components() const noexcept {
    return {{{"counts", sets - counts},
             {"rows", in_flight * (scales - rows)},
             {"scales", in_flight * (origins - scales)},
             {"origins", in_flight * (attachments[0] - origins)},
             {"attachments", in_flight * (outputs - attachments[0])},
             {"outputs", in_flight * (staged.begin - outputs)},
             {"staging", in_flight * (sets + set_bytes - staged.begin)}}};
  }

  /// The memory that is really taken once dispatches have brought at most `most_rows` rows to this
  /// rank and `most_tokens` tokens were sent from it, in whole pages of `page` bytes of a window
  /// that starts on one, for layouts without gaps. Outputs are taken where the experts write them.
  /// On roads that stage, copies that are not put, but kept or stored, take less.
  [[nodiscard]] constexpr std::size_t touched(std::size_t most_rows, std::size_t most_tokens,
                                              std::size_t page = 4096) const noexcept {
    std::size_t pages = 0;
    std::size_t next = 0;  // The first page that is not counted; areas come in ascending order.
    const auto touch = [&](std::size_t at, std::size_t bytes) {
      if (bytes == 0) return;
      const std::size_t first = std::max(next, at / page);
      next = std::max(next, (at + bytes - 1) / page + 1);
      pages += next - std::min(next, first);
    };
    // Refusals are written seldom, but read in every combine, which takes memory where it is a
    // file's.
    touch(counts, sets - counts);
    for (std::size_t set = 0; set < in_flight; ++set) {
      const std::size_t base = set * set_bytes;
      touch(base + rows, most_rows * format.row_bytes);
      touch(base + scales, most_rows * format.scale_bytes);
      touch(base + origins, most_rows * sizeof(wire_origin));
      touch(base + experts, most_rows * slot_bytes);
      touch(base + weights, most_rows * slot_bytes);
      for (std::size_t a = 0; a < max_attachments; ++a)
        touch(base + attachments[a], most_rows * attachment_bytes[a]);
      touch(base + outputs, (outputs_home ? most_tokens * copies : most_rows) * output_bytes());
      touch(base + returned_attachments, most_tokens * copies * output_attachment_bytes);
      if (staged.begin == sets + set_bytes) continue;
      touch(base + output_attachments, most_rows * output_attachment_bytes);
      staging_map::for_each_area(
          staged, most_tokens, copies, format.row_bytes, extras(), output_bytes(),
          [&](std::size_t area, std::size_t bytes) { touch(base + area, bytes); });
    }
    return pages * page;
  }
};

/// Bytes that each row moves in dispatch and in combine: what bandwidths of this library are
/// computed from.
constexpr std::size_t dispatch_bytes_per_row(row_format format) noexcept {
  return format.row_bytes + format.scale_bytes + sizeof(wire_origin);
}
constexpr std::size_t combine_bytes_per_row(std::size_t hidden) noexcept {
  return hidden * sizeof(bf16);
}

}  // namespace peerbus::moe
