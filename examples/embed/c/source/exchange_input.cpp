// SPDX-License-Identifier: MIT
#include "exchange_input.hpp"

#include <algorithm>
#include <string_view>

#include <peerbus/core/text.hpp>

#include "objects.hpp"

namespace peerbus::c_library {

namespace {

/// Requires that an array may be read as values of `alignment` bytes. Throws: `error`.
void require_aligned(const void* values, std::size_t alignment, std::string_view name) {
  if (reinterpret_cast<std::uintptr_t>(values) % alignment != 0)
    throw error{errc::invalid_argument, concat(name, " is not aligned to ", alignment, " bytes")};
}

/// Requires that `count` rows of `columns` bytes or values are no more than memory can have.
/// Throws: `error`.
void require_countable(std::uint64_t count, std::size_t columns) {
  static constexpr std::uint64_t most = std::uint64_t{1} << 56U;
  if (columns != 0 && count > most / columns)
    throw error{errc::invalid_argument, concat("count is ", count, ", more than memory can have")};
}

void read(const peerbus_dispatch_args& args, const moe::exchange_config& config,
          std::size_t value_bytes, dispatch_input& input) {
  require_countable(args.count, std::max(config.hidden, config.top_k));
  require_aligned(args.tokens, value_bytes, "tokens");
  require_aligned(args.weights, alignof(float), "weights");
  require(args.expert_id_bits == 0 || args.expert_id_bits == 32 || args.expert_id_bits == 64,
          "expert_id_bits is neither 32 nor 64");
  const bool wide = args.expert_id_bits == 64;
  require_aligned(args.experts, wide ? 8 : 4, "experts");
  const std::size_t slots = args.count * config.top_k;
  const std::span weights{args.weights, slots};
  input.tokens = args.tokens;
  input.values = args.count * config.hidden;
  input.route =
      wide
          ? moe::routing{std::span{static_cast<const std::int64_t*>(args.experts), slots}, weights}
          : moe::routing{std::span{static_cast<const std::int32_t*>(args.experts), slots}, weights};
  for (std::size_t a = 0; a < moe::max_attachments; ++a) {
    require_countable(args.count, config.attachments[a]);
    input.options.attachments[a] = {static_cast<const std::byte*>(args.attachments[a]),
                                    args.count * config.attachments[a]};
  }
  if (args.note != nullptr)
    input.options.note = {static_cast<const std::byte*>(args.note), config.note_bytes};
}

}  // namespace

dispatch_input read_input(const peerbus_dispatch_args& args, const moe::exchange_config& config,
                          std::size_t value_bytes, std::size_t ranks) {
  const std::span<std::int64_t> waited{args.waited_ns, args.waited_ns == nullptr ? 0 : ranks};
  dispatch_input input{
      nullptr,
      0,
      {std::span<const std::int32_t>{}, {}},
      {.until = deadline_of(args.timeout_ns), .refuse = args.refuse != 0, .waited = waited},
      {}};
  try {
    read(args, config, value_bytes, input);
  } catch (const error& found) {
    input.problem = found;
    input.options.refuse = true;
  }
  return input;
}

std::span<bf16> read_out(const peerbus_combine_args& args, const moe::exchange_config& config) {
  require_countable(args.count, config.hidden);
  require_aligned(args.out, alignof(bf16), "out");
  return {static_cast<bf16*>(args.out), args.count * config.hidden};
}

moe::combine_terms read_terms(const peerbus_combine_args& args,
                              const moe::exchange_config& config) {
  require_countable(args.count, std::max(config.hidden, config.top_k));
  require_aligned(args.weights, alignof(float), "weights");
  require_aligned(static_cast<const void*>(args.local), alignof(void*), "local");
  const std::size_t slots = args.count * config.top_k;
  moe::combine_terms terms;
  if (args.weights != nullptr) terms.weights = {args.weights, slots};
  for (std::size_t b = 0; b < terms.bias.size(); ++b) {
    require_aligned(args.bias[b], alignof(bf16), "bias");
    if (args.bias[b] != nullptr)
      terms.bias[b] = {static_cast<const bf16*>(args.bias[b]), args.count * config.hidden};
  }
  if (args.local != nullptr)
    terms.local = {reinterpret_cast<const bf16* const*>(args.local), slots};
  return terms;
}

moe::replica_choice read_choice(const peerbus_replica_choice* given, std::size_t physical_experts,
                                std::size_t experts, std::size_t ranks) {
  const auto choice = read_options(given, "replicas");
  const auto table = [](const std::uint32_t* entries, std::size_t count) {
    return std::span{entries, entries == nullptr ? 0 : count};
  };
  return {.policy = static_cast<moe::replica_policy>(choice.policy),
          .quotas = table(choice.quotas, physical_experts),
          .chosen = table(choice.chosen, experts),
          .distances = table(choice.distances, ranks)};
}

void read_experts(const peerbus_exchange_config& given, std::size_t ranks,
                  moe::exchange_config& config) {
  const std::size_t places = given.physical_experts == 0 ? given.experts : given.physical_experts;
  config.experts = given.experts;
  config.replicas = read_choice(given.replicas, places, given.experts, ranks);
  if (given.experts_of_rank != nullptr) config.experts_of_rank = {given.experts_of_rank, ranks};
  if (given.physical_to_logical != nullptr)
    config.physical_to_logical = {given.physical_to_logical, places};
  else if (places != given.experts)
    throw error{errc::invalid_argument,
                concat("physical_experts is ", places,
                       " without physical_to_logical, expected 0 or experts, ", given.experts)};
}

}  // namespace peerbus::c_library
