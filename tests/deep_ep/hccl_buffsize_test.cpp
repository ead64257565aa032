// SPDX-License-Identifier: MIT
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/hccl_buffsize.hpp>

namespace hccl_buffsize_test {

using peerbus::deep_ep::hccl_buffsize_mb;
using peerbus::deep_ep::hccl_bytes;
using peerbus::deep_ep::hccl_rule;
using peerbus::deep_ep::hccl_shape;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr hccl_shape paper{
    .max_tokens = 96, .hidden = 7168, .ranks = 320, .experts = 320, .top_k = 8};
constexpr hccl_shape decode{
    .max_tokens = 128, .hidden = 7168, .ranks = 32, .experts = 256, .top_k = 8};

}  // namespace

TEST_CASE("the rules of A3 give the published sizes") {
  CHECK(hccl_bytes(hccl_rule::a3_fullmesh_v1, paper) == 891 * mib);
  CHECK(hccl_bytes(hccl_rule::a3_fullmesh_v2, paper) == 921 * mib);
  hccl_shape wide = decode;
  wide.ranks = 256;
  for (const hccl_shape& shape : {decode, wide}) {
    CHECK(hccl_bytes(hccl_rule::a3_fullmesh_v1, shape) == 956 * mib);
    CHECK(hccl_bytes(hccl_rule::a3_fullmesh_v2, shape) == 988 * mib);
  }
}

TEST_CASE("records are rounded as the rules of A3 say") {
  // One token to one expert: 2 x (record + 512-byte units of the answer).
  const auto bytes = [](hccl_rule rule, std::size_t hidden) {
    return hccl_bytes(rule,
                      {.max_tokens = 1, .hidden = hidden, .ranks = 1, .experts = 1, .top_k = 1});
  };
  CHECK(bytes(hccl_rule::a3_fullmesh_v1, 224) == 2 * (512 + 512));       // 448 + 64 just fit.
  CHECK(bytes(hccl_rule::a3_fullmesh_v1, 225) == 2 * (1024 + 512));      // 450 becomes 480 + 64.
  CHECK(bytes(hccl_rule::a3_fullmesh_v2, 208) == 2 * (512 + 512));       // 416 + 64 is 480.
  CHECK(bytes(hccl_rule::a3_fullmesh_v2, 9584) == 2 * (20992 + 19456));  // 41 x 480 for 19232.
  CHECK(bytes(hccl_rule::a3_fullmesh_v2, 209) == 2 * (1024 + 512));
  CHECK(bytes(hccl_rule::a3_fullmesh_v1, 256) == 2 * (1024 + 512));
  CHECK(bytes(hccl_rule::a3_fullmesh_v1, 257) == 2 * (1024 + 1024));
}

TEST_CASE("shared experts answer too") {
  hccl_shape shared = decode;
  shared.shared_experts = 1;
  CHECK(hccl_bytes(hccl_rule::a3_fullmesh_v1, shared) -
            hccl_bytes(hccl_rule::a3_fullmesh_v1, decode) ==
        std::size_t{2} * 128 * 14336);
}

TEST_CASE("the rules of A2 and of DeepEP-Ascend") {
  // 128 tokens x 32 ranks x 8 copies x 7168 x 2 bytes is 448 MiB; twice that and 2 MB.
  CHECK(hccl_bytes(hccl_rule::a2_fullmesh, decode) == 900 * mib);
  CHECK(hccl_bytes(hccl_rule::deep_ep_ascend, decode) == 900 * mib);
  hccl_shape few = decode;  // 2 experts a rank, so at most 2 copies.
  few.experts = 64;
  CHECK(hccl_bytes(hccl_rule::a2_fullmesh, few) == 228 * mib);
  // 256 experts x 128 tokens x (14336 + 128) bytes is 452 MiB.
  CHECK(hccl_bytes(hccl_rule::a2_hierarchy, decode) == (452 + 104) * mib);
  CHECK(hccl_bytes(hccl_rule::deep_ep_ascend_layered, decode) == (452 + 804) * mib);
  hccl_shape nine = decode;  // top_k counts in units of 8.
  nine.top_k = 9;
  CHECK(hccl_bytes(hccl_rule::a2_hierarchy, nine) == (456 + 104) * mib);
}

TEST_CASE("HCCL_BUFFSIZE is rounded up and never below its default") {
  CHECK(hccl_buffsize_mb(0) == 200);
  CHECK(hccl_buffsize_mb(200 * mib) == 200);
  CHECK(hccl_buffsize_mb(200 * mib + 1) == 201);
  CHECK(hccl_buffsize_mb(956 * mib) == 956);
  CHECK(hccl_buffsize_mb(956 * mib - 1) == 956);
}

TEST_CASE("sizes beyond 32 bits") {
  hccl_shape large = decode;
  large.max_tokens = 8192;
  CHECK(hccl_bytes(hccl_rule::a2_fullmesh, large) == (2 * 64 * 448 + 4) * mib);
}

}  // namespace hccl_buffsize_test
