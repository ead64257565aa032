// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <span>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>

#include "moe/layout_refusals.hpp"
#include "moe/refusals.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace refusals_threads_test {

PEERBUS_TEST_REFUSALS(test::direct_threads, test::staged_threads)

namespace {

/// Rows so long that the bytes of a few do not fit into 64 bits.
struct endless_codec {
  using element = std::byte;
  static constexpr std::string_view name = "endless";
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return hidden << 56U; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
  void encode(std::span<const peerbus::bf16>, std::span<std::byte>,
              std::span<std::byte>) const noexcept {}
  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float>) const noexcept {}
};

/// Works on groups of 48 channels.
struct grouped_codec : endless_codec {
  static constexpr std::string_view name = "grouped";
  static constexpr std::size_t hidden_multiple = 48;
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return hidden; }
};

}  // namespace

TEST_CASE_TEMPLATE("hidden that does not fit the codec's groups", Layout, peerbus::moe::compact,
                   peerbus::moe::padded, peerbus::moe::rank_major) {
  const int worst_status = test::direct_threads::run(2, [](auto& comm) {
    const auto make = [&](std::size_t hidden) {
      peerbus::moe::exchange moe{comm,
                                 {.experts = 2, .hidden = hidden, .top_k = 1, .max_tokens = 8},
                                 grouped_codec{},
                                 Layout{}};
    };
    test::expect_error(peerbus::errc::invalid_argument,
                       {"hidden is 64, but codec grouped needs a multiple of 48"},
                       [&] { make(64); });
    make(96);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a size that wraps around 64 bits is too large, not small") {
  const int worst_status = test::direct_threads::run(2, [](auto& comm) {
    // 2 ranks x 8 tokens x 2^60 bytes = 2^64.
    test::expect_error(peerbus::errc::out_of_memory, {}, [&] {
      peerbus::moe::exchange moe{
          comm, {.experts = 2, .hidden = 16, .top_k = 1, .max_tokens = 8}, endless_codec{}};
    });
  });
  CHECK(worst_status == 0);
}

}  // namespace refusals_threads_test
