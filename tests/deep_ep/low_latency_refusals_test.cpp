// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/low_latency_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace low_latency_refusals_test {

// What low-latency calls refuse, and that the buffer goes on as if it had not been asked.

namespace {

using namespace low_latency_suite;
using deep_ep::const_tensor;
using deep_ep::dtype;
using deep_ep::tensor;
using peerbus::errc;
using group = test::direct_threads;
using buffer_type = deep_ep::buffer<peerbus::any_transport>;
using flight_type = flight<peerbus::any_transport>;
using fragments = std::initializer_list<std::string_view>;
using peerbus::detail::concat;

batch small_batch(std::size_t ranks, format rows = format::fp8) {
  world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 256, .top_k = 2, .max_tokens = 4};
  of.rows = rows;
  return make_batch(of, 12);
}

/// Memory for tensors that are wrong in one way each. Enough for every one of them.
alignas(64) std::byte memory[std::size_t{1} << 16U];

/// Wrong versions of a tensor that should be `type` `sizes`: they must be refused by the name
/// `what`, with what they are and what was expected.
struct wrong_tensor {
  const char* why;
  tensor given;
};
std::vector<wrong_tensor> wrong_versions(dtype type, std::size_t rows, std::size_t columns) {
  const dtype other = type == dtype::int8 ? dtype::bfloat16 : dtype::int8;
  return {{"dtype", {memory, other, {rows, columns}}},
          {"one dimension", {memory, type, {rows * columns}}},
          {"three dimensions", {memory, type, {1, rows, columns}}},
          {"null", {nullptr, type, {rows, columns}}},
          {"address", {memory + 1, type, {rows, columns}}},
          {"gaps between elements", {memory, type, {rows, columns}, {2 * columns, 2}}}};
}
/// And of one with a single dimension.
std::vector<wrong_tensor> wrong_versions(dtype type, std::size_t size) {
  const dtype other = type == dtype::int32 ? dtype::int64 : dtype::int32;
  return {{"dtype", {memory, other, {size}}},
          {"two dimensions", {memory, type, {size, 1}}},
          {"too long", {memory, type, {size + 1}}},
          {"null", {nullptr, type, {size}}},
          {"address", {memory + 1, type, {size}}},
          {"gaps between elements", {memory, type, {size}, {2}}}};
}

/// Refused for `argument`: all versions, and the text says what was given where that says why.
void expect_all_refused(std::string_view argument, const std::vector<wrong_tensor>& versions,
                        const std::function<void(const tensor&)>& call) {
  for (const auto& [why, given] : versions) {
    const bool by_address = given.data() == nullptr || given.data() == memory + 1;
    try {
      test::expect_error(errc::invalid_argument, {argument, by_address ? "is" : "expected"},
                         [&, wrong = given] { call(wrong); });
      if (!by_address)
        test::expect_error(errc::invalid_argument, {given.describe()},
                           [&, wrong = given] { call(wrong); });
    } catch (const test::failure& problem) {
      test::fail(argument, " of wrong ", why, ": ", problem.what());
    }
  }
}

/// Calls with wrong tensors on rank `wrong` alone: it is refused as in `expect_all_refused`, and
/// the others, whose calls by `good` are right, are refused for its reason.
template <class Good>
void expect_refused_everywhere(bool is_wrong, std::string_view argument,
                               const std::vector<wrong_tensor>& versions,
                               const std::function<void(const tensor&)>& call, Good&& good) {
  if (is_wrong) return expect_all_refused(argument, versions, call);
  for (const auto& [why, given] : versions) {
    const bool by_address = given.data() == nullptr || given.data() == memory + 1;
    for (int i = 0; i < (by_address ? 1 : 2); ++i)
      test::expect_error(errc::refused, {"was given bad arguments", argument}, good);
  }
}

}  // namespace

