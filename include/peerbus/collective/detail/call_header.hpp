// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/collective/team_map.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// A text of at most `Size` characters, padded with zeroes, that ranks send each other.
template <std::size_t Size>
struct short_text {
  std::array<char, Size> characters{};  ///< the text, then zeroes

  constexpr short_text() = default;
  /// Takes the first `Size` characters of `text`.
  constexpr explicit short_text(std::string_view text) noexcept {
    std::copy_n(text.begin(), std::min(text.size(), Size), characters.begin());
  }
  /// Returns the text without the zeroes.
  [[nodiscard]] constexpr std::string_view view() const noexcept {
    const auto end = std::find(characters.begin(), characters.end(), '\0');
    return {characters.data(), static_cast<std::size_t>(end - characters.begin())};
  }
  friend constexpr bool operator==(const short_text&, const short_text&) = default;
};

/// The type of an operand's elements, as ranks compare it.
struct element_type {
  short_text<8> name{};     ///< such as "f32"; "bytes" for types that are not numbers
  std::uint32_t bytes = 0;  ///< the size of an element

  /// Returns the element type of `T`.
  template <class T>
  [[nodiscard]] static constexpr element_type of() noexcept {
    constexpr std::array integers{"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"};
    constexpr std::size_t log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    std::string_view name = "bytes";
    if (std::same_as<T, bf16>)
      name = "bf16";
    else if (std::same_as<T, float>)
      name = "f32";
    else if (std::same_as<T, double>)
      name = "f64";
    else if (std::is_integral_v<T> && sizeof(T) <= 8)
      name = integers[log2 + (std::is_unsigned_v<T> ? 4 : 0)];
    return {short_text<8>{name}, static_cast<std::uint32_t>(sizeof(T))};
  }
  friend constexpr bool operator==(const element_type&, const element_type&) = default;
};

/// The place in which peers access the operand of a rank.
enum class operand_place : std::uint32_t {
  memory,           ///< in the scratch memory, where it is staged
  window,           ///< in its window, to read it
  window_in_place,  ///< in its window, to read it and to store the result
  private_memory    ///< in private memory, unless a rank finds that it cannot
};

/// The description of a call. It travels with the call's first slice, so that ranks detect
/// different calls without an additional message.
struct call_header {
  /// The value of `count` for an operation whose parts differ in size.
  static constexpr std::uint64_t varied = ~std::uint64_t{0};
  /// The name of the operation that encodes tokens.
  static constexpr std::string_view coded_operation = "all_gather_coded";
  /// The value of `root` for an operation without a root.
  static constexpr std::uint32_t no_root = ~std::uint32_t{0};
  /// The value of `window` for operands in the scratch memory if the algorithm is `two_shots`.
  static constexpr std::uint32_t in_two_shots = 1;
  /// The bits of a window's number that `window` holds.
  static constexpr std::uint32_t window_mask = ~std::uint32_t{0} >> 2U;

  short_text<16> operation{};    ///< the name of the function
  short_text<8> reduction{};     ///< the name of the reduction, or the end of a codec's name
  element_type element{};        ///< the type of the elements
  std::uint32_t root = no_root;  ///< the root of the operation
  std::uint64_t count = 0;  ///< the elements that each rank contributes to another, or `varied`
  errc refusal = errc::ok;  ///< why this rank refuses; its text, of `count` bytes, is the payload
  operand_place place : 2 = operand_place::memory;  ///< where peers access the operand
  std::uint32_t window : 30 = 0;                    ///< the number of the window, or the chosen way
  std::uint64_t offset = 0;                         ///< the offset or address of the operand

  /// Returns the description of a call of `operation` without a root or a reduction.
  [[nodiscard]] static constexpr call_header of(std::string_view operation,
                                                const element_type& element,
                                                std::uint64_t count) noexcept {
    call_header made;
    made.operation = short_text<16>{operation};
    made.element = element;
    made.count = count;
    return made;
  }

  /// Returns the description of an `all_gather_coded`. The start and the end of the codec's name
  /// are stored as the element's name and the reduction, and `hidden` as the element's size.
  [[nodiscard]] static constexpr call_header coded(std::string_view codec, std::size_t hidden,
                                                   std::uint64_t tokens) noexcept {
    constexpr std::size_t end = 8;
    const std::size_t rest = codec.size() <= end       ? codec.size()
                             : codec.size() <= 2 * end ? end
                                                       : codec.size() - end;
    call_header made =
        of(coded_operation, {short_text<8>{codec}, static_cast<std::uint32_t>(hidden)}, tokens);
    made.reduction = short_text<8>{codec.substr(rest)};
    return made;
  }

  /// Returns whether the operand lies in a window.
  [[nodiscard]] constexpr bool is_in_window() const noexcept {
    return place == operand_place::window || place == operand_place::window_in_place;
  }
  /// Returns a number that is the same for ranks that make the same call, and different if calls
  /// differ in one word. Refusals differ from calls.
  [[nodiscard]] std::uint64_t digest() const noexcept {
    // All but the last one, the offset, which may differ.
    std::array<std::uint64_t, offsetof(call_header, offset) / sizeof(std::uint64_t)> words;
    std::memcpy(words.data(), this, sizeof words);
    std::uint64_t sum = 0;
    std::uint64_t factor = 0x9e37'79b9'7f4a'7c15U;  // An odd factor maps different words apart.
    for (const std::uint64_t word : words) {
      sum += word * factor;
      factor *= 0xd134'2543'de82'ef95U;
    }
    return sum;
  }
  /// Returns whether `other` describes the same call, without comparing refusals.
  [[nodiscard]] constexpr bool agrees_with(const call_header& other) const noexcept {
    return operation == other.operation && reduction == other.reduction &&
           element == other.element && root == other.root && count == other.count &&
           place == other.place && window == other.window;
  }
};
static_assert(std::is_trivially_copyable_v<call_header> &&
              sizeof(call_header) == team_map::notice_at);

/// The notice that a rank publishes with each round, in the cache line in which its payload begins.
struct round_notice {
  std::uint64_t round = 0;   ///< the latest published round of this page
  std::uint64_t digest = 0;  ///< the digest of the call, in its first round
  /// In the first round, the operand's offset in its window, in bytes, or the offer of
  /// `private_reads`. In the round after reads, the result of the reads.
  std::uint64_t offset = 0;
  std::uint32_t began = 0;  ///< in the first round of a timed call, when the rank came
  std::uint32_t ended = 0;  ///< in the first round, when the rank left the last timed call
};
static_assert(team_map::notice_at + sizeof(round_notice) <= team_map::header_bytes);

/// Returns an operand in words, such as "8 x f32", for errors.
std::string describe(const element_type& element, std::uint64_t count);

/// Returns a call in words, such as "all_reduce of 8 x f32 by sum", for errors.
std::string describe(const call_header& call);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/call_header.ipp>  // IWYU pragma: keep
#endif
