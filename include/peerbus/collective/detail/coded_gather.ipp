// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/coded_gather.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE std::string object_to_coded(const team& team, const coded_shape& shape,
                                           const coded_operands& given) {
  using peerbus::detail::concat;
  if (shape.hidden == 0 || shape.hidden % given.hidden_multiple != 0)
    return concat("hidden ", shape.hidden, ", expected a positive multiple of ",
                  given.hidden_multiple);
  // Ranks compare so many bits of it. No size of a codec overflows then.
  if (constexpr std::size_t most = ~std::uint32_t{0}; shape.hidden > most)
    return concat("hidden ", shape.hidden, ", expected at most ", most);
  if (given.elements % shape.hidden != 0)
    return concat("tokens of ", given.elements, " elements, expected a multiple of hidden, ",
                  shape.hidden);
  const std::size_t all = team.size() * shape.tokens;
  const auto wrong_bytes = [&](std::string_view operand, std::span<const std::byte> range,
                               std::size_t each) {
    if (range.size() != all * each)
      return concat(operand, " of ", range.size(), " bytes, expected ", team.size(), " ranks x ",
                    shape.tokens, " tokens x ", each, " bytes = ", all * each);
    if (range.data() == nullptr && !range.empty())
      return concat(operand, " that are null but ", range.size(), " bytes long");
    return std::string{};
  };
  std::string objection = wrong_bytes("rows", given.rows, given.each_row);
  if (objection.empty()) objection = wrong_bytes("scales", given.scales, given.each_scales);
  if (!objection.empty()) return objection;
  const std::span tokens{static_cast<const std::byte*>(given.tokens),
                         given.elements * shape.element_bytes};
  if (tokens.data() == nullptr && !tokens.empty())
    return concat("tokens that are null but ", given.elements, " elements long");
  const bool is_in_place = given.may_be_in_place && !tokens.empty() &&
                           tokens.data() == given.rows.data() + team.rank().index() * tokens.size();
  if ((!is_in_place && !are_apart(tokens, given.rows)) || !are_apart(tokens, given.scales) ||
      !are_apart(given.rows, given.scales))
    return "ranges that overlap";
  const std::size_t slice = team.map().slice_bytes(1);
  if (shape.record_bytes() > slice)
    return concat("rows of ", shape.record_bytes(), " bytes with scales, expected at most ", slice,
                  ", a slice of the team's scratch memory");
  if (given.decodes_in_scratch && shape.hidden * sizeof(float) > team.map().page_bytes)
    return concat("tokens that are ", shape.hidden * sizeof(float),
                  " bytes when decoded, expected at most ", team.map().page_bytes,
                  ", a page of the team's scratch memory");
  return {};
}

PEERBUS_INLINE operation all_gather_coded_bytes(team& team, const coded_shape& shape,
                                                const coded_operands& given,
                                                const call_options& options,
                                                operation::coded_body* carry_out) {
  return {team, call_header::coded(shape.codec, shape.hidden, shape.tokens), options,
          object_to_coded(team, shape, given), carry_out};
}

PEERBUS_INLINE void gather_coded_slices(call_rounds& gather, const coded_shape& shape,
                                        encode_token encode, take_token take) {
  // The sizes of a call that is refused may have overflowed to 0.
  const std::size_t record = std::max<std::size_t>(shape.record_bytes(), 1);
  const std::size_t step = gather.slice_bytes(1) / record * record;
  const auto encode_slice = [&](std::size_t done, std::size_t bytes) {
    std::byte* const page = gather.page();
    const auto encode_share = [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        std::byte* const row = page + i * record;
        encode(done / record + i, {row, row + shape.scales_at()});
      }
    };
    gather.pool().share(bytes / record, 1, encode_share);
    gather.put([bytes](rank_id) noexcept { return byte_range{0, bytes}; });
  };
  const auto take_slices = [&](std::size_t done, std::size_t bytes) {
    // The page of the next round is this rank's own until it is published.
    // Each lane has a row of it.
    std::byte* const page = gather.page();
    const std::size_t each = shape.hidden * sizeof(float);
    const std::size_t rows = bytes / record;
    const auto take_share = [&](std::size_t lane, std::size_t begin, std::size_t end) {
      const std::span scratch{peerbus::detail::placed<float>(page + lane * each), shape.hidden};
      for (std::size_t i = begin; i < end; ++i) {
        const rank_id rank{i / rows};
        const std::byte* const row = gather.payload(rank, 0) + i % rows * record;
        take(rank.index() * shape.tokens + done / record + i % rows, {row, row + shape.scales_at()},
             scratch);
      }
    };
    const std::size_t most = std::max<std::size_t>(gather.page_bytes() / each, 1);
    gather.pool().share(gather.ranks() * rows, 1, take_share, most);
  };
  gather.in_slices(shape.tokens * record, step, encode_slice, take_slices);
}

}  // namespace peerbus::collective::detail