TEST_CASE("dispatch: every tensor of another dtype, shape, stride or address") {
  const batch from = small_batch(2);
  // Before any memory was taken, and after.
  for (const bool fresh : {true, false})
    with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
      const std::size_t rank = comm.rank().index();
      flight_type one{buffer, from, rank, {}};
      auto args = one.dispatch_args();
      if (!fresh) flight_type{buffer, from, rank, {}}.fly();
      const auto call = [&](auto member) {
        return [&buffer, args, member](const tensor& wrong) mutable {
          args.*member = wrong;
          static_cast<void>(buffer.low_latency_dispatch(args));
        };
      };
      using all = deep_ep::low_latency_dispatch_args;
      const auto refused = [&](std::string_view argument, const std::vector<wrong_tensor>& versions,
                               auto member) {
        expect_refused_everywhere(rank == 0, argument, versions, call(member),
                                  [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
      };
      const auto with_none = [](std::vector<wrong_tensor> versions) {
        versions.push_back({"none", {}});
        return versions;
      };
      refused("low_latency_dispatch: x ", with_none(wrong_versions(dtype::bfloat16, 4, 256)),
              &all::x);
      auto ids = with_none(wrong_versions(dtype::int64, 4, 2));
      ids.push_back({"tokens", {memory, dtype::int32, {5, 2}}});
      refused("low_latency_dispatch: topk_idx ", ids, &all::topk_idx);
      refused("low_latency_dispatch: topk_weights ", wrong_versions(dtype::float32, 4, 2),
              &all::topk_weights);
      refused("low_latency_dispatch: cumulative_local_expert_recv_stats ",
              wrong_versions(dtype::int32, 2), &all::cumulative_local_expert_recv_stats);
      refused("low_latency_dispatch: dispatch_wait_recv_cost_stats ",
              wrong_versions(dtype::int64, 2), &all::dispatch_wait_recv_cost_stats);
      one.dispatch();
      one.receive();
      one.run_experts();
      one.combine();
      one.finish();
    });
}

TEST_CASE("dispatch: wrong statistics in the very first call of a shape") {
  const batch from = small_batch(3);
  with_buffers<group>(3, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {}};
    if (comm.rank().index() == 1) {
      auto args = one.dispatch_args();
      args.cumulative_local_expert_recv_stats = {memory, dtype::int32, {7}};
      test::expect_error(errc::invalid_argument,
                         {"cumulative_local_expert_recv_stats is int32 [7]", "int32 [2]"},
                         [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
    } else {
      test::expect_error(
          errc::refused,
          {"rank 1 was given bad arguments", "cumulative_local_expert_recv_stats is int32 [7]"},
          [&] { static_cast<void>(buffer.low_latency_dispatch(one.dispatch_args())); });
    }
    one.fly();
  });
}

TEST_CASE("dispatch: options that do not go together") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {}};
    const auto refused = [&](fragments said, auto&& change) {
      auto args = one.dispatch_args();
      change(args);
      test::expect_error(errc::invalid_argument, said,
                         [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
    };
    refused({"low_latency_dispatch: use_ue8m0", "round_scale"},
            [](auto& args) { args.use_ue8m0 = true; });
    refused({"low_latency_dispatch: use_ue8m0", "use_fp8"}, [](auto& args) {
      args.use_ue8m0 = args.round_scale = true;
      args.use_fp8 = false;
    });
    refused({"low_latency_dispatch: round_scale", "use_fp8"}, [](auto& args) {
      args.round_scale = true;
      args.use_fp8 = false;
    });
    refused({"low_latency_dispatch: async_finish", "return_recv_hook"},
            [](auto& args) { args.async_finish = args.return_recv_hook = true; });
    one.fly();
  });
}

TEST_CASE("dispatch: shapes that cannot be, on all ranks alike") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    flight_type one{buffer, from, rank, {}};
    std::vector<std::int64_t> ids(4 * 40, -1);
    const auto refused = [&](fragments said, auto&& change) {
      auto args = one.dispatch_args();
      change(args);
      test::expect_error(errc::invalid_argument, said,
                         [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
      // And, told so, all go on.
      flight_type{buffer, from, rank, {}}.fly();
    };
    const auto hidden = [&](std::size_t channels, bool fp8) {
      return [&, channels, fp8](auto& args) {
        args.x = {memory, dtype::bfloat16, {4, channels}};
        args.cumulative_local_expert_recv_stats = {};
        args.use_fp8 = fp8;
      };
    };
    refused({"hidden is 127", "multiple of 128"}, hidden(127, true));
    refused({"hidden is 192", "multiple of 128"}, hidden(192, true));
    refused({"hidden is 8,", "multiple of 128"}, hidden(8, true));
    refused({"hidden is 12,", "16 bytes"}, hidden(12, false));
    refused({"hidden is 129,", "16 bytes"}, hidden(129, false));
    refused({"hidden is 0"}, hidden(0, false));
    refused({"num_max_dispatch_tokens_per_rank is 0"},
            [](auto& args) { args.num_max_dispatch_tokens_per_rank = 0; });
    refused({"num_experts is 0"}, [](auto& args) { args.num_experts = 0; });
    refused({"topk_idx has 5 experts for each token", "num_experts, 4"},
            [&](auto& args) { args.topk_idx = {ids.data(), dtype::int64, {4, 5}}; });
    refused({"topk_idx has 33 experts for each token", "1 to 32"}, [&](auto& args) {
      args.topk_idx = {ids.data(), dtype::int64, {4, 33}};
      args.num_experts = 64;
      args.cumulative_local_expert_recv_stats = {};
    });
    refused({"topk_idx has 0 experts for each token"},
            [&](auto& args) { args.topk_idx = {ids.data(), dtype::int64, {4, 0}}; });
  });
}

