// SPDX-License-Identifier: MIT
#include "support/arithmetic.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>

namespace oracle {
namespace {

using peerbus::bf16;

// Without branches on the value, which nobody can predict.
inline bf16 nearest(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t below = bits >> 16 & 0x7fffU;
  const std::uint32_t above = below + 1;
  const auto exact = static_cast<double>(std::bit_cast<float>(bits & 0x7fff'ffffU));
  const auto low = static_cast<double>(std::bit_cast<float>(below << 16));
  const double high =
      above == 0x7f80 ? 0x1p128 : static_cast<double>(std::bit_cast<float>(above << 16));
  const double down = exact - low;
  const double up = high - exact;
  // Both are false for an infinity.
  const auto is_above_nearer = static_cast<std::uint32_t>(up < down);
  const auto is_tie = static_cast<std::uint32_t>(up == down);
  const std::uint32_t magnitude = below + (is_above_nearer | (is_tie & below));
  const std::uint32_t rounded = value != value ? 0x7fc0U : magnitude | (bits >> 16 & 0x8000U);
  return bf16::from_bits(static_cast<std::uint16_t>(rounded));
}

inline bf16 output(float expert, std::uint32_t channel, float value) {
  const auto offset = static_cast<float>(static_cast<std::int32_t>(channel % 5));
  return nearest(std::fma(1.0F + expert / 64.0F, value, expert / 8.0F - offset));
}

// Each function below calls its loop through this, because the loops are most of what tests compute
// and std::fma is slow unless it is compiled to an instruction.
#if defined(__x86_64__)
#define ORACLE_INLINE __attribute__((always_inline))
template <class Loop>
[[gnu::target("avx2,fma")]] void run_with_fma(const Loop& loop) {
  loop();
}
const bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
template <class Loop>
void run(const Loop& loop) {
  if (has_fma)
    run_with_fma(loop);
  else
    loop();
}
#else
#define ORACLE_INLINE
template <class Loop>
void run(const Loop& loop) {
  loop();
}
#endif

}  // namespace

bf16 round(float value) { return nearest(value); }

void round(std::span<const float> values, std::span<bf16> out) {
  run([values, out]() ORACLE_INLINE {
    for (std::size_t h = 0; h < out.size(); ++h) out[h] = nearest(values[h]);
  });
}

bf16 apply(std::size_t expert, std::size_t channel, float value) {
  return output(static_cast<float>(expert), static_cast<std::uint32_t>(channel), value);
}

void apply(std::size_t expert, std::span<const float> values, std::span<bf16> out) {
  run([values, out, e = static_cast<float>(expert)]() ORACLE_INLINE {
    for (std::uint32_t h = 0; h < out.size(); ++h) out[h] = output(e, h, values[h]);
  });
}

void add_outputs(std::size_t expert, float weight, std::span<const float> values,
                 std::span<float> sums) {
  run([values, sums, weight, e = static_cast<float>(expert)]() ORACLE_INLINE {
    for (std::uint32_t h = 0; h < sums.size(); ++h)
      sums[h] = std::fma(weight, widen(output(e, h, values[h])), sums[h]);
  });
}

}  // namespace oracle
