// SPDX-License-Identifier: MIT

#include "ep_bench/collectivex.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/routing_pattern.hpp"

namespace collectivex_test {
namespace {

using ep_bench::collectivex_routing;

// What is expected here was computed in Python: the recipe by hashlib's BLAKE2b, and, the same to
// the byte, build_global_routing of CollectiveX itself (bench/routing.py of the commit that
// ep_bench/collectivex.hpp names), where int64 ids and float32 weights are made of its lists.

/// FNV-1a, of 64 bits, of numbers in little-endian order.
class fingerprint {
 public:
  void add(std::uint64_t number, std::size_t bytes) noexcept {
    for (std::size_t i = 0; i < bytes; ++i) {
      value_ ^= number >> (8 * i) & 0xffU;
      value_ *= 0x100'0000'01b3U;
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf2'9ce4'8422'2325U;
};

/// The fingerprint of `ids`, as int64.
std::uint64_t of_ids(const std::vector<std::int32_t>& ids) {
  fingerprint found;
  for (const std::int32_t id : ids) found.add(static_cast<std::uint64_t>(id), 8);
  return found.value();
}

std::uint64_t of_weights(const std::vector<float>& weights) {
  fingerprint found;
  for (const float weight : weights) found.add(std::bit_cast<std::uint32_t>(weight), 4);
  return found.value();
}

/// The choices of `ranks` ranks, one after the other.
ep_bench::gate::choice chosen_by(const ep_bench::options& options, std::size_t ranks) {
  const ep_bench::gate all{options, ranks};
  ep_bench::gate::choice joined;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto choice = all.choose(rank);
    joined.experts.insert(joined.experts.end(), choice.experts.begin(), choice.experts.end());
    joined.weights.insert(joined.weights.end(), choice.weights.begin(), choice.weights.end());
  }
  return joined;
}

ep_bench::options options_of(std::size_t experts, std::size_t top_k) {
  ep_bench::options options;
  options.experts = experts;
  options.top_k = top_k;
  options.pattern.of = ep_bench::routing_pattern::kind::collectivex;
  return options;
}

}  // namespace

TEST_CASE("tokens of CollectiveX have its experts and weights") {
  const collectivex_routing routing{ep_bench::collectivex_seed, 256, 8};
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
  routing.append(0, experts, weights);
  routing.append(1023, experts, weights);
  CHECK(experts == std::vector<std::int32_t>{180, 34, 145, 49, 232, 21, 192, 77,  //
                                             78, 25, 36, 184, 191, 148, 203, 94});
  CHECK(weights == std::vector<float>{0x1.4cd0e4p-3F, 0x1.881ca2p-5F, 0x1.0d62fcp-3F,
                                      0x1.05887cp-3F, 0x1.87791ap-5F, 0x1.18be84p-3F,
                                      0x1.25bc7ep-3F, 0x1.9de332p-3F, 0x1.e86ea2p-4F,
                                      0x1.3717ccp-3F, 0x1.dcf774p-6F, 0x1.08ce1p-4F, 0x1.7b77f2p-3F,
                                      0x1.1da3b4p-4F, 0x1.73b682p-3F, 0x1.96aa9ep-3F});
}

TEST_CASE("ranks take their tokens of CollectiveX one after the other") {
  // 1024 tokens of its workload, of which 108 draw an expert twice.
  ep_bench::options options = options_of(256, 8);
  for (const std::size_t ranks : {8U, 16U}) {
    options.set_tokens(1024 / ranks);
    const auto choice = chosen_by(options, ranks);
    CHECK(of_ids(choice.experts) == 0xdb41'03d9'92ee'bdb4U);
    CHECK(of_weights(choice.weights) == 0xdf76'7cae'c26d'd992U);
  }
}

TEST_CASE("CollectiveX's routing of few experts, of another seed, by ranks of uneven tokens") {
  ep_bench::options options = options_of(7, 6);
  options.pattern.seed = std::numeric_limits<std::uint64_t>::max();
  options.tokens_of_ranks = {0, 55, 9};
  const auto choice = chosen_by(options, 3);
  CHECK(of_ids(choice.experts) == 0x54f8'e798'a734'adc5U);
  CHECK(of_weights(choice.weights) == 0xd276'cd8b'1d62'1f5fU);
}

}  // namespace collectivex_test