TEST_CASE("dispatch: ranks that differ are all told so, at first use and later, in any way") {
  for (const std::size_t ranks : {2U, 3U, 5U})
    for (const ending how : {ending::at_once, ending::hook, ending::event})
      for (const bool fresh : {true, false}) {
        const batch from = small_batch(ranks);
        with_buffers<group>(ranks, {}, [&](buffer_type& buffer, auto& comm) {
          const std::size_t rank = comm.rank().index();
          const bool differs = rank + 1 == ranks;
          if (!fresh) flight_type{buffer, from, rank, {}}.fly();
          flight_type one{buffer, from, rank, {.dispatch = how}};
          const auto refused = [&](fragments said, auto&& change) {
            auto args = one.dispatch_args();
            args.cumulative_local_expert_recv_stats = {};
            if (differs) change(args);
            test::expect_error(errc::mismatch, said, [&] {
              const auto got = buffer.low_latency_dispatch(args);
              if (how == ending::hook) got.hook();
              if (how == ending::event) got.event.current_stream_wait();
            });
            // Once with the agreed arguments at once, and once with a batch in between.
            if (!fresh) flight_type{buffer, from, rank, manner_of(rank)}.fly();
          };
          const std::string last = concat("on rank ", ranks - 1);
          for (int i = 0; i < 2; ++i) {
            refused({"num_max_dispatch_tokens_per_rank is 4 on rank 0 but 5", last},
                    [](auto& args) { args.num_max_dispatch_tokens_per_rank = 5; });
            refused({concat("num_experts is ", 2 * ranks, " on rank 0 but ", 2 * ranks + 1), last},
                    [&](auto& args) { args.num_experts = 2 * ranks + 1; });
            refused({"use_fp8 is true on rank 0 but false", last},
                    [](auto& args) { args.use_fp8 = false; });
            refused({"round_scale is false on rank 0 but true", last},
                    [](auto& args) { args.round_scale = true; });
            refused({"hidden is 256 on rank 0 but 128", last},
                    [](auto& args) { args.x = {memory, dtype::bfloat16, {4, 128}}; });
            refused({"num_topk is 2 on rank 0 but 1", last},
                    [](auto& args) { args.topk_idx = {memory, dtype::int64, {4, 1}}; });
            refused({"num_topk is 2 on rank 0 but 1", last}, [](auto& args) {  // An idle rank.
              args.x = {memory, dtype::bfloat16, {0, 256}};
              args.topk_idx = {memory, dtype::int64, {0, 1}};
            });
            // All ranks come to have memory for the other shape.
            auto other = one.dispatch_args();
            other.cumulative_local_expert_recv_stats = {};
            other.num_max_dispatch_tokens_per_rank = 5;
            const auto got = buffer.low_latency_dispatch(other);
            if (how == ending::hook) got.hook();
            if (how == ending::event) got.event.current_stream_wait();
          }
          flight_type{buffer, from, rank, {}}.fly();
        });
      }
  const int worst_status = group::run(2, [&](auto& comm) {
    const batch two = small_batch(2);
    buffer_type buffer{comm, {.in_flight = 1 + comm.rank().index()}};
    flight_type one{buffer, two, comm.rank().index(), {}};
    test::expect_error(errc::mismatch, {"in_flight"}, [&] { one.dispatch(); });
  });
  CHECK(worst_status == 0);
}

