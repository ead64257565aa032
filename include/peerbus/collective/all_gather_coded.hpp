// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/coded_gather.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/window.hpp>

namespace peerbus::collective {

/// Where `all_gather_coded` leaves rows as the codec encoded them.
struct coded_rows {
  std::span<std::byte> rows;    ///< [ranks, tokens, `Codec::row_bytes(hidden)`]
  std::span<std::byte> scales;  ///< [ranks, tokens, `Codec::scale_bytes(hidden)`]
};

/// A range into which `all_gather_coded` decodes tokens: of bf16 or float.
template <class R>
concept decoded_output = detail::output_range<R> && (std::same_as<detail::element_of<R>, float> ||
                                                     std::same_as<detail::element_of<R>, bf16>);

namespace detail {

/// Returns the function that decodes to `out`, which is [ranks, tokens, hidden].
template <token_codec Codec, class T>
auto decoder_to(const Codec& codec, const coded_shape& shape, T* out) noexcept {
  return [&, out](std::size_t index, const coded_place<const std::byte>& place,
                  std::span<float> scratch) noexcept {
    const std::span row{place.row, shape.row_bytes};
    const std::span scales{place.scales, shape.scale_bytes};
    T* const token = out + index * shape.hidden;
    if constexpr (std::same_as<T, float>) {
      codec.decode(row, scales, {token, shape.hidden});
    } else if constexpr (verbatim_codec<Codec> && std::same_as<T, token_of<Codec>>) {
      std::memcpy(token, row.data(), row.size());
    } else {
      codec.decode(row, scales, scratch);
      kernel::best().narrow(scratch.data(), shape.hidden, token);
    }
  };
}

/// Returns the function that copies rows as they are to `out`.
inline auto copier_to(const coded_shape& shape, const coded_rows& out) noexcept {
  return [&shape, &out](std::size_t index, const coded_place<const std::byte>& place,
                        std::span<float>) noexcept {
    copy_bytes(out.rows.data() + index * shape.row_bytes, place.row, shape.row_bytes);
    copy_bytes(out.scales.data() + index * shape.scale_bytes, place.scales, shape.scale_bytes);
  };
}

}  // namespace detail

/// Encodes this rank's `tokens` by `codec`, and gathers those of all ranks in the order of ranks:
/// `all_gather` of tokens that travel in the codec's form. `tokens` is [tokens, hidden] of
/// `token_of<Codec>`, with the same number of tokens on all ranks, which may be 0. `output` is
/// [ranks, tokens, hidden] of bf16 or float, into which rows are decoded, or `coded_rows`, which
/// take them as they are. All ranks get the same bytes, and so does the sender for its own tokens.
/// In place, `tokens` is row `rank` of an `output` of the same type. Returns when `output` is
/// complete; the caller may then reuse `tokens`.
///
/// Algorithm: as `all_gather`, in slices of whole rows with their scales. Cost: ceil(tokens /
/// (slice / (row + scales))) rounds, at least one. Each token is encoded once, into the slice,
/// which is put to each peer that cannot read it; each row is decoded or copied once for each rank.
/// Throws, on all ranks: `error` mismatch (codecs are compared by the first and the last 8
/// characters of their names), refused or invalid_argument as `team` says, poisoned. Also
/// timed_out, peer_dead and unreachable, which poison the communicator.
template <token_codec Codec, spannable Tokens, class Output>
  requires std::same_as<detail::element_of<Tokens>, token_of<Codec>> &&
           (decoded_output<Output> || std::same_as<std::remove_cvref_t<Output>, coded_rows>)
void all_gather_coded(team& on, const Codec& codec, std::size_t hidden, const Tokens& tokens,
                      Output&& output, const call_options& options = {}) {
  const std::span<const token_of<Codec>> input{tokens};
  detail::coded_shape shape{Codec::name,
                            hidden == 0 ? 0 : input.size() / hidden,
                            hidden,
                            Codec::row_bytes(hidden),
                            Codec::scale_bytes(hidden),
                            sizeof(token_of<Codec>)};
  detail::coded_operands given{input.data(), input.size(), hidden_multiple_of<Codec>()};
  const auto encode = [&](std::size_t index, const detail::coded_place<std::byte>& place) noexcept {
    codec.encode(input.subspan(index * hidden, hidden), {place.row, shape.row_bytes},
                 {place.scales, shape.scale_bytes});
  };
  if constexpr (decoded_output<Output>) {
    const std::span out{output};
    using element = detail::element_of<Output>;
    given.rows = std::as_writable_bytes(out);
    given.each_row = hidden * sizeof(element);
    given.decodes_in_scratch = std::same_as<element, bf16>;
    given.may_be_in_place = std::same_as<element, token_of<Codec>>;
    const auto decode = detail::decoder_to(codec, shape, out.data());
    detail::all_gather_coded_bytes(on, shape, given, encode, decode, options);
  } else {
    given.rows = output.rows;
    given.scales = output.scales;
    given.each_row = shape.row_bytes;
    given.each_scales = shape.scale_bytes;
    const auto copy = detail::copier_to(shape, output);
    detail::all_gather_coded_bytes(on, shape, given, encode, copy, options);
  }
}

}  // namespace peerbus::collective
