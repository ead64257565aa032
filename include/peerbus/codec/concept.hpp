// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include <peerbus/core/bf16.hpp>

namespace peerbus {

namespace detail {

/// Not stated, or a constant of type std::size_t and at least 1.
template <class C>
concept has_sound_hidden_multiple = !requires { C::hidden_multiple; } || requires {
  requires std::same_as<decltype(C::hidden_multiple), const std::size_t>;
  typename std::bool_constant<(C::hidden_multiple > 0)>;
  requires C::hidden_multiple > 0;
};

template <has_sound_hidden_multiple C>
constexpr std::size_t hidden_multiple() noexcept {
  if constexpr (requires { C::hidden_multiple; })
    return C::hidden_multiple;
  else
    return 1;
}

template <class C>
struct token_element {
  using type = bf16;
};
template <class C>
  requires requires { typename C::token; }
struct token_element<C> {
  using type = typename C::token;
};

/// A `hidden` that suits `C`, for what the concepts check of its sizes.
template <has_sound_hidden_multiple C>
inline constexpr std::size_t some_hidden = 16 * hidden_multiple<C>();

}  // namespace detail

/// What the tokens that `C` encodes are made of: `C::token` where the codec says so, else bf16.
template <class C>
using token_of = typename detail::token_element<C>::type;

/// How a token looks while it travels: a row of `row_bytes(hidden)` bytes, and beside it
/// `scale_bytes(hidden)` bytes of scales. Encoded once per token by the sender, however many copies
/// go out; decoded by whoever reads the row.
///
/// Beyond what the compiler checks, a codec `C` must keep these promises:
///
///  1. `C::name` identifies the format of the bytes. Two ranks whose codecs have one name can read
///     each other's rows; any change of format changes the name.
///  2. `row_bytes` and `scale_bytes` depend on `hidden` alone. `row_bytes` is a multiple of
///     `sizeof(element)`; `scale_bytes` is a multiple of 4, and 0 if there are no scales.
///  3. A row is an array of `element`, whose alignment is at most 16.
///  4. `encode(token, row, scales)` is called with a token of `hidden` elements and two spans, of
///     `row_bytes(hidden)` and `scale_bytes(hidden)` bytes, that do not overlap; the row is aligned
///     to 16 bytes, the scales to 4. It writes every byte of both, unused ones included, and reads
///     neither: they may lie in the memory of a peer.
///  5. `encode` is deterministic: equal tokens give equal bytes, on every rank and in every run.
///  6. `decode(row, scales, out)` is called with what `encode` wrote, aligned likewise, and with
///     `hidden` floats. It writes all of `out` and nothing else. Its result depends on those bytes
///     alone.
///  7. Both accept any bits: NaN, infinities and denormals included. A token that the format cannot
///     express must not decode to plausible numbers.
///  8. Both are data path: no allocation, lock, system call or exception. One codec may be used by
///     several threads at once.
///  9. A copy behaves like its original. Copying does not throw.
/// 10. A codec that works on groups of channels may say `static constexpr std::size_t
///     hidden_multiple`: `hidden` is then always a multiple of it.
/// 11. A codec of tokens that are something else than bf16 may say `using token`: a trivially
///     copyable type, of which tokens are then made. Outputs are bf16 all the same.
template <class C>
concept token_codec =
    detail::has_sound_hidden_multiple<C> && std::is_nothrow_copy_constructible_v<C> &&
    std::is_trivially_copyable_v<typename C::element> && (alignof(typename C::element) <= 16) &&
    std::is_trivially_copyable_v<token_of<C>> &&
    std::same_as<decltype(C::name), const std::string_view> &&
    // A template argument must be a constant expression, and refuses the codec where it is not.
    requires {
      typename std::bool_constant<C::name.empty()>;
      requires !C::name.empty();
      typename std::integral_constant<std::size_t, C::row_bytes(detail::some_hidden<C>)>;
      typename std::integral_constant<std::size_t, C::scale_bytes(detail::some_hidden<C>)>;
      requires C::row_bytes(detail::some_hidden<C>) % sizeof(typename C::element) == 0;
      requires C::scale_bytes(detail::some_hidden<C>) % 4 == 0;
    } &&
    requires(const C& codec, std::size_t hidden, std::span<const token_of<C>> token,
             std::span<std::byte> row, std::span<std::byte> scales,
             std::span<const std::byte> received_row, std::span<const std::byte> received_scales,
             std::span<float> out) {
      { C::row_bytes(hidden) } noexcept -> std::same_as<std::size_t>;
      { C::scale_bytes(hidden) } noexcept -> std::same_as<std::size_t>;
      { codec.encode(token, row, scales) } noexcept -> std::same_as<void>;
      { codec.decode(received_row, received_scales, out) } noexcept -> std::same_as<void>;
    };

/// A codec whose row is the token itself: `C::verbatim` promises that `encode` copies the bytes of
/// the token unchanged and that there are no scales, so that a sender may copy in its place.
template <class C>
concept verbatim_codec =
    token_codec<C> && std::same_as<typename C::element, token_of<C>> && requires {
      requires std::same_as<decltype(C::verbatim), const bool>;
      typename std::bool_constant<C::verbatim>;
      requires C::verbatim;
      requires C::row_bytes(detail::some_hidden<C>) == detail::some_hidden<C> * sizeof(token_of<C>);
      requires C::scale_bytes(detail::some_hidden<C>) == 0;
    };

/// What `hidden` must be a multiple of: `C::hidden_multiple` where the codec says so, else 1.
template <token_codec C>
constexpr std::size_t hidden_multiple_of() noexcept {
  return detail::hidden_multiple<C>();
}

/// A codec that encodes a token once and writes it to several places in the same pass, which may
/// lie in the memory of peers: `encode_copies(token, rows, scales)` leaves at each `rows[i]` and
/// `scales[i]` what `encode` would. As many rows as scales; sizes and alignment as for `encode`.
template <class C>
concept multicast_codec =
    token_codec<C> &&
    requires(const C& codec, std::span<const token_of<C>> token, std::span<std::byte* const> rows,
             std::span<std::byte* const> scales) {
      { codec.encode_copies(token, rows, scales) } noexcept -> std::same_as<void>;
    };

}  // namespace peerbus