TEST_CASE("dispatch: what one rank gets wrong is refused on all, whenever they learn it") {
  constexpr std::size_t ranks = 3;
  constexpr std::size_t wrong = 1;
  const batch from = small_batch(ranks);
  for (const ending how : {ending::at_once, ending::hook, ending::event})
    with_buffers<group>(ranks, {}, [&](buffer_type& buffer, auto& comm) {
      const std::size_t rank = comm.rank().index();
      const std::vector<bf16> many(13 * 256);
      const std::vector<std::int64_t> ids(13 * 2, -1);
      const auto refused = [&](fragments said, auto&& change) {
        flight_type one{buffer, from, rank, {.dispatch = how, .combine = how}};
        auto args = one.dispatch_args();
        if (rank == wrong) change(args);
        // Who was wrong is told by the call; the others when they receive.
        const auto receive = [&] {
          const auto got = buffer.low_latency_dispatch(args);
          if (how == ending::hook) got.hook();
          if (how == ending::event) got.event.current_stream_wait();
        };
        test::expect_error(rank == wrong ? errc::invalid_argument : errc::refused, said, receive);
        flight_type{buffer, from, rank, manner_of(1)}.fly();
      };
      const auto tokens = [&](std::size_t count) {
        return [&, count](auto& args) {
          args.x = {many.data(), dtype::bfloat16, {count, 256}};
          args.topk_idx = {ids.data(), dtype::int64, {count, 2}};
        };
      };
      const auto row = [](std::int64_t first, std::int64_t second) {
        return [ids = std::vector<std::int64_t>{first, second, 0, 1, 1, 0, -1, 5}](auto& args) {
          args.topk_idx = deep_ep::view(ids, {4, 2});
        };
      };
      refused({"x has 5 tokens", "at most num_max_dispatch_tokens_per_rank, 4"}, tokens(5));
      refused({"13 tokens", "at most", "4"}, tokens(13));
      refused({"expert id 6", "token 0, slot 1", "-1 or 0 to 5"}, row(0, 6));
      refused({"expert id 4294967296", "token 0, slot 0"}, row(std::int64_t{1} << 32, 0));
      refused({"expert id 3 again", "token 0, slot 1"}, row(3, 3));
    });
}

TEST_CASE("combine: every tensor of another dtype, shape, stride or address") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {.zero_copy = true}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    flight_type one{buffer, from, rank, {}};
    one.dispatch();
    one.receive();
    one.run_experts();
    auto args = one.combine_args();
    const auto call = [&](auto member) {
      return [&buffer, args, member](const tensor& wrong) mutable {
        args.*member = wrong;
        static_cast<void>(buffer.low_latency_combine(args));
      };
    };
    using all = deep_ep::low_latency_combine_args;
    const auto refused = [&](std::string_view argument, const std::vector<wrong_tensor>& versions,
                             auto member) {
      expect_refused_everywhere(rank == 1, argument, versions, call(member),
                                [&] { static_cast<void>(buffer.low_latency_combine(args)); });
    };
    {
      refused("low_latency_combine: x ",
              {{"none", {}},
               {"dtype", {memory, dtype::float32, {2, 8, 256}}},
               {"two dimensions", {memory, dtype::bfloat16, {16, 256}}},
               {"experts", {memory, dtype::bfloat16, {3, 8, 256}}},
               {"rows", {memory, dtype::bfloat16, {2, 4, 256}}},
               {"hidden", {memory, dtype::bfloat16, {2, 8, 128}}},
               {"null", {nullptr, dtype::bfloat16, {2, 8, 256}}},
               {"address", {memory + 1, dtype::bfloat16, {2, 8, 256}}},
               {"gaps between elements", {memory, dtype::bfloat16, {2, 8, 256}, {4096, 512, 2}}}},
              &all::x);
      auto ids = wrong_versions(dtype::int64, 4, 2);
      ids.push_back({"none", {}});
      ids.push_back({"tokens", {memory, dtype::int64, {3, 2}}});
      ids.push_back({"slots", {memory, dtype::int64, {4, 3}}});
      refused("low_latency_combine: topk_idx ", ids, &all::topk_idx);
      auto weights = wrong_versions(dtype::float32, 4, 2);
      weights.push_back({"none", {}});
      weights.push_back({"tokens", {memory, dtype::float32, {5, 2}}});
      weights.push_back({"slots", {memory, dtype::float32, {4, 1}}});
      refused("low_latency_combine: topk_weights ", weights, &all::topk_weights);
      auto outs = wrong_versions(dtype::bfloat16, 4, 256);
      outs.push_back({"tokens", {memory, dtype::bfloat16, {5, 256}}});
      outs.push_back({"hidden", {memory, dtype::bfloat16, {4, 255}}});
      refused("low_latency_combine: out ", outs, &all::out);
      refused("low_latency_combine: combine_wait_recv_cost_stats ", wrong_versions(dtype::int64, 2),
              &all::combine_wait_recv_cost_stats);
    }
    one.combine();
    one.finish();
  });
}

