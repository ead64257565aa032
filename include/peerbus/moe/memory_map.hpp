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
#include <peerbus/moe/plan/staging_map.hpp>

namespace peerbus::moe {

/// The bytes that a codec makes of one token: the row and its scales.
struct row_format {
  std::size_t row_bytes = 0;    ///< bytes of the row, from the codec's `row_bytes`
  std::size_t scale_bytes = 0;  ///< bytes of its scales, from `scale_bytes`
};

/// The requirements of a path on the window of each rank.
struct row_path_memory {
  bool stages = false;              ///< true if rows pass through registered memory of their sender
  bool outputs_may_be_home = true;  ///< true if experts can store outputs at their home ranks
  /// True if rows are handed on for another exchange, whose home ranks they name. Outputs and their
  /// attachments then lie at the expert.
  bool hands_on = false;
  bool sums_are_f32 = false;  ///< true if outputs are sums of f32 instead of bf16
};

/// The origin of a row, which travels beside it: the home rank of the token, its index there, and
/// the slot in which its output goes home. Ascend's operators call this triple the assist info.
struct wire_origin {
  std::uint32_t token;  ///< index of the token at its home rank
  std::uint16_t rank;   ///< the home rank
  std::uint16_t slot;   ///< the copy of the token, below `memory_map::copies`
};
static_assert(sizeof(wire_origin) == 8);

/// Returns the bytes of one count of rows on the wire. Counts are as narrow as `max_tokens` allows,
/// because every rank reads the counts of all ranks.
constexpr std::size_t count_bytes_for(std::size_t max_tokens) noexcept {
  if (max_tokens <= std::numeric_limits<std::uint8_t>::max()) return 1;
  return max_tokens <= std::numeric_limits<std::uint16_t>::max() ? 2 : 4;
}

/// The places of all data of an exchange in one rank's part of its window, as byte offsets from the
/// start of the part, and the size of the part.
///
/// The sizes are exact: the exchange allocates `total` bytes of the window. They hold for the worst
/// case, in which every rank sends as many rows as it may to this rank. Memory that no row reaches
/// is never touched. The memory of a batch exists `in_flight` times. The offsets are those of the
/// first batch, and each further batch begins `set_bytes` later.
///
/// Memory besides `total`: the window has 3 x in_flight x ranks signals of `sizeof(signal_word)`,
/// and in_flight x ranks more where combines send weights ahead. In ordinary memory each rank keeps
/// plans of about 28 bytes per slot, of which there are max_tokens x top_k x in_flight. Paths that
/// stage keep 8 bytes more per slot, and 8 bytes per row. The rank-major layout keeps 8 bytes for
/// each use of a row by a local expert.
struct memory_map {
  /// The bytes of the sender's `verdict`, with which a count message begins.
  static constexpr std::size_t verdict_bytes = 48;

  /// The alignment of notes in bytes.
  static constexpr std::size_t note_alignment = 8;

  std::size_t in_flight;      ///< batches with memory of their own
  std::size_t row_capacity;   ///< rows that can arrive in one dispatch
  bool outputs_home;          ///< true if outputs lie at the home rank of their token
  std::size_t output_rows;    ///< outputs that this rank has room for
  std::size_t copies;         ///< the largest number of copies of a token
  std::size_t count_bytes;    ///< bytes of one count
  std::size_t counts_at;      ///< start of the counts in a count message
  std::size_t note_at;        ///< start of the note in a count message
  std::size_t note_bytes;     ///< bytes of a note
  std::size_t message_bytes;  ///< bytes of a count message: verdict, counts, note
  std::size_t outbox_bytes;   ///< bytes of a count message that leaves, without note; 0 if no slots
  row_format format;          ///< bytes of a row and of its scales
  std::size_t hidden;         ///< channels of a token and of an output
  std::size_t output_value_bytes;  ///< bytes of one value of an output
  /// Bytes per token of each attachment; 0 for an attachment that is not configured.
  std::array<std::size_t, max_attachments> attachment_bytes;
  std::size_t output_attachment_bytes;  ///< bytes beside an output that go home with it
  bool logfmt_outputs;                  ///< true if output attachments may be LogFMT-10 heads
  /// Bytes of the local expert ids of a row, and of the weights of a row. 0 unless the layout is by
  /// rank.
  std::size_t slot_bytes;
  /// Bytes of the weights of a row that a combine brings. 0 unless combines give weights on a level
  /// of a relay that hands rows on.
  std::size_t late_weight_bytes;
  bool hands_on;  ///< true if rows are handed on for another exchange

