// SPDX-License-Identifier: MIT
// ctest: tsan
//
// Sends each shipped codec once through dispatch and combine. tests/conformance varies the shapes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace exchange_test {

TEST_CASE_TEMPLATE("dispatch and combine on three ranks", Codec, peerbus::codec::bf16,
                   peerbus::codec::int8_per_token, peerbus::codec::fp8_e4m3_per_128_f32,
                   peerbus::codec::fp8_e4m3_per_128_ue8m0) {
  using ranks = test::threads_over<peerbus::loopback>;
  conformance::check_exchange<ranks, Codec>({7, 256, 3, 16, oracle::routes::zipf}, 3);
}

namespace {

/// The codec that docs/codecs.md describes for tokens that are already quantised.
struct codes_travel_apart {
  using element = std::byte;
  static constexpr std::string_view name = "codes_travel_apart";
  static constexpr std::size_t row_bytes(std::size_t) noexcept { return 16; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
  void encode(std::span<const peerbus::bf16>, std::span<std::byte> row,
              std::span<std::byte>) const noexcept {
    std::ranges::fill(row, std::byte{0});
  }
  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    std::ranges::fill(out, std::numeric_limits<float>::quiet_NaN());
  }
};
static_assert(peerbus::token_codec<codes_travel_apart>);

}  // namespace

TEST_CASE("tokens that are quantised already travel as attachments") {
  using ranks = test::threads_over<peerbus::loopback>;
  constexpr std::size_t hidden = 256;
  constexpr std::size_t size = 3;
  const int worst_status = ranks::run(size, [](auto& comm) {
    peerbus::moe::exchange moe{comm,
                               {.experts = size,
                                .hidden = hidden,
                                .top_k = 1,
                                .max_tokens = 1,
                                .attachments = {hidden, hidden / 128 * sizeof(float)}},
                               codes_travel_apart{}};
    // Each rank sends a token to the next rank's expert. Codes and scales identify the sender.
    const std::size_t rank = comm.rank().index();
    const std::vector<peerbus::bf16> tokens(hidden);
    const std::vector<std::int32_t> expert{static_cast<std::int32_t>((rank + 1) % size)};
    const std::vector<float> weight{1.0F};
    const peerbus::fp8_e4m3 own_code{static_cast<float>(rank + 1)};
    const std::vector<peerbus::fp8_e4m3> codes(hidden, own_code);
    const std::vector<float> scales{0.5F, static_cast<float>(rank)};
    auto received = moe.dispatch(
        tokens, {expert, weight},
        {.attachments = {std::as_bytes(std::span{codes}), std::as_bytes(std::span{scales})}});

    const std::size_t sender = (rank + size - 1) % size;
    const peerbus::fp8_e4m3 sender_code{static_cast<float>(sender + 1)};
    const auto& own_expert = received.experts()[0];
    test::expect_equal(own_expert.count(), 1U, "rows");
    const auto got_codes = own_expert.template attachment<peerbus::fp8_e4m3>(0);
    const auto got_scales = own_expert.template attachment<float>(1);
    test::expect(std::ranges::equal(got_codes, std::vector(hidden, sender_code)), "codes of ",
                 sender);
    test::expect(std::ranges::equal(got_scales, std::vector{0.5F, static_cast<float>(sender)}),
                 "scales of ", sender);

    std::ranges::fill(own_expert.output(0), peerbus::bf16{static_cast<float>(rank)});
    std::vector<peerbus::bf16> out(hidden);
    moe.combine(received, out);
    const peerbus::bf16 expected{static_cast<float>(expert[0])};
    test::expect(out == std::vector<peerbus::bf16>(hidden, expected), "the expert's output");
  });
  CHECK(worst_status == 0);
}

}  // namespace exchange_test
