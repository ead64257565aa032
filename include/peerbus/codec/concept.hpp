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

/// A codec that has no `hidden_multiple`, or whose `hidden_multiple` is a constant std::size_t of
/// at least 1.
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

/// A hidden size that `C` supports. The concepts use it to check the sizes of `C`.
template <has_sound_hidden_multiple C>
inline constexpr std::size_t some_hidden = 16 * hidden_multiple<C>();

}  // namespace detail

/// The type of the elements of the tokens that `C` encodes: `C::token` if the codec defines it,
/// otherwise bf16.
template <class C>
using token_of = typename detail::token_element<C>::type;

/// A codec: the format in which a token travels. A token becomes a row of `row_bytes(hidden)` bytes
/// and `scale_bytes(hidden)` bytes of scales. The sender encodes a token once, however many copies
/// go out. The reader of a row decodes it.
///
/// Beyond what the compiler checks, a codec `C` must keep these promises:
///
///   1. `C::name` identifies the format of the bytes. Two ranks whose codecs have the same name can
///      read each other's rows. Any change of the format changes the name.
///   2. `row_bytes` and `scale_bytes` depend on `hidden` alone. `row_bytes` is a multiple of
///      `sizeof(element)`. `scale_bytes` is a multiple of 4, and 0 if there are no scales.
///   3. A row is an array of `element`, whose alignment is at most 16.
///   4. `encode(token, row, scales)` gets a token of `hidden` elements and two spans that do not
///      overlap, of `row_bytes(hidden)` and `scale_bytes(hidden)` bytes. The row is aligned to 16
///      bytes, the scales to 4. It writes every byte of both spans, unused bytes included. It reads
///      neither span, because they may lie in the memory of a peer.
///   5. `encode` is deterministic: equal tokens give equal bytes, on every rank and in every run.
///   6. `decode(row, scales, out)` gets the bytes that `encode` wrote, with the same alignment, and
///      `hidden` floats. It writes all of `out` and nothing else. Its result depends on those bytes
///      alone.
///   7. Both functions accept any bits, including NaN, infinities and denormals. A token that the
///      format cannot express must not decode to plausible numbers.
///   8. Both functions are data path: no allocation, lock, system call or exception. Several
///      threads may use one codec at once.
///   9. A copy behaves like its original. Copying does not throw.
///   10. A codec that works on groups of channels may define `static constexpr std::size_t
///      hidden_multiple`. `hidden` is then always a multiple of it.
///   11. A codec whose tokens are not bf16 may define `using token`, a trivially copyable type of
///      which tokens then consist. Outputs are bf16 in any case.
template <class C>
concept token_codec =
    detail::has_sound_hidden_multiple<C> && std::is_nothrow_copy_constructible_v<C> &&
    std::is_trivially_copyable_v<typename C::element> && (alignof(typename C::element) <= 16) &&
    std::is_trivially_copyable_v<token_of<C>> &&
    std::same_as<decltype(C::name), const std::string_view> &&
    // A template argument must be a constant expression. A codec whose name or sizes are
    // not constant expressions is refused here.
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

/// A codec whose row is the token itself. `C::verbatim` promises that `encode` copies the bytes of
/// the token unchanged and that there are no scales. A sender may then copy the token itself and
/// not call `encode`.
template <class C>
concept verbatim_codec =
    token_codec<C> && std::same_as<typename C::element, token_of<C>> && requires {
      requires std::same_as<decltype(C::verbatim), const bool>;
      typename std::bool_constant<C::verbatim>;
      requires C::verbatim;
      requires C::row_bytes(detail::some_hidden<C>) == detail::some_hidden<C> * sizeof(token_of<C>);
      requires C::scale_bytes(detail::some_hidden<C>) == 0;
    };

/// Returns the number of which `hidden` must be a multiple: `C::hidden_multiple` if the codec
/// defines it, otherwise 1.
template <token_codec C>
constexpr std::size_t hidden_multiple_of() noexcept {
  return detail::hidden_multiple<C>();
}

}  // namespace peerbus
