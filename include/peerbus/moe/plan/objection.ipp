// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/plan/check_experts.hpp>
#include <peerbus/moe/plan/objection.hpp>

namespace peerbus::moe::detail {

using peerbus::detail::concat;

/// Returns the error for a configuration that is wrong in the way that `parts` say.
PEERBUS_ERROR_PATH error wrong(std::initializer_list<peerbus::detail::text_part> parts) {
  return error{errc::invalid_argument, concat({"exchange: ", concat(parts)})};
}

/// Returns the largest number of rows that one rank may receive. The result is a double, because
/// the number may exceed the range of integers.
PEERBUS_INLINE double worst_rows(const exchange_config& config, std::size_t ranks,
                                 const layout_facts& layout) {
  const double arriving = static_cast<double>(ranks) * static_cast<double>(config.max_tokens);
  const auto experts = static_cast<double>(placement_of(config, ranks).most());
  if (layout.shape == block_shape::compact)
    return arriving * std::min(static_cast<double>(config.top_k), experts) +
           experts * static_cast<double>(layout.alignment - 1);
  return layout.shape == block_shape::padded ? arriving * experts : arriving;
}

/// Returns an error unless `layout` can have the protocol of `config`.
inline std::optional<error> objection_to_protocol(const exchange_config& config,
                                                  const layout_facts& layout) {
  const dispatch_protocol given = config.protocol;
  if (given != dispatch_protocol::automatic && given != dispatch_protocol::counts_first &&
      given != dispatch_protocol::one_phase)
    return wrong({"protocol is ", static_cast<std::uint32_t>(given),
                  ", expected dispatch_protocol::automatic, counts_first or one_phase"});
  if (given == dispatch_protocol::automatic || layout.only == dispatch_protocol::automatic ||
      given == layout.only)
    return std::nullopt;
  const bool has_slots = layout.only == dispatch_protocol::one_phase;
  return wrong({"protocol is ", describe(given), ", but layout ", layout.name,
                has_slots ? " has slots" : " has no slots", ", expected automatic or ",
                describe(layout.only), ", or an automatic layout"});
}

/// Returns an error unless the configuration fits outputs that are LogFMT-10 rows, if they may be.
inline std::optional<error> objection_to_logfmt(const exchange_config& config) {
  namespace logfmt10 = codec::logfmt10;
  if (!config.logfmt_outputs) return std::nullopt;
  if (config.hidden % logfmt10::hidden_multiple != 0)
    return wrong({"logfmt_outputs is true and hidden is ", config.hidden,
                  ", expected a multiple of ", logfmt10::hidden_multiple});
  if (const std::size_t heads = logfmt10::head_bytes(config.hidden);
      config.output_attachment != heads)
    return wrong({"logfmt_outputs is true and output_attachment is ", config.output_attachment,
                  ", expected the bytes of heads, ", heads});
  return std::nullopt;
}

PEERBUS_INLINE std::optional<error> objection_to(const exchange_config& config, std::size_t ranks,
                                                 const codec_facts& codec,
                                                 const layout_facts& layout) {
  if (config.experts == 0) return wrong({"experts is 0, expected at least 1"});
  if (auto why = objection_to_level(config, ranks, codec, layout)) return why;
  if (config.top_k > config.experts)
    return wrong({"top_k is ", config.top_k, ", expected at most experts, ", config.experts});
  if (config.weights_at_combine && layout.shape == block_shape::by_rank)
    return wrong({"weights_at_combine with layout ", layout.name,
                  ", whose outputs the experts' rank has weighted; expected a layout by expert"});
  return std::nullopt;
}

PEERBUS_INLINE std::optional<error> objection_to_level(const exchange_config& config,
                                                       std::size_t ranks, const codec_facts& codec,
                                                       const layout_facts& layout) {
  constexpr std::size_t most = std::size_t{1} << 24U;
  if (config.experts > max_experts)
    return wrong({"experts is ", config.experts, ", expected at most ", max_experts});
  if (ranks > max_ranks) return wrong({ranks, " ranks, expected at most ", max_ranks});
  if (auto why = objection_to_experts("exchange", config, ranks)) return why;
  if (config.top_k == 0 || config.top_k > max_top_k)
    return wrong({"top_k is ", config.top_k, ", expected 1 to ", max_top_k});
  if (config.max_tokens == 0) return wrong({"max_tokens is 0, expected at least 1"});
  if (config.in_flight == 0 || config.in_flight > max_in_flight)
    return wrong({"in_flight is ", config.in_flight, ", expected 1 to ", max_in_flight});
  if (config.outputs != outputs_at::expert && config.outputs != outputs_at::home)
    return wrong({"outputs is ", static_cast<std::uint32_t>(config.outputs),
                  ", expected outputs_at::expert or outputs_at::home"});
  for (std::size_t a = 0; a < max_attachments; ++a)
    if (config.attachments[a] % 4 != 0 || config.attachments[a] > most)
      return wrong({"attachment ", a, " has ", config.attachments[a],
                    " bytes per token, expected a multiple of 4, at most ", most});
  if (config.output_attachment % 4 != 0 || config.output_attachment > most)
    return wrong({"output_attachment is ", config.output_attachment,
                  " bytes per output, expected a multiple of 4, at most ", most});
  if (auto why = objection_to_logfmt(config)) return why;
  if (config.note_bytes > most)
    return wrong({"note_bytes is ", config.note_bytes, ", expected at most ", most});
  if (layout.shape == block_shape::compact)
    if (layout.alignment == 0 || layout.alignment > most)
      return wrong({"alignment is ", layout.alignment, " rows, expected 1 to ", most});
  if (auto why = objection_to_protocol(config, layout)) return why;
  if (config.same_bits && layout.shape == block_shape::by_rank)
    return wrong(
        {"same_bits with layout ", layout.name,
         ", whose outputs are sums over the experts that a rank holds; expected a layout by "
         "expert"});

  if (config.hidden == 0 || config.hidden > max_hidden)
    return wrong({"hidden is ", config.hidden, ", expected 1 to ", max_hidden});
  if (config.hidden % codec.hidden_multiple != 0)
    return wrong({"hidden is ", config.hidden, ", but codec ", codec.name, " needs a multiple of ",
                  codec.hidden_multiple});
  const std::size_t row = codec.format.row_bytes;
  const std::size_t scales = codec.format.scale_bytes;
  if (row % 16 != 0 || row % codec.element_bytes != 0)
    return wrong({"hidden is ", config.hidden, ", which makes a row of ", row, " bytes with codec ",
                  codec.name, ", expected a multiple of 16 bytes and of its element of ",
                  codec.element_bytes});
  if (scales % 4 != 0)
    return wrong({"hidden is ", config.hidden, ", which makes ", scales,
                  " bytes of scales with codec ", codec.name, ", expected a multiple of 4"});
  if (config.hidden % 8 != 0)
    return wrong({"hidden is ", config.hidden, ", which makes an output of ",
                  config.hidden * sizeof(bf16), " bytes, expected a multiple of 16 bytes"});

  // Row numbers have 32 bits. The check divides, because the product may not fit in 64 bits.
  if (config.max_tokens > max_rows / ranks / config.top_k)
    return wrong({"ranks x max_tokens x top_k is ", ranks, " x ", config.max_tokens, " x ",
                  config.top_k, ", expected less than 2^32"});
  const double rows = worst_rows(config, ranks, layout);
  if (rows >= 0x1p32)
    return wrong(
        {"layout ", layout.name, " may need ", rows, " rows on one rank, expected less than 2^32"});
  // An estimate in floating point, because the exact sizes of memory_map might wrap around. A size
  // that fits in 62 bits but not in the machine is refused when the window is made.
  double bytes_per_row = static_cast<double>(row) + static_cast<double>(scales) +
                         static_cast<double>(combine_bytes_per_row(config.hidden)) +
                         static_cast<double>(config.output_attachment);
  for (const std::size_t bytes : config.attachments) bytes_per_row += static_cast<double>(bytes);
  if (rows * bytes_per_row * static_cast<double>(config.in_flight) > 0x1p62)
    return error{errc::out_of_memory, concat({"exchange: up to ", rows, " rows of ", bytes_per_row,
                                              " bytes for each of ", config.in_flight,
                                              " batches, expected less than 2^62 bytes in all"})};
  return std::nullopt;
}

}  // namespace peerbus::moe::detail
