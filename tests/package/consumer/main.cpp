// SPDX-License-Identifier: MIT
// With other.cpp: a program of two translation units that both include everything.
#include <array>
#include <cmath>
#include <cstdint>

#include <peerbus/peerbus.hpp>

#include "other.hpp"

namespace {

// One token, on one rank, to its only expert and back.
int dispatch_and_combine(peerbus::communicator<peerbus::loopback>& comm) {
  peerbus::moe::exchange moe{comm,
                             {.experts = 1, .hidden = hidden, .top_k = 1, .max_tokens = 1},
                             peerbus::codec::fp8_e4m3_per_128_ue8m0{}};
  std::array<peerbus::bf16, hidden> token;
  token.fill(peerbus::bf16{0.5F});
  const std::array<std::int32_t, 1> ids{0};
  const std::array<float, 1> weights{2.0F};
  const auto received = moe.dispatch(token, {ids, weights});
  const auto& expert = received.experts().front();
  std::array<float, hidden> row;
  expert.decode(0, row);
  for (std::size_t i = 0; i < hidden; ++i) expert.output(0)[i] = peerbus::bf16{row[i]};
  moe.combine(received, token);
  return static_cast<float>(token.back()) == 1.0F && window_of_another_unit(comm) ? 0 : 1;
}

}  // namespace

int main() {
  static_assert(peerbus::version.major_part == PEERBUS_VERSION_MAJOR);
  static_assert(peerbus::token_codec<peerbus::codec::nothing> &&
                peerbus::verbatim_codec<peerbus::codec::fp8_e4m3_as_given>);
  std::array<peerbus::bf16, hidden> token;
  token.fill(peerbus::bf16{1.0F});
  if (!(std::abs(first_values_through_codecs(token) - 5.0F) < 0.01F)) return 1;
  return peerbus::run<peerbus::loopback>(1, dispatch_and_combine);
}
