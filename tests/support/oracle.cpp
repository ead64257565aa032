// SPDX-License-Identifier: MIT
#include "support/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>

#include "support/arithmetic.hpp"
#include "support/e4m3_oracle.hpp"

namespace oracle {

row codec_of<peerbus::codec::bf16>::encode(std::span<const peerbus::bf16> token) {
  row result{bytes_of(token), {}, {}};
  for (const peerbus::bf16 value : token) result.values.push_back(widen(value));
  return result;
}

row codec_of<peerbus::codec::int8_per_token>::encode(std::span<const peerbus::bf16> token) {
  float largest = 0;
  bool finite = true;
  for (const peerbus::bf16 value : token) {
    finite = finite && std::isfinite(widen(value));
    largest = std::max(largest, std::fabs(widen(value)));
  }
  float scale = finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int8_t> codes;
  row result;
  for (const peerbus::bf16 value : token) {
    int code = 0;
    if (finite && largest != 0) {
      const float inverse = 127.0F / largest;
      code = static_cast<int>(std::nearbyint(widen(value) * inverse));
      code = std::clamp(code, -127, 127);
    }
    codes.push_back(static_cast<std::int8_t>(code));
    result.values.push_back(static_cast<float>(code) * scale);
  }
  result.bytes = bytes_of(std::span<const std::int8_t>{codes});
  result.scales = bytes_of(std::span<const float>{&scale, 1});
  return result;
}

template <class Scales>
row codec_of<peerbus::codec::fp8_e4m3_per_128<Scales>>::encode(
    std::span<const peerbus::bf16> token) {
  row result;
  for (std::size_t begin = 0; begin < token.size(); begin += 128) {
    const auto group = token.subspan(begin, 128);
    float largest = 0;
    bool finite = true;
    for (const peerbus::bf16 value : group) {
      finite = finite && std::isfinite(widen(value));
      largest = std::max(largest, std::fabs(widen(value)));
    }
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const e4m3_scale scale = finite ? e4m3_scale_of(largest, power_of_two) : e4m3_scale{nan, nan};
    for (const peerbus::bf16 value : group) {
      const unsigned sign = value.bits >> 8 & 0x80U;
      const unsigned code = e4m3_code(std::fabs(widen(value)) * scale.to_codes) & 0x7fU;
      result.bytes.push_back(static_cast<std::byte>(code | sign));
      const double magnitude = code == 0x7f ? static_cast<double>(nan) : e4m3_values()[code];
      const auto decoded = static_cast<float>(magnitude * static_cast<double>(scale.to_values));
      result.values.push_back(sign == 0 ? decoded : -decoded);
    }
    if (power_of_two) {
      const int byte = finite ? 127 + std::ilogb(scale.to_values) : 255;
      result.scales.push_back(static_cast<std::byte>(byte));
    } else {
      const auto bytes = bytes_of(std::span<const float>{&scale.to_values, 1});
      result.scales.insert(result.scales.end(), bytes.begin(), bytes.end());
    }
  }
  while (result.scales.size() % 4 != 0) result.scales.push_back(std::byte{0});
  return result;
}
template struct codec_of<peerbus::codec::fp8_e4m3_per_128_f32>;
template struct codec_of<peerbus::codec::fp8_e4m3_per_128_rounded_f32>;
template struct codec_of<peerbus::codec::fp8_e4m3_per_128_ue8m0>;

row codec_of<peerbus::codec::archetype>::encode(std::span<const peerbus::bf16> token) {
  row result = codec_of<peerbus::codec::bf16>::encode(token);
  const auto count = static_cast<float>(token.size());
  result.scales = bytes_of(std::span<const float>{&count, 1});
  return result;
}

row codec_of<user_codec>::encode(std::span<const peerbus::bf16> token) {
  row result = codec_of<peerbus::codec::bf16>::encode(token);
  std::vector<std::uint16_t> words(8, 0x5a5a);
  for (auto it = token.rbegin(); it != token.rend(); ++it)
    words.push_back(static_cast<std::uint16_t>(it->bits ^ mask));
  result.bytes = bytes_of(std::span<const std::uint16_t>{words});
  const std::uint64_t size = token.size();
  result.scales = bytes_of(std::span<const std::uint64_t>{&size, 1});
  return result;
}

std::vector<std::int64_t> choose(random& numbers, const shape& of, routes kind) {
  std::vector<std::int64_t> chosen(of.top_k, -1);
  if (kind == routes::nowhere) return chosen;
  if (kind == routes::one_expert) {
    chosen[of.top_k / 2] = static_cast<std::int64_t>(of.experts - 1);
    return chosen;
  }
  // Sorting by u^(1/w) draws without replacement with weights w.
  std::vector<std::pair<double, std::int64_t>> keys;
  for (std::size_t e = 0; e < of.experts; ++e) {
    double key = numbers.unit();
    if (kind == routes::zipf) key = std::pow(key, std::pow(static_cast<double>(e + 1), 1.2));
    keys.emplace_back(-key, static_cast<std::int64_t>(e));
  }
  std::sort(keys.begin(), keys.end());
  for (std::size_t k = 0; k < of.top_k; ++k)
    if (kind != routes::holes || numbers.below(3) != 0) chosen[k] = keys[k].second;
  return chosen;
}

input make_input(const shape& of, std::size_t rank, std::size_t count, routes kind,
                 std::uint64_t seed) {
  random numbers{seed * 1'000'003 + rank};
  input made{count, {}, {}, {}};
  made.tokens.reserve(count * of.hidden);
  for (std::size_t t = 0; t < count; ++t) {
    const std::size_t identity = rank * 64 + t;
    for (std::size_t h = 0; h < of.hidden; ++h) {
      const std::size_t mixed = identity * 131 + h * 17 + seed * 19 + numbers.below(7);
      float value = (static_cast<float>(mixed % 257) - 128.0F) / 64.0F;
      if (h < 8) value = (identity >> h) % 2 == 0 ? 2.0F : -2.0F;
      made.tokens.push_back(round(value));
    }
    // Now and then a token that is zero, huge, tiny or not a number.
    const auto last = made.tokens.end() - 1;
    switch (numbers.below(24)) {
      case 0:
        std::fill(last + 1 - static_cast<std::ptrdiff_t>(of.hidden), last + 1, round(0));
        break;
      case 1: *last = peerbus::bf16::from_bits(0xff7f); break;
      case 2: *last = peerbus::bf16::from_bits(0x0001); break;
      case 3: *last = peerbus::bf16::from_bits(0x7fc0); break;
      default: break;
    }
    for (const std::int64_t expert : choose(numbers, of, kind)) {
      made.experts.push_back(expert);
      // The weight of an empty slot must not be read.
      made.weights.push_back(expert == -1 ? std::numeric_limits<float>::quiet_NaN()
                                          : static_cast<float>(2.0 * numbers.unit() - 1.0));
    }
  }
  return made;
}

std::vector<std::size_t> owners(const shape& of) {
  std::vector<std::size_t> result;
  for (std::size_t r = 0; r < of.ranks; ++r) {
    const std::size_t share = of.experts / of.ranks + (r < of.experts % of.ranks ? 1 : 0);
    result.insert(result.end(), share, r);
  }
  return result;
}

std::vector<origin> rows_of(const shape& of, const std::vector<input>& inputs, std::size_t expert) {
  std::vector<origin> result;
  for (std::size_t r = 0; r < inputs.size(); ++r)
    for (std::size_t t = 0; t < inputs[r].count; ++t)
      for (std::size_t k = 0; k < of.top_k; ++k)
        if (inputs[r].experts[t * of.top_k + k] == static_cast<std::int64_t>(expert))
          result.push_back({r, t});
  return result;
}

std::vector<peerbus::bf16> combined(const shape& of, const input& mine, encode_function encode) {
  std::vector<peerbus::bf16> result;
  for (std::size_t t = 0; t < mine.count; ++t) {
    const row received = encode(token_of(of, mine, t));
    std::vector<float> sums(of.hidden);
    for (std::size_t k = 0; k < of.top_k; ++k) {
      const std::int64_t expert = mine.experts[t * of.top_k + k];
      if (expert == -1) continue;
      add_outputs(static_cast<std::size_t>(expert), mine.weights[t * of.top_k + k], received.values,
                  sums);
    }
    result.resize(result.size() + of.hidden);
    round(sums, std::span{result}.last(of.hidden));
  }
  return result;
}

}  // namespace oracle
