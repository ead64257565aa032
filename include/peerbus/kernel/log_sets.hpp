// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/logarithm.hpp>

/// The logarithmic kernels, compiled for the instruction sets that a compiler does not use by
/// itself.
namespace peerbus::kernel {

#if defined(__x86_64__)

namespace avx2 {
[[gnu::target("avx2,fma")]] inline void log2_magnitudes(const bf16* columns, float* out) noexcept {
  logarithm::log2_magnitudes(columns, out);
}
[[gnu::target("avx2,fma")]] inline void log_codes(const float* logs, float per_step, float offset,
                                                  std::uint16_t* codes) noexcept {
  logarithm::log_codes(logs, per_step, offset, codes);
}
[[gnu::target("avx2,fma")]] inline void log_values(const std::uint16_t* codes, float step,
                                                   float lowest, bf16* out) noexcept {
  logarithm::log_values(codes, step, lowest, out);
}
}  // namespace avx2

namespace avx512 {
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void log2_magnitudes(const bf16* columns,
                                                                         float* out) noexcept {
  logarithm::log2_magnitudes(columns, out);
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void log_codes(const float* logs,
                                                                   float per_step, float offset,
                                                                   std::uint16_t* codes) noexcept {
  logarithm::log_codes(logs, per_step, offset, codes);
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void log_values(const std::uint16_t* codes,
                                                                    float step, float lowest,
                                                                    bf16* out) noexcept {
  logarithm::log_values(codes, step, lowest, out);
}
}  // namespace avx512

#endif

}  // namespace peerbus::kernel