  std::size_t counts;  ///< [2 x in_flight][ranks] count messages
  /// [2 x in_flight][ranks] count messages that leave, in layouts with slots. There each rank is
  /// sent only the counts for its own blocks.
  std::size_t outbox;
  std::size_t refusals;  ///< [in_flight][2][ranks] verdicts of combine, a cache line each

  std::size_t sets;     ///< start of the first batch's memory
  std::size_t rows;     ///< [row_capacity][row_bytes]
  std::size_t scales;   ///< [row_capacity][scale_bytes]
  std::size_t origins;  ///< [row_capacity] wire_origin
  std::size_t experts;  ///< [row_capacity][top_k] int32, layouts by rank only
  std::size_t weights;  ///< [row_capacity][top_k] float, layouts by rank only
  std::array<std::size_t, max_attachments> attachments;  ///< [row_capacity][attachment bytes]
  std::size_t outputs;                                   ///< [output_rows][hidden] bf16, or f32
  /// Attachments that came home beside outputs: [max_tokens][copies][output attachment bytes].
  std::size_t returned_attachments;
  /// Attachments that go home beside outputs, for home ranks that cannot be stored to:
  /// [row_capacity][output attachment bytes]. Empty unless the path stages or hands on.
  std::size_t output_attachments;
  std::size_t late_weights;     ///< [row_capacity][late_weight_bytes] from a combine
  std::size_t leaving_weights;  ///< [max_tokens x copies][late_weight_bytes] that leave
  staging_map staged;           ///< empty unless the path stages
  std::size_t set_bytes;        ///< bytes from the memory of a batch to that of the next
  std::size_t total;            ///< bytes of a rank's part of the window

  /// Computes the map. `config` must be valid. `geometry` and `row` belong to its layout and codec.
  constexpr memory_map(const exchange_config& config, const block_geometry& geometry,
                       std::size_t rank_count, row_format row, row_path_memory path = {}) noexcept
      : in_flight{config.in_flight},
        row_capacity{geometry.row_capacity},
        outputs_home{config.outputs == outputs_at::home && path.outputs_may_be_home},
        output_rows{outputs_home ? config.max_tokens * geometry.copies_per_token
                                 : geometry.row_capacity},
        copies{geometry.copies_per_token},
        count_bytes{count_bytes_for(config.max_tokens)},
        // All counts begin at a cache line, as every rank reads many of them. The few that are sent
        // with slots follow the verdict, often in the same cache line.
        counts_at{geometry.has_slots() ? verdict_bytes : cache_line_bytes},
        note_at{align_up(counts_at + counts_in_message(geometry) * count_bytes, note_alignment)},
        note_bytes{config.note_bytes},
        message_bytes{align_up(note_at + config.note_bytes, cache_line_bytes)},
        outbox_bytes{geometry.has_slots() ? align_up(note_at, cache_line_bytes) : 0},
        format{row},
        hidden{config.hidden},
        output_value_bytes{path.sums_are_f32 ? sizeof(float) : sizeof(bf16)},
        attachment_bytes{config.attachments},
        output_attachment_bytes{config.output_attachment},
        logfmt_outputs{config.logfmt_outputs},
        slot_bytes{geometry.by_rank ? config.top_k * sizeof(std::int32_t) : 0},
        late_weight_bytes{config.weights_at_combine ? slot_bytes : 0},
        hands_on{path.hands_on},
        attachments{} {
    std::size_t end = 0;
    const auto place = [&end](std::size_t bytes) {
      const std::size_t begin = end;
      end = align_up(end + bytes, cache_line_bytes);
      return begin;
    };
    counts = place(2 * in_flight * rank_count * message_bytes);
    outbox = place(2 * in_flight * rank_count * outbox_bytes);
    refusals = place(2 * in_flight * rank_count * cache_line_bytes);
    sets = end;
    rows = place(row_capacity * format.row_bytes);
    scales = place(row_capacity * format.scale_bytes);
    origins = place(row_capacity * sizeof(wire_origin));
    experts = place(row_capacity * slot_bytes);
    weights = place(row_capacity * slot_bytes);
    for (std::size_t a = 0; a < max_attachments; ++a)
      attachments[a] = place(row_capacity * attachment_bytes[a]);
    outputs = place(output_rows * output_bytes());
    returned_attachments =
        place(hands_on ? 0 : config.max_tokens * copies * output_attachment_bytes);
    output_attachments =
        place(path.stages || hands_on ? row_capacity * output_attachment_bytes : 0);
    late_weights = place(row_capacity * late_weight_bytes);
    leaving_weights = place(config.max_tokens * copies * late_weight_bytes);
    staged.begin = end;
    staging_map::for_each_area(staged, path.stages ? config.max_tokens : 0, copies,
                               format.row_bytes, extras(), output_bytes(),
                               [&](std::size_t& area, std::size_t bytes) { area = place(bytes); });
    set_bytes = end - sets;
    total = sets + in_flight * set_bytes;
  }

