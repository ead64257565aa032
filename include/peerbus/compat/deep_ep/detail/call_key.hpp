// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep::detail {

/// The names that error messages give to the calls of an agreement.
struct call_names {
  std::string_view dispatch;              ///< the name of the dispatch call
  std::string_view combine;               ///< the name of the combine call
  std::string_view handle = "handle";     ///< the argument of the combine that names its dispatch
  std::string_view owner = "the buffer";  ///< the object whose members are the calls
};
inline constexpr call_names normal_names{"dispatch", "combine"};
inline constexpr call_names low_latency_names{"low_latency_dispatch", "low_latency_combine"};

/// The arguments of a collective call that must be equal on all ranks, as numbers. A table of
/// `key_part` names them.
using call_key = std::array<std::uint64_t, 10>;

/// The name of a number of a `call_key`, as DeepEP's users know it.
struct key_part {
  std::string_view name;
  std::array<std::string_view, 3> words{};  ///< the texts of the values 0, 1, 2; empty: numbers
};
using key_parts = std::span<const key_part>;

inline constexpr std::array<std::string_view, 3> true_or_false{"false", "true"};

/// The first number of the keys of normal and of expanded calls, which is the form of the rows. The
/// keys of the two kinds differ in this number, so that ranks that make calls of different kinds
/// get an error (`collective_calls::call_elsewhere`).
inline constexpr key_part form_part{"do_expand", true_or_false};
inline constexpr std::uint64_t form_of_rows = 0;
inline constexpr std::uint64_t form_expanded = 1;

/// Returns the text of a value of `part`.
inline std::string text_of(const key_part& part, std::uint64_t value) {
  if (value < part.words.size() && !part.words[value].empty())
    return std::string{part.words[value]};
  return std::to_string(value);
}

/// Returns the error of the call named `call` if `key`, the key of rank 0, and `other`, the key of
/// `rank`, differ. Returns nothing if they are equal.
inline std::optional<error> difference(std::string_view call, key_parts parts, const call_key& key,
                                       const call_key& other, rank_id rank) {
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (key[i] != other[i])
      return error{errc::mismatch, peerbus::detail::concat(
                                       call, ": ", parts[i].name, " is ", text_of(parts[i], key[i]),
                                       " on ", rank_id{0}, " but ", text_of(parts[i], other[i]),
                                       " on ", rank, ", expected the same on all ranks")};
  return std::nullopt;
}

}  // namespace peerbus::deep_ep::detail