TEST_CASE("combine: options that do not go together, and zero_copy of other memory") {
  const batch from = small_batch(2);
  for (const bool zero_copy : {false, true})
    with_buffers<group>(2, {.zero_copy = zero_copy}, [&](buffer_type& buffer, auto& comm) {
      flight_type one{buffer, from, comm.rank().index(), {.zero_copy = zero_copy}};
      one.dispatch();
      one.receive();
      if (!zero_copy)
        test::expect_error(
            errc::invalid_argument,
            {"get_next_low_latency_combine_buffer: handle", "buffer_options{.zero_copy = true}"},
            [&] {
              static_cast<void>(buffer.get_next_low_latency_combine_buffer(one.got().handle));
            });
      one.run_experts();
      const auto refused = [&](errc code, fragments said, auto&& change) {
        auto args = one.combine_args();
        change(args);
        test::expect_error(code, said,
                           [&] { static_cast<void>(buffer.low_latency_combine(args)); });
      };
      refused(errc::invalid_argument, {"low_latency_combine: use_logfmt", "zero_copy"},
              [](auto& args) { args.use_logfmt = args.zero_copy = true; });
      refused(errc::invalid_argument, {"low_latency_combine: async_finish", "return_recv_hook"},
              [](auto& args) { args.async_finish = args.return_recv_hook = true; });
      if (!zero_copy)
        refused(errc::invalid_argument,
                {"low_latency_combine: zero_copy", "buffer_options{.zero_copy = true}"},
                [](auto& args) { args.zero_copy = true; });
      else
        for (const const_tensor& elsewhere :
             {const_tensor{memory, dtype::bfloat16, {2, 8, 256}},
              const_tensor{
                  one.combine_args().x.data(), dtype::bfloat16, {2, 8, 256}, {8 * 264, 264, 1}}})
          refused(errc::invalid_argument,
                  {"low_latency_combine: x", "get_next_low_latency_combine_buffer"},
                  [&](auto& args) { args.x = elsewhere; });
      one.combine();
      one.finish();
    });
}

TEST_CASE("use_logfmt needs groups of 128 channels") {
  world of{.ranks = 2, .experts = 2, .hidden = 16, .top_k = 1, .max_tokens = 1};
  const batch from = make_batch(of, 1);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {}};
    one.dispatch();
    one.receive();
    one.run_experts();
    auto args = one.combine_args();
    args.use_logfmt = true;
    test::expect_error(errc::invalid_argument,
                       {"low_latency_combine: use_logfmt is true and hidden is 16, expected a "
                        "multiple of 128"},
                       [&] { static_cast<void>(buffer.low_latency_combine(args)); });
    one.combine();
    one.finish();
  });
}

TEST_CASE("combine: with the buffer's memory, but not said so; with a handle's tensors gone") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {.zero_copy = true}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {.zero_copy = true}};
    one.dispatch();
    one.receive();
    one.run_experts();
    auto args = one.combine_args();
    args.zero_copy = false;
    args.handle.src_info = {};
    args.handle.layout_range = {};
    one.back() = buffer.low_latency_combine(args);
    one.check_sums();
  });
}

TEST_CASE("masks: not without enable_shrink, of ranks that there are") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    std::vector<std::int32_t> status(2);
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] { buffer.low_latency_update_mask_buffer(0, true); },
             [&] { buffer.low_latency_query_mask_buffer(deep_ep::view(status, {2})); },
             [&] { buffer.low_latency_clean_mask_buffer(); }})
      test::expect_error(errc::invalid_argument,
                         {"mask_buffer", "buffer_options{.enable_shrink = true}"}, call);
    flight_type{buffer, from, comm.rank().index(), {}}.fly();
  });
  with_buffers<group>(2, {.enable_shrink = true}, [&](buffer_type& buffer, auto& comm) {
    for (const std::size_t rank : {std::size_t{2}, ~std::size_t{0}})
      test::expect_error(errc::invalid_argument,
                         {"low_latency_update_mask_buffer: rank is", "less than 2"},
                         [&] { buffer.low_latency_update_mask_buffer(rank, true); });
    auto wrong = wrong_versions(dtype::int32, 2);
    wrong.push_back({"none", {}});
    expect_all_refused("low_latency_query_mask_buffer: mask_status ", wrong,
                       [&](const tensor& given) { buffer.low_latency_query_mask_buffer(given); });
    flight_type{buffer, from, comm.rank().index(), {}}.fly();
  });
}

TEST_CASE("a buffer: options that cannot be") {
  const int worst_status = group::run(1, [&](auto& comm) {
    const auto refused = [&](fragments said, const deep_ep::buffer_options& options) {
      test::expect_error(errc::invalid_argument, said, [&] { buffer_type{comm, options}; });
    };
    refused({"num_max_tokens_per_rank is 0"}, {.num_max_tokens_per_rank = 0});
    refused({"in_flight is 0", "1 to 16"}, {.in_flight = 0});
    refused({"in_flight is 17", "1 to 16"}, {.in_flight = 17});
  });
  CHECK(worst_status == 0);
}

}  // namespace low_latency_refusals_test
