// SPDX-License-Identifier: MIT
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/core/error.hpp>

namespace size_hint_test {

using peerbus::deep_ep::config;
using peerbus::deep_ep::low_latency_array_bytes;
using peerbus::deep_ep::low_latency_map;
using peerbus::deep_ep::low_latency_rdma_size_hint;
using peerbus::deep_ep::low_latency_shape;

namespace {

/// Bytes of the heads of a LogFMT output.
constexpr std::size_t heads = 7168 / 128 * 4;
constexpr std::size_t deepep_bytes = 1908410496;  // 128 tokens, hidden 7168, 256 experts.

std::string refusal(const config& given) {
  try {
    static_cast<void>(given.checked());
  } catch (const peerbus::error& e) {
    CHECK(e.code() == peerbus::errc::invalid_argument);
    return std::string{e.text()};
  }
  return "none";
}

std::size_t component(const peerbus::moe::memory_map& map, std::string_view name) {
  for (const auto& part : map.components())
    if (part.name == name) return part.bytes;
  return 0;
}

}  // namespace

TEST_CASE("the low-latency size hint is DeepEP's figure, to the byte") {
  struct golden {
    std::size_t tokens, hidden, ranks, experts, bytes;
  };
  for (const golden& g :
       {golden{128, 3072, 2, 288, 920127872}, golden{128, 7168, 8, 256, deepep_bytes},
        golden{128, 7168, 8, 288, 2146961792}, golden{256, 7168, 8, 256, 3816818816},
        golden{512, 7168, 8, 288, 8587839872}, golden{1024, 7168, 8, 256, 15267268736},
        golden{16, 5120, 8, 256, 170395776}})
    CHECK(low_latency_rdma_size_hint(g.tokens, g.hidden, g.ranks, g.experts) == g.bytes);
  for (const std::size_t ranks : std::initializer_list<std::size_t>{1, 8, 320})
    CHECK(low_latency_rdma_size_hint(128, 7168, ranks, 256) == deepep_bytes);
  static_assert(low_latency_rdma_size_hint(128, 7168, 8, 256) == deepep_bytes);
  // By hand, for few channels, where dispatch's header outweighs combine's metadata: sent is
  // 8 x 16 x 260, received 8 x 16 x 272, signals 128; twice that, and 128 more.
  CHECK(low_latency_rdma_size_hint(16, 128, 1, 8) == 136'576);
}

TEST_CASE("sizes whose product is absurd do not wrap around") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  constexpr std::size_t many = std::size_t{1} << 63U;
  for (const std::size_t size : {most, std::size_t{1} << 32U, std::size_t{1} << 40U}) {
    CHECK(low_latency_rdma_size_hint(size, size, 8, size) >= many);
    CHECK(peerbus::deep_ep::ep_buffer_size_hint(size, size, size, 8, true, true) >= many);
  }
  CHECK(low_latency_rdma_size_hint(128, most, 8, 256) >= many);
  CHECK(peerbus::deep_ep::ep_buffer_size_hint(8, 128, 7168, most, false, false) >= many);
  CHECK(config{}.nvl_buffer_size_hint(most, 8) >= many);
  CHECK(config{.num_max_nvl_chunked_recv_tokens = std::size_t{1} << 60U}.nvl_buffer_size_hint(
            14336, 8) >= many);
}

TEST_CASE("the normal mode's size hint is DeepEP's figure") {
  CHECK(config{}.nvl_buffer_size_hint(14336, 2) == 83'927'552);
  CHECK(config{}.nvl_buffer_size_hint(14336, 8) == 335'709'824);
  // By hand: 10 channels x 8 ranks x ((2 x 2 nodes + 3) x 4 + 256 x 16392), in whole 128 bytes.
  CHECK(config{}.nvl_buffer_size_hint(14336, 16) == 335'710'464);
  for (const std::size_t ranks : std::initializer_list<std::size_t>{0, 9, 15, 17})
    CHECK_THROWS_AS(static_cast<void>(config{}.nvl_buffer_size_hint(14336, ranks)), peerbus::error);
}

TEST_CASE("a config that DeepEP would not accept is refused by member, value and rule") {
  CHECK(refusal(config{}) == "none");
  CHECK(config{}.num_max_nvl_chunked_send_tokens == 6);
  CHECK(config{}.num_max_rdma_chunked_send_tokens == 6);
  CHECK(refusal({.num_sms = 2}) == "none");
  CHECK(refusal({.num_sms = 3}) ==
        "DeepEP's config: num_sms is 3, expected an even number, at least 2");
  CHECK(refusal({.num_sms = 0}) ==
        "DeepEP's config: num_sms is 0, expected an even number, at least 2");
  CHECK(refusal({.num_max_nvl_chunked_send_tokens = 255}) == "none");
  CHECK(refusal({.num_max_nvl_chunked_send_tokens = 256}) ==
        "DeepEP's config: num_max_nvl_chunked_recv_tokens is 256, expected more than "
        "num_max_nvl_chunked_send_tokens, 256");
  CHECK(refusal({.num_max_nvl_chunked_send_tokens = 0}) ==
        "DeepEP's config: num_max_nvl_chunked_send_tokens is 0, expected at least 1");
  CHECK(refusal({.num_max_rdma_chunked_send_tokens = 255}) == "none");
  CHECK(refusal({.num_max_rdma_chunked_send_tokens = 256}) ==
        "DeepEP's config: num_max_rdma_chunked_recv_tokens is 256, expected more than "
        "num_max_rdma_chunked_send_tokens, 256");
  CHECK(refusal({.num_max_rdma_chunked_send_tokens = 0}) ==
        "DeepEP's config: num_max_rdma_chunked_send_tokens is 0, expected at least 1");
  CHECK_THROWS_AS(static_cast<void>(config{.num_sms = 3}.nvl_buffer_size_hint(14336, 8)),
                  peerbus::error);
}

TEST_CASE("DeepEP rounds the RDMA chunks up to whole ones, at least two") {
  CHECK(config{}.checked().num_max_rdma_chunked_recv_tokens == 258);
  const config odd{.num_max_rdma_chunked_send_tokens = 200};
  CHECK(odd.checked().num_max_rdma_chunked_recv_tokens == 400);
  CHECK(odd.checked().num_max_rdma_chunked_send_tokens == 200);
}

TEST_CASE("peerbus needs at most a third of DeepEP's memory for the same low-latency mode") {
  for (const std::size_t ranks :
       std::initializer_list<std::size_t>{1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    CAPTURE(ranks);
    const low_latency_shape shape{.num_max_dispatch_tokens_per_rank = 128,
                                  .hidden = 7168,
                                  .num_ranks = ranks,
                                  .num_experts = 256,
                                  .num_topk = 8};
    const auto map = low_latency_map(shape);
    CHECK(3 * (map.total + low_latency_array_bytes(shape)) <= deepep_bytes);
    std::size_t sum = 0;
    for (const auto& part : map.components()) sum += part.bytes;
    CHECK(sum == map.total);
    // Two batches of 256 x 128 rows, whatever the ranks; outputs of 128 x 8 slots at home.
    CHECK(component(map, "rows") == 2 * 256 * 128 * 7168);
    CHECK(component(map, "scales") == 2 * 256 * 128 * 7168 / 128 * 4);
    CHECK(component(map, "outputs") == 2 * 128 * 8 * (7168 * 2 + heads));
    CHECK(component(map, "staging") == 0);
  }
}

TEST_CASE("what the options change in peerbus's memory") {
  const low_latency_shape fp8{.num_max_dispatch_tokens_per_rank = 128,
                              .hidden = 7168,
                              .num_ranks = 8,
                              .num_experts = 256,
                              .num_topk = 8};
  low_latency_shape bf16 = fp8;
  bf16.use_fp8 = false;
  CHECK(component(low_latency_map(bf16), "rows") == 2 * 256 * 128 * 7168 * 2);
  CHECK(component(low_latency_map(bf16), "scales") == 0);
  low_latency_shape ue8m0 = fp8;
  ue8m0.use_ue8m0 = true;
  CHECK(component(low_latency_map(ue8m0), "scales") == 2 * 256 * 128 * 7168 / 128);
  low_latency_shape zero_copy = fp8;
  zero_copy.zero_copy = true;
  CHECK(component(low_latency_map(zero_copy), "outputs") ==
        2 * (std::size_t{256} * 128 * 7168 * 2 + 128 * 8 * heads));
  low_latency_shape three = fp8;
  three.in_flight = 3;
  CHECK(component(low_latency_map(three), "rows") == 3 * 256 * 128 * 7168);
}

}  // namespace size_hint_test
