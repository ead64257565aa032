// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include <peerbus/codec/concept.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/coded_gather.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace peerbus::collective {

/// The output ranges of `all_gather_coded` for rows that stay encoded.
struct coded_rows {
  std::span<std::byte> rows;    ///< [ranks, tokens, `Codec::row_bytes(hidden)`]
  std::span<std::byte> scales;  ///< [ranks, tokens, `Codec::scale_bytes(hidden)`]
};

/// A range of bf16 or float into which `all_gather_coded` decodes tokens.
template <class R>
concept decoded_output = detail::output_range<R> && (std::same_as<detail::element_of<R>, float> ||
                                                     std::same_as<detail::element_of<R>, bf16>);

namespace detail {

/// True if rows of `Codec` are already tokens of `T`, so that decoding copies them.
template <token_codec Codec, class T>
inline constexpr bool decodes_by_copying =
    verbatim_codec<Codec> && std::same_as<T, token_of<Codec>>;

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
    } else if constexpr (decodes_by_copying<Codec, T>) {
      peerbus::detail::copy_bytes(reinterpret_cast<std::byte*>(token), row.data(), row.size());
    } else {
      codec.decode(row, scales, scratch);
      kernel::best().narrow(scratch.data(), shape.hidden, token);
    }
  };
}

/// Returns the function that copies rows to `out` without decoding them.
inline auto copier_to(const coded_shape& shape, const coded_rows& out) noexcept {
  return [&shape, &out](std::size_t index, const coded_place<const std::byte>& place,
                        std::span<float>) noexcept {
    peerbus::detail::copy_bytes(out.rows.data() + index * shape.row_bytes, place.row,
                                shape.row_bytes);
    peerbus::detail::copy_bytes(out.scales.data() + index * shape.scale_bytes, place.scales,
                                shape.scale_bytes);
  };
}

/// The data of an `all_gather_coded` that its second half needs besides the operands.
template <token_codec Codec>
struct kept_codec {
  Codec codec;
  std::size_t hidden;
  std::span<std::byte> scales;  ///< the target of scales, if rows stay encoded
};

/// Returns the shape of `elements` elements of tokens that `Codec` encodes.
template <token_codec Codec>
coded_shape coded_shape_of(std::size_t elements, std::size_t hidden) noexcept {
  return {Codec::name,
          hidden == 0 ? 0 : elements / hidden,
          hidden,
          Codec::row_bytes(hidden),
          Codec::scale_bytes(hidden),
          sizeof(token_of<Codec>)};
}

/// Carries out an `all_gather_coded`. `Element` is the type of the output's elements, or
/// `std::byte` for rows that stay encoded. `kept` is a `kept_codec`.
template <token_codec Codec, class Element>
void gather_coded(call_rounds& gather, const request& given, const void* kept) {
  using token = token_of<Codec>;
  const auto& with = *static_cast<const kept_codec<Codec>*>(kept);
  const std::span input{peerbus::detail::placed<token>(given.input.data()),
                        given.input.size() / sizeof(token)};
  const coded_shape shape = coded_shape_of<Codec>(input.size(), with.hidden);
  const auto encode = [&](std::size_t index, const coded_place<std::byte>& place) noexcept {
    with.codec.encode(input.subspan(index * shape.hidden, shape.hidden),
                      {place.row, shape.row_bytes}, {place.scales, shape.scale_bytes});
  };
  if constexpr (std::same_as<Element, std::byte>) {
    const coded_rows output{given.output, with.scales};
    gather_coded_slices(gather, shape, encode, copier_to(shape, output));
  } else {
    const auto out = peerbus::detail::placed<Element>(given.output.data());
    gather_coded_slices(gather, shape, encode, decoder_to(with.codec, shape, out));
  }
}

/// An `all_gather_coded` that has begun, with the data for both halves.
template <token_codec Codec>
struct coded_call {
  operation begun;
  request given;
  kept_codec<Codec> with;
};

