// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE std::string lay_out(std::span<byte_range> table, const part_layout& parts,
                                   std::size_t operand_bytes, const element_type& element,
                                   std::string_view operand) {
  using peerbus::detail::concat;
  const std::size_t ranks = table.size();
  if (parts.counts.size() != ranks)
    return concat(parts.counts.size(), " counts of its ", operand, ", expected one for each of ",
                  ranks, " ranks");
  if (!parts.displacements.empty() && parts.displacements.size() != ranks)
    return concat(parts.displacements.size(), " displacements of its ", operand,
                  ", expected none or one for each of ", ranks, " ranks");
  const std::uint64_t held = operand_bytes / element.bytes;
  std::uint64_t end = 0;
  for (const rank_id rank : all_ranks{ranks}) {
    const std::uint64_t count = parts.counts[rank.index()];
    const std::uint64_t begin =
        parts.displacements.empty() ? end : parts.displacements[rank.index()];
    // Nothing overflows in this comparison, nor in the products after it.
    if (begin > held || count > held - begin)
      return concat("an ", operand, " of ", held, " elements, whose part of ", rank, " has ", count,
                    " elements from element ", begin, " on");
    table[rank.index()] = {begin * element.bytes, count * element.bytes};
    end = begin + count;
  }
  return {};
}

PEERBUS_INLINE std::string object_to_overlap(std::span<const byte_range> table,
                                             const element_type& element,
                                             std::string_view operand) {
  bool is_ascending = true;
  std::size_t end = 0;
  for (const byte_range& part : table) {
    if (part.bytes == 0) continue;
    is_ascending = is_ascending && part.offset >= end;
    end = part.offset + part.bytes;
  }
  if (is_ascending) return {};
  for (std::size_t i = 0; i < table.size(); ++i)
    for (std::size_t j = i + 1; j < table.size(); ++j) {
      const byte_range& a = table[i];
      const byte_range& b = table[j];
      if (a.bytes == 0 || b.bytes == 0) continue;
      if (a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes) continue;
      const auto elements = [&](const byte_range& part) {
        return peerbus::detail::concat(part.bytes / element.bytes, " from element ",
                                       part.offset / element.bytes, " on");
      };
      return peerbus::detail::concat("an ", operand, " whose parts of ", rank_id{i}, " and ",
                                     rank_id{j}, " overlap: ", elements(a), ", and ", elements(b));
    }
  return {};
}

PEERBUS_INLINE std::string lay_out_output(std::span<byte_range> table, const part_layout& parts,
                                          const request& given) {
  std::string objection = lay_out(table, parts, given.output.size(), given.element, "output");
  return objection.empty() ? object_to_overlap(table, given.element, "output") : objection;
}

PEERBUS_INLINE std::string object_to_parts(std::span<byte_range> sends,
                                           std::span<byte_range> receives, rank_id self,
                                           const request& given) {
  const pattern& kind = pattern_of(given.what);
  const bool gives = kind.gives(self == given.root);
  const bool takes = kind.takes(self == given.root);
  // An operand without rows is one part, for the root or from it, or for all ranks.
  const auto lay_out_whole = [&](std::span<byte_range> table, std::size_t bytes) {
    const byte_range whole{0, bytes};
    std::ranges::fill(table, kind.has_root() ? byte_range{} : whole);
    if (kind.has_root()) table[given.root.index()] = whole;
  };
  std::string objection;
  std::ranges::fill(sends, byte_range{});
  std::ranges::fill(receives, byte_range{});
  if (!kind.input_rows)
    lay_out_whole(sends, given.input.size());
  else if (gives)
    objection = lay_out(sends, given.parts, given.input.size(), given.element, "input");
  if (!kind.output_rows)
    lay_out_whole(receives, given.output.size());
  else if (takes && objection.empty())
    objection =
        lay_out_output(receives, kind.input_rows ? given.received_parts : given.parts, given);
  if (!objection.empty()) return objection;

  if (kind.input_rows && kind.output_rows) {
    objection = object_to(given, true, true, 0);
    const bool is_in_place = !given.output.empty() && given.is_in_place();
    if (objection.empty() && is_in_place && !std::ranges::equal(sends, receives))
      return "operands in place whose parts differ, expected equal counts and displacements";
    return objection;
  }
  // In place, a part that overlaps the own one would be read after the output is written.
  if (kind.reduces && !are_apart(given.input, given.output))
    objection = object_to_overlap(sends, given.element, "input");
  if (!objection.empty()) return objection;
  const byte_range& own = (kind.input_rows ? sends : receives)[self.index()];
  const std::size_t part = own.bytes / given.element.bytes;
  if (kind.input_rows && gives && given.output.size() != own.bytes)
    return wrong_part("output", given.output_count(), self, part);
  if (kind.output_rows && takes && given.input.size() != own.bytes)
    return wrong_part("input", given.input_count(), self, part);
  return object_to(given, gives, takes, own.offset);
}

PEERBUS_ERROR_PATH std::string wrong_part(std::string_view operand, std::size_t given, rank_id rank,
                                          std::size_t part) {
  return peerbus::detail::concat("an ", operand, " of ", given, " elements, expected counts[",
                                 rank.index(), "], which is ", part);
}

}  // namespace peerbus::collective::detail
