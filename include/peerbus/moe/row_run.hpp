// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The origin of a received row: its home rank, the index of the token there, and the slot of the
/// token that its output belongs to. The slot is the index of the expert
/// among the `top_k` experts of the token, or, in layouts by rank, the index of this rank among the
/// ranks of the token.
struct row_origin {
  rank_id rank;         ///< the home rank of the token
  std::uint32_t token;  ///< index in the `tokens` of that rank
  std::uint32_t slot;   ///< number of the copy among those of the token
  friend bool operator==(const row_origin&, const row_origin&) = default;
};

/// The memory of the rows of a batch and of their outputs.
struct row_memory {
  /// The set of the batch at this rank.
  set_view set;
  /// The sets of the batch at all ranks: [ranks], empty for ranks that loads and stores do not
  /// reach.
  std::span<const set_view> ranks{};
  /// The origins of the rows, from row 0.
  const wire_origin* origins{};
};

/// Consecutive rows that arrived, with the memory for their outputs.
///
/// A view into the window of the exchange. Rows are valid until this rank has called
/// `dispatch_send` or `dispatch` on the exchange `in_flight` more times; in layouts with slots,
/// only until `combine` or `combine_send`, if that comes first, and again from `reopen` on. The
/// caller may write outputs from `dispatch_recv` until `combine` or `combine_send`, and again after
/// a refused combine or `reopen`. Outputs must not change after a successful combine, because other
/// ranks, or the transport, may still read them when the combine of this rank has returned.
template <token_codec Codec>
class row_run {
 public:
  /// The type in which the codec stores a row.
  using element = typename Codec::element;

  /// Makes the view. `*begin` is the number of the first row among all rows of this rank, and
  /// `*end` the number after the last row. The view reads both numbers whenever it needs them.
  row_run(Codec codec, row_memory memory, const std::uint32_t* begin,
          const std::uint32_t* end) noexcept
      : codec_{codec}, memory_{memory}, begin_{begin}, end_{end} {}

  /// Returns the number of channels of a token and of an output.
  [[nodiscard]] std::size_t hidden() const noexcept { return map().hidden; }
  /// Returns the number of rows that arrived.
  [[nodiscard]] std::size_t count() const noexcept { return *end_ - first_row(); }
  /// Returns the number of the first row among all rows of this rank, gaps included.
  [[nodiscard]] std::size_t first_row() const noexcept { return *begin_; }

  /// Returns all rows as elements of the codec: [count, row_bytes(hidden) / sizeof(element)],
  /// without gaps.
  [[nodiscard]] std::span<const element> rows() const noexcept {
    return {peerbus::detail::placed<element>(memory_.set.row(first_row())),
            count() * row_bytes() / sizeof(element)};
  }
  /// Returns row `i`, which is below `count()`: [row_bytes(hidden) / sizeof(element)].
  [[nodiscard]] std::span<const element> row(std::size_t i) const noexcept {
    const std::size_t elements = row_bytes() / sizeof(element);
    return rows().subspan(i * elements, elements);
  }

  /// Returns the scales of all rows: [count, scale_bytes(hidden) / sizeof(Scale)]. Empty for codecs
  /// without scales.
  template <class Scale = float>
  [[nodiscard]] std::span<const Scale> scales() const noexcept {
    return {peerbus::detail::placed<Scale>(memory_.set.scales(first_row())),
            count() * scale_bytes() / sizeof(Scale)};
  }

  /// Returns attachment `a` of all rows: [count, configured bytes / sizeof(T)]. The part of each
  /// row is aligned to the largest power of two, up to 64, that divides the configured bytes.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> attachment(std::size_t a) const noexcept {
    return {peerbus::detail::placed<T>(memory_.set.attachment(a, first_row())),
            count() * map().attachment_bytes[a] / sizeof(T)};
  }

  /// Decodes row `i` into `out`: [hidden].
  void decode(std::size_t i, std::span<float> out) const noexcept {
    const std::size_t number = first_row() + i;
    codec_.decode(std::span{memory_.set.row(number), row_bytes()},
                  std::span{memory_.set.scales(number), scale_bytes()}, out);
  }

  /// Returns the outputs of all rows: [count, hidden]. The caller fills them before `combine`.
  /// Throws: `error` unsupported if outputs lie at their home ranks, where they are not
  /// consecutive.
  [[nodiscard]] std::span<bf16> outputs() const {
    if (map().outputs_home)
      throw error{errc::unsupported,
                  "outputs(): with outputs_at::home each row's output lies at its home rank; "
                  "expected output(i) row by row"};
    return {memory_.set.output(first_row()), count() * hidden()};
  }
  /// Returns the output of row `i`, which is below `count()`: [hidden]. The caller fills it before
  /// `combine`.
  [[nodiscard]] std::span<bf16> output(std::size_t i) const noexcept {
    if (!map().outputs_home) return {memory_.set.output(first_row() + i), hidden()};
    const wire_origin& source = memory_.origins[first_row() + i];
    return {memory_.ranks[source.rank].home_slot(source.token, source.slot), hidden()};
  }
  /// Writes `values`, [hidden], as the output of row `i` in LogFMT-10, and their heads as its
  /// output attachment. Only with `exchange_config::logfmt_outputs`. If a batch is combined with
  /// `attached`, all its outputs must be written by this function.
  void encode_output(std::size_t i, std::span<const bf16> values) const noexcept {
    codec::logfmt10::encode(values, output_attachment<codec::logfmt10::head>(i),
                            std::as_writable_bytes(output(i)).data());
  }
  /// Returns the attachment that travels home beside the output of row `i`: [configured bytes /
  /// sizeof(T)], aligned as `attachment`. The caller may write it when it may write outputs. A
  /// combine with `attached` brings it to the home rank, where `exchange::returned_attachment`
  /// returns it.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> output_attachment(std::size_t i) const noexcept {
    return {peerbus::detail::placed<T>(output_attachment_at(first_row() + i)),
            map().output_attachment_bytes / sizeof(T)};
  }

  /// Returns the origin of row `i`, which is below `count()`.
  [[nodiscard]] row_origin origin(std::size_t i) const noexcept {
    const wire_origin& source = memory_.origins[first_row() + i];
    return {rank_id{source.rank}, source.token, source.slot};
  }

 protected:
  /// Returns the batch set that contains the rows.
  [[nodiscard]] const set_view& set() const noexcept { return memory_.set; }

 private:
  [[nodiscard]] const memory_map& map() const noexcept { return memory_.set.map(); }
  /// Returns the place where the experts write the attachment beside the output of row `number`.
  [[nodiscard]] std::byte* output_attachment_at(std::size_t number) const noexcept {
    if (map().hands_on) return memory_.set.output_attachment(number);
    const wire_origin& source = memory_.origins[number];
    const set_view& home = memory_.ranks[source.rank];
    return home ? home.returned_attachment(source.token, source.slot)
                : memory_.set.output_attachment(number);
  }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return map().format.row_bytes; }
  [[nodiscard]] std::size_t scale_bytes() const noexcept { return map().format.scale_bytes; }

  [[no_unique_address]] Codec codec_;
  row_memory memory_;
  const std::uint32_t* begin_;
  const std::uint32_t* end_;
};

}  // namespace peerbus::moe
