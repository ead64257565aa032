// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

/// Tables of the parts of an operand, in bytes, by rank. A team has two tables: the parts that this
/// rank sends to each rank, and the parts that it receives from each rank.
namespace peerbus::collective::detail {

/// Fills `table` with the parts of an operand of `operand_bytes` bytes. Returns the objection to
/// the parts, or an empty string. `operand` is "input" or "output", for the text.
std::string lay_out(std::span<byte_range> table, const part_layout& parts,
                    std::size_t operand_bytes, const element_type& element,
                    std::string_view operand);

/// Returns the objection to parts of an operand that overlap, or an empty string. `operand` is as
/// for `lay_out`.
/// Cost: one pass if parts lie in the order of ranks, otherwise each part is compared with each.
std::string object_to_overlap(std::span<const byte_range> table, const element_type& element,
                              std::string_view operand);

/// Fills `table` with the parts of an output. Returns the objection to the parts, overlaps
/// included, or an empty string.
std::string lay_out_output(std::span<byte_range> table, const part_layout& parts,
                           const request& given);

/// Fills both tables of rank `self` for a request. Returns the objection to its operands, or an
/// empty string.
std::string object_to_parts(std::span<byte_range> sends, std::span<byte_range> receives,
                            rank_id self, const request& given);

/// Returns the text that an operand differs in size from a rank's part: "an input of 3 elements,
/// expected counts[1], which is 4".
std::string wrong_part(std::string_view operand, std::size_t given, rank_id rank, std::size_t part);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/part_tables.ipp>  // IWYU pragma: keep
#endif