/// Begins `all_gather_coded`.
template <token_codec Codec, class Output>
coded_call<Codec> begin_coded(team& team, const Codec& codec, std::size_t hidden,
                              std::span<const token_of<Codec>> tokens, const Output& output,
                              const call_options& options) {
  const coded_shape shape = coded_shape_of<Codec>(tokens.size(), hidden);
  coded_operands checked{tokens.data(), tokens.size(), hidden_multiple_of<Codec>()};
  operation::coded_body* carry_out = nullptr;
  if constexpr (std::same_as<Output, coded_rows>) {
    checked.rows = output.rows;
    checked.scales = output.scales;
    checked.each_row = shape.row_bytes;
    checked.each_scales = shape.scale_bytes;
    carry_out = gather_coded<Codec, std::byte>;
  } else {
    using element = typename Output::element_type;
    checked.rows = std::as_writable_bytes(output);
    checked.each_row = hidden * sizeof(element);
    checked.decodes_in_scratch = std::same_as<element, bf16> && !decodes_by_copying<Codec, element>;
    checked.may_be_in_place = std::same_as<element, token_of<Codec>>;
    carry_out = gather_coded<Codec, element>;
  }
  return {all_gather_coded_bytes(team, shape, checked, options, carry_out),
          {.input = std::as_bytes(tokens), .output = checked.rows},
          {codec, hidden, checked.scales}};
}

/// Returns `output` as a span if tokens are decoded into it. Returns `coded_rows` unchanged.
template <class Output>
[[nodiscard]] auto output_span(Output& output) noexcept {
  if constexpr (decoded_output<Output>)
    return std::span<element_of<Output>>{output};
  else
    return output;
}

/// A codec that the first half of an `all_gather_coded` copies.
template <class Codec>
concept kept_token_codec = token_codec<Codec> && std::is_trivially_copyable_v<kept_codec<Codec>> &&
                           sizeof(kept_codec<Codec>) <= kept_work::most_bytes;

}  // namespace detail

/// Encodes this rank's `tokens` by `codec`, and gathers the tokens of all ranks in the order of
/// ranks. It is an `all_gather` of tokens that travel in the codec's form. `tokens` is [tokens,
/// hidden] of `token_of<Codec>`, with the same number of tokens on all ranks, which may be 0.
/// `output` is [ranks, tokens, hidden] of bf16 or float, into which rows are decoded, or
/// `coded_rows`, into which rows are copied without decoding. All ranks get the same bytes, and so
/// does the sender for its own tokens. In place, `tokens` is row `rank` of an `output` of the same
/// type. Returns when `output` is complete; the caller may then reuse `tokens`.
///
/// Algorithm: as `all_gather`, in slices of whole rows with their scales.
/// Cost: ceil(tokens / (slice / (row + scales))) rounds, at least one. Each token is encoded once,
/// into the slice, which is put to each peer that cannot read it; each row is decoded or copied
/// once for each rank.
/// Throws, on all ranks: `error` mismatch (codecs are compared by the first and the last 8
/// characters of their names), refused or invalid_argument as `team` says, poisoned. Also
/// timed_out, peer_dead and unreachable, which poison the communicator.
template <token_codec Codec, spannable Tokens, class Output>
  requires std::same_as<detail::element_of<Tokens>, token_of<Codec>> &&
           (decoded_output<Output> || std::same_as<std::remove_cvref_t<Output>, coded_rows>)
void all_gather_coded(team& team, const Codec& codec, std::size_t hidden, const Tokens& tokens,
                      Output&& output, const call_options& options = {}) {
  detail::by_lanes(team, "all_gather_coded", options, [&] {
    auto all = detail::begin_coded<Codec>(team, codec, hidden, std::span{tokens},
                                          detail::output_span(output), options);
    all.begun.run(all.given, {{}, &all.with});
  });
}

/// Does the first half of `all_gather_coded`, with the same arguments: encodes the first slice.
/// `pending::finish` does the rest. `pending` says what holds between the halves. `codec` is
/// copied, so it must be trivially copyable and no larger than 40 bytes. The spans of `coded_rows`
/// are copied, too.
template <detail::kept_token_codec Codec, spannable Tokens, class Output>
  requires std::same_as<detail::element_of<Tokens>, token_of<Codec>> &&
           detail::lasting_range<Tokens> &&
           ((decoded_output<Output> && detail::lasting_range<Output>) ||
            std::same_as<std::remove_cvref_t<Output>, coded_rows>)
pending start_all_gather_coded(team& team, const Codec& codec, std::size_t hidden, Tokens&& tokens,
                               Output&& output, const call_options& options = {}) {
  auto all = detail::begin_coded<Codec>(team, codec, hidden, std::span{tokens},
                                        detail::output_span(output), options);
  return {std::move(all.begun), all.given, detail::kept_work::by_codec(all.with)};
}

}  // namespace peerbus::collective
