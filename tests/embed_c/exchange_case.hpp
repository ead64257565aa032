// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>

#include "embed_c/ranks_of_c.hpp"
#include "support/oracle.hpp"

/// One dispatch and combine through C's interface, and what it must give.
namespace embed_c {

using peerbus::bf16;

/// A token as a codec sends it, and the values that it reads as.
struct encoded {
  std::vector<std::byte> row;
  std::vector<std::byte> scales;
  std::vector<float> values;
};

template <class Codec>
encoded encode_as(std::span<const std::byte> token) {
  using token_type = peerbus::token_of<Codec>;
  const std::size_t hidden = token.size() / sizeof(token_type);
  encoded result{std::vector<std::byte>(Codec::row_bytes(hidden)),
                 std::vector<std::byte>(Codec::scale_bytes(hidden)), std::vector<float>(hidden)};
  const Codec codec{};
  codec.encode(std::span{reinterpret_cast<const token_type*>(token.data()), hidden}, result.row,
               result.scales);
  codec.decode(result.row, result.scales, result.values);
  return result;
}

/// A codec, by its number in C and by its class.
struct codec_case {
  std::int32_t codec;
  std::size_t token_bytes;  ///< of one channel
  encoded (*encode)(std::span<const std::byte> token);
};

/// The input of one rank. Rank r of n has r x `tokens` / n tokens, so that rank 0 has none.
struct input {
  static constexpr std::size_t experts = 7, hidden = 128, top_k = 3, tokens = 12;
  static constexpr std::size_t extra_bytes = 12;

  std::size_t count;
  std::vector<std::byte> values;      ///< [count, hidden]
  std::vector<std::int32_t> ids;      ///< [count, top_k]
  std::vector<float> weights;         ///< [count, top_k]
  std::vector<std::byte> attachment;  ///< [count, extra_bytes]

  input(std::size_t rank, std::size_t ranks, std::size_t token_bytes)
      : count{ranks == 1 ? tokens : rank * tokens / (ranks - 1)},
        values(count * hidden * token_bytes),
        ids(count * top_k),
        weights(count * top_k),
        attachment(count * extra_bytes) {
    oracle::random draw{rank * 1000 + ranks};
    if (token_bytes == 2)
      for (std::size_t i = 0; i < count * hidden; ++i) {
        const bf16 value{static_cast<float>(draw.unit() * 4 - 2)};
        std::memcpy(values.data() + 2 * i, &value, 2);
      }
    else
      for (std::byte& code : values) code = static_cast<std::byte>(draw.below(0x7e));
    for (std::byte& byte : attachment) byte = static_cast<std::byte>(draw.below(256));
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t k = 0; k < top_k; ++k) {
        ids[t * top_k + k] = static_cast<std::int32_t>((t * 5 + k * 2 + rank) % experts);
        if ((t + k) % 4 == 3) ids[t * top_k + k] = -1;
        weights[t * top_k + k] = static_cast<float>(draw.unit());
      }
  }

  [[nodiscard]] std::span<const std::byte> token(std::size_t t) const {
    const std::size_t bytes = values.size() / count;
    return std::span{values}.subspan(t * bytes, bytes);
  }
  [[nodiscard]] peerbus_dispatch_args args() const {
    peerbus_dispatch_args made{};
    made.struct_bytes = sizeof made;
    made.count = count;
    made.tokens = values.data();
    made.experts = ids.data();
    made.weights = weights.data();
    made.attachments[1] = attachment.data();
    return made;
  }
};

/// The output of an expert for one channel of a row.
inline bf16 expert_output(std::size_t expert, float value) {
  return bf16{value * (1.0F + 0.5F * static_cast<float>(expert))};
}

inline peerbus_exchange_config config_of(std::int32_t codec, std::int32_t layout) {
  peerbus_exchange_config config{};
  config.struct_bytes = sizeof config;
  config.codec = codec;
  config.layout = layout;
  config.experts = input::experts;
  config.hidden = input::hidden;
  config.top_k = input::top_k;
  config.max_tokens = input::tokens;
  config.attachments[1] = input::extra_bytes;
  return config;
}

/// Requires that each row that arrived is what the codec makes of its token, and fills the outputs.
void check_rows(peerbus_exchange* exchange, const peerbus_received& received,
                const codec_case& codec, std::size_t rank, std::size_t ranks);

/// Requires that `sums` are what the experts make of the tokens of `in`. With relay the sums of
/// each of `hosts`, which have as many ranks, cross as `relay_sums` says.
void check_sums(const input& in, std::span<const bf16> sums, const codec_case& codec, bool by_rank,
                std::size_t ranks, std::size_t hosts,
                std::uint32_t relay_sums = PEERBUS_RELAY_SUMS_BF16);

/// Dispatches, checks the rows, combines and checks the sums. With `weights_at_combine`, in
/// layouts by expert, the dispatch has other weights.
void check_round(peerbus_comm* comm, const peerbus_exchange_config& config, const codec_case& codec,
                 bool in_halves);

/// All codecs, in the order of their numbers.
const std::vector<codec_case>& all_codecs();

}  // namespace embed_c
