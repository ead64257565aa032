// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/logarithm.hpp>

/// The logarithmic kernels, compiled for each instruction set.
namespace peerbus::kernel {

namespace scalar {
/// As `kernel_set::log2_magnitudes`.
inline void log2_magnitudes(const bf16* columns, float* out) noexcept {
  logarithm::log2_magnitudes(columns, out);
}
/// As `kernel_set::log_codes`.
inline void log_codes(const float* logs, float per_step, float offset,
                      std::uint16_t* codes) noexcept {
  logarithm::log_codes(logs, per_step, offset, codes);
}
/// As `kernel_set::log_values`.
inline void log_values(const std::uint16_t* codes, float step, float lowest, bf16* out) noexcept {
  logarithm::log_values(codes, step, lowest, out);
}
}  // namespace scalar

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

#elif defined(__aarch64__)

namespace neon {
inline void log2_magnitudes(const bf16* columns, float* out) noexcept {
  logarithm::log2_magnitudes(columns, out);
}
inline void log_codes(const float* logs, float per_step, float offset,
                      std::uint16_t* codes) noexcept {
  logarithm::log_codes(logs, per_step, offset, codes);
}
inline void log_values(const std::uint16_t* codes, float step, float lowest, bf16* out) noexcept {
  logarithm::log_values(codes, step, lowest, out);
}
}  // namespace neon

#endif

}  // namespace peerbus::kernel