  /// Returns the number of counts in a message: for all blocks, or, with slots, for the blocks of
  /// one rank.
  [[nodiscard]] static constexpr std::size_t counts_in_message(
      const block_geometry& geometry) noexcept {
    return geometry.has_slots() ? geometry.blocks.most() : geometry.blocks.experts();
  }
  /// Returns the bytes of one output.
  [[nodiscard]] constexpr std::size_t output_bytes() const noexcept {
    return hidden * output_value_bytes;
  }
  /// Returns the bytes of each kind of data that travels beside one row.
  [[nodiscard]] constexpr row_extras extras() const noexcept {
    return {format.scale_bytes, sizeof(wire_origin), slot_bytes, slot_bytes, attachment_bytes};
  }
  /// Returns the bytes of one row and of everything that travels beside it.
  [[nodiscard]] constexpr std::size_t row_bytes_in_all() const noexcept {
    std::size_t bytes =
        format.row_bytes + format.scale_bytes + sizeof(wire_origin) + 2 * slot_bytes;
    for (const std::size_t attachment : attachment_bytes) bytes += attachment;
    return bytes;
  }

  /// A named part of the memory.
  struct component {
    std::string_view name;  ///< such as "rows"
    std::size_t bytes;      ///< size in bytes, for all batches together
  };
  /// Returns the memory by component, for reports about memory. The components add up to `total`.
  [[nodiscard]] constexpr std::array<component, 7> components() const noexcept {
    return {{{"counts", sets - counts},
             {"rows", in_flight * (scales - rows)},
             {"scales", in_flight * (origins - scales)},
             {"origins", in_flight * (attachments[0] - origins)},
             {"attachments", in_flight * (outputs - attachments[0])},
             {"outputs", in_flight * (staged.begin - outputs)},
             {"staging", in_flight * (sets + set_bytes - staged.begin)}}};
  }

  /// Returns the bytes of the pages that are committed after dispatches that each brought up to
  /// `most_rows` rows to this rank, and sent up to `most_tokens` tokens from it. Pages have `page`
  /// bytes, and the window starts at a page. The result holds for layouts without gaps. Outputs
  /// count at the rank whose memory the experts write. Counts are included, although more than 4
  /// ranks over a direct transport commit them at rank 0 alone, unless the layout has slots. On
  /// paths that stage the result is an upper bound: copies that are kept or stored instead of put
  /// need less.
  [[nodiscard]] constexpr std::size_t touched(std::size_t most_rows, std::size_t most_tokens,
                                              std::size_t page = 4096) const noexcept {
    std::size_t pages = 0;
    std::size_t next = 0;  // The first page that is not counted yet. Areas come in ascending order.
    const auto touch = [&](std::size_t offset, std::size_t bytes) {
      if (bytes == 0) return;
      const std::size_t first = std::max(next, offset / page);
      next = std::max(next, (offset + bytes - 1) / page + 1);
      pages += next - std::min(next, first);
    };
    // Verdicts of combine are written seldom, but every combine reads them. In memory that belongs
    // to a file, reading a page commits it.
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
      if (!hands_on)
        touch(base + returned_attachments, most_tokens * copies * output_attachment_bytes);
      const bool stages = staged.begin != sets + set_bytes;
      if (stages || hands_on) touch(base + output_attachments, most_rows * output_attachment_bytes);
      touch(base + late_weights, most_rows * late_weight_bytes);
      touch(base + leaving_weights, most_tokens * copies * late_weight_bytes);
      if (!stages) continue;
      staging_map::for_each_area(
          staged, most_tokens, copies, format.row_bytes, extras(), output_bytes(),
          [&](std::size_t area, std::size_t bytes) { touch(base + area, bytes); });
    }
    return pages * page;
  }
};

/// Returns the bytes of a row, its scales and its origin, which dispatch moves for each row.
/// Attachments and slots are not counted. Benchmarks compute bandwidths from it.
constexpr std::size_t dispatch_bytes_per_row(row_format format) noexcept {
  return format.row_bytes + format.scale_bytes + sizeof(wire_origin);
}
/// Returns the bytes of an output in bf16, which combine moves for each row. Benchmarks compute
/// bandwidths from it.
constexpr std::size_t combine_bytes_per_row(std::size_t hidden) noexcept {
  return hidden * sizeof(bf16);
}

}  // namespace peerbus::moe
