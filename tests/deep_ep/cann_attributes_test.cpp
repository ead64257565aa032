// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/core/error.hpp>

#include "deep_ep/cann_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace cann_attributes_test {

// What a pair of CANN's operators can be made for, and that all ranks learn if it cannot be made.

namespace {

namespace cann = peerbus::cann;
using oracle::cann::world;
using peerbus::errc;
using peerbus::codec::int8_per_token;
using verbatim = peerbus::codec::bf16;
using direct = test::direct_threads;
using fragments = std::initializer_list<std::string_view>;

constexpr std::size_t max_tokens = 4;

world small() {
  return {.ranks = 2, .hidden = 16, .top_k = 2, .moe = 4, .zero = 1, .copy = 1, .constant = 2};
}

template <class Codec = int8_per_token>
void refuse_attributes(errc code, fragments texts,
                       const std::function<void(cann::attributes&)>& spoil, std::size_t ranks = 2) {
  world of = small();
  of.ranks = ranks;
  of.moe = 4 * ranks;
  const int worst_status = direct::run(ranks, [&](auto& comm) {
    auto attributes = cann_suite::attributes_of(of, max_tokens);
    // One rank is wrong, all learn it.
    if (comm.rank().index() == ranks - 1) spoil(attributes);
    test::expect_error(code, texts,
                       [&] { cann::moe_distribute operators{comm, attributes, Codec{}}; });
    // And the communicator is as good as before.
    cann::moe_distribute operators{comm, cann_suite::attributes_of(of, max_tokens), Codec{}};
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("attributes that would need what is not here") {
  using attributes = cann::attributes;
  refuse_attributes(errc::unsupported, {"group_tp is 'tp'", "expected none"},
                    [](attributes& of) { of.group_tp = "tp"; });
  refuse_attributes(errc::unsupported, {"tp_world_size is 2", "expected 0 or 1"},
                    [](attributes& of) { of.tp_world_size = 2; });
  refuse_attributes(errc::unsupported, {"tp_rank_id is 1", "expected 0"},
                    [](attributes& of) { of.tp_rank_id = 1; });
  refuse_attributes(errc::unsupported, {"expert_shard_type is 1", "expected 0"},
                    [](attributes& of) { of.expert_shard_type = 1; });
  refuse_attributes(errc::unsupported, {"quant_mode is 0", "expected 2", "int8_per_token"},
                    [](attributes& of) { of.quant_mode = 0; });
  refuse_attributes<verbatim>(errc::unsupported, {"quant_mode is 4", "expected 0", "codec bf16"},
                              [](attributes& of) { of.quant_mode = 4; });
  for (const char* const name : {"hierarchy", "fullmesh_v2"})
    refuse_attributes(errc::unsupported, {"comm_alg is '", name, "expected none"},
                      [&](attributes& of) { of.comm_alg = name; });
}

TEST_CASE("attributes that no ranks can have") {
  using attributes = cann::attributes;
  constexpr errc bad = errc::invalid_argument;
  refuse_attributes(bad, {"ep_world_size is 3", "the communicator's 2"},
                    [](attributes& of) { of.ep_world_size = 3; });
  refuse_attributes(bad, {"ep_rank_id is 0", "the communicator's 1"},
                    [](attributes& of) { of.ep_rank_id = 0; });
  for (const std::int64_t ranks : {-1, 2})
    refuse_attributes(bad, {"shared_expert_rank_num is ", "expected 0 to 1"},
                      [=](attributes& of) { of.shared_expert_rank_num = ranks; });
  refuse_attributes(bad, {"shared_expert_num is 2", "expected 0 or 1"},
                    [](attributes& of) { of.shared_expert_num = 2; });
  for (const std::int64_t shared : {0, 2, -1})
    refuse_attributes(
        bad, {"shared_expert_num is ", "divisor of shared_expert_rank_num, 3"},
        [=](attributes& of) {
          of.shared_expert_rank_num = 3;
          of.shared_expert_num = shared;
        },
        4);
  for (const std::int64_t experts : {0, 7, -2})
    refuse_attributes(bad, {"moe_expert_num is ", "multiple of", "2"},
                      [=](attributes& of) { of.moe_expert_num = experts; });
  refuse_attributes(bad, {"const_expert_num are 8, 1, 1 and -1", "expected none below 0"},
                    [](attributes& of) { of.const_expert_num = -1; });
  refuse_attributes(bad, {"less than 2147483647 together"}, [](attributes& of) {
    of.zero_expert_num = std::numeric_limits<std::int32_t>::max() - 8 - 1 - 2;
  });
  refuse_attributes(bad, {"top_k is 0", "at least 1"}, [](attributes& of) { of.top_k = 0; });
  refuse_attributes(bad, {"top_k is 13", "at most the 12 experts"},
                    [](attributes& of) { of.top_k = 13; });
  refuse_attributes(bad, {"top_k is 32", "with 1 shared experts at most 32"}, [](attributes& of) {
    of.top_k = 32;
    of.zero_expert_num = 30;
    of.shared_expert_num = 1;
    of.shared_expert_rank_num = 1;
  });
  refuse_attributes(bad, {"global_bs is 7", "multiple of the ranks, 2"},
                    [](attributes& of) { of.global_bs = 7; });
  refuse_attributes(bad, {"max_tokens and global_bs are 0"},
                    [](attributes& of) { of.global_bs = 0; });
  refuse_attributes(bad, {"max_tokens is 5", "global_bs / ranks, 4"},
                    [](attributes& of) { of.max_tokens = 5; });
}

TEST_CASE("attributes that ranks have differently") {
  using attributes = cann::attributes;
  constexpr errc differ = errc::mismatch;
  refuse_attributes(differ, {"zero_expert_num"}, [](attributes& of) { of.zero_expert_num = 9; });
  refuse_attributes(differ, {"copy_expert_num"}, [](attributes& of) { of.copy_expert_num = 9; });
  refuse_attributes(differ, {"moe_expert_num"}, [](attributes& of) { of.moe_expert_num = 10; });
  refuse_attributes(differ, {"max_tokens"}, [](attributes& of) { of.global_bs = 10; });
  refuse_attributes(differ, {"in_flight"}, [](attributes& of) { of.in_flight = 2; });
}

TEST_CASE("both ways to say how many tokens, and the last numbers that are allowed") {
  const world of = small();
  const int worst_status = direct::run(of.ranks, [&](auto& comm) {
    auto attributes = cann_suite::attributes_of(of, max_tokens);
    attributes.max_tokens = max_tokens;
    attributes.quant_mode = 2;
    attributes.comm_alg = "fullmesh_v1";
    attributes.ep_rank_id = static_cast<std::int64_t>(comm.rank().index());
    attributes.tp_world_size = 1;
    {
      cann::moe_distribute operators{comm, attributes, int8_per_token{}};
    }
    attributes.global_bs = 0;
    attributes.zero_expert_num = std::numeric_limits<std::int32_t>::max() - 4 - 1 - 2 - 1;
    attributes.top_k = 32;
    cann::moe_distribute operators{comm, attributes, int8_per_token{}};
    test::expect_equal(operators.experts().ids(), std::numeric_limits<std::int32_t>::max() - 1,
                       "ids");
  });
  CHECK(worst_status == 0);
}

}  // namespace cann_attributes_test
