// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "deep_ep/normal_form.hpp"
#include "deep_ep/normal_round.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// DeepEP's normal mode, for any group of ranks: shapes and forms.
namespace normal {

using oracle::deep_ep::batch;
using oracle::deep_ep::pattern;

struct model {
  std::size_t experts;
  std::size_t hidden;
  std::size_t top_k;
  std::size_t most;  ///< tokens of a rank
  pattern routes = pattern::uniform;
  batch sizes = batch::full;
};

inline problem problem_for(const model& of, std::size_t ranks, std::uint64_t seed) {
  return oracle::deep_ep::make_problem({ranks, of.experts, of.hidden, of.top_k}, of.routes,
                                       of.sizes, of.most, seed);
}

/// Runs `f`; what it throws says which case it was.
template <class F>
void in_case(const std::string& name, F&& f) {
  try {
    f();
  } catch (const std::exception& caught) {
    test::fail(name, ": ", caught.what());
  }
}

inline std::string describe(const model& of) {
  std::ostringstream text;
  text << "E " << of.experts << ", H " << of.hidden << ", K " << of.top_k << ", T <= " << of.most
       << ", pattern " << static_cast<int>(of.routes) << ", batch " << static_cast<int>(of.sizes);
  return text.str();
}
inline std::string describe(const form& how) {
  std::ostringstream text;
  text << to_string(how.type) << ", scales " << static_cast<int>(how.scales) << " of "
       << to_string(how.scale_type) << ", topk " << how.with_topk << ", narrow " << how.narrow_ids
       << ", alignment " << how.alignment << ", worst " << how.worst << ", biases " << how.biases
       << ", async " << how.async << ", weights " << how.weights << how.own_weights << ", strided "
       << how.strided;
  return text.str();
}

/// The forms in which calls come, for `ranks` x `most` tokens. Each option meets every payload.
inline std::vector<form> forms(std::size_t ranks, std::size_t most) {
  const std::size_t all = ranks * most;
  std::vector<form> made{{}};
  made.push_back({.alignment = 128, .biases = 1, .async = true});
  made.push_back({.narrow_ids = true, .alignment = 7, .biases = 2, .strided = true});
  made.push_back({.worst = all, .biases = 2, .weights = false});
  // As many as can come of three slots, where tokens name fewer.
  made.push_back({.worst = all - 1, .own_weights = true});
  made.push_back({.with_topk = false, .biases = 1, .weights = false, .strided = true});
  made.push_back({.with_topk = false, .alignment = 128, .async = true, .weights = false});
  made.push_back({.own_weights = true});
  made.push_back({.type = dtype::float8_e4m3fn, .scales = scale_form::rows});
  made.push_back({.type = dtype::float8_e4m3fn,
                  .scales = scale_form::columns,
                  .narrow_ids = true,
                  .alignment = 128});
  made.push_back({.type = dtype::float8_e4m3fn,
                  .scales = scale_form::columns,
                  .scale_type = dtype::int32,
                  .worst = all,
                  .biases = 2,
                  .async = true});
  made.push_back({.type = dtype::float8_e4m3fn,
                  .scales = scale_form::flat,
                  .with_topk = false,
                  .biases = 1,
                  .weights = false});
  made.push_back({.type = dtype::float8_e4m3fn, .own_weights = true, .strided = true});
  made.push_back({.type = dtype::int8, .scales = scale_form::flat, .alignment = 3});
  made.push_back({.type = dtype::int8, .with_topk = false, .weights = false});
  made.push_back({.type = dtype::bfloat16, .scales = scale_form::columns, .biases = 1});
  return made;
}

/// Every form of call, then a second time to use the same memory again, then along the handle.
template <class Group>
void check_forms(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t most = 10;
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = most, .stream_from = 0}};
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    for (const batch sizes : {batch::full, batch::uneven})
      for (const form& how : forms(comm.size(), most))
        in_case(describe(how), [&] {
          // Experts do not divide by ranks; there are fewer of them than ranks if those are many.
          const model of{7, 144, 3, most, pattern::holes, sizes};
          const problem p = problem_for(of, comm.size(), ++seed);
          static_cast<void>(round_trip(buffer, p, rank, how));
          const auto got = dispatched(buffer, p, rank, how);
          form again = how;
          for (const dtype type : {how.type, dtype::float8_e4m3fn}) {
            again.type = type;
            const auto rows = dispatched_along(buffer, p, rank, again, got.handle);
            static_cast<void>(combined(buffer, p, rank, again, got.handle, rows.recv_x));
          }
        });
  });
  CHECK(worst_status == 0);
}

/// Sizes and routings, one after another on one buffer.
template <class Group>
void check_models(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 24, .stream_from = 0}};
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 100;
    for (const model& of : {
             model{8, 16, 2, 9},
             {1, 16, 1, 5},
             {16, 8, 4, 6, pattern::zipf, batch::uneven},
             {32, 48, 32, 5, pattern::uniform, batch::uneven},
             {64, 128, 9, 7, pattern::hot, batch::full},
             {19, 384, 8, 12, pattern::zipf, batch::one_rank},
             {11, 512, 2, 24, pattern::one_rank, batch::full},
             {40, 136, 17, 24, pattern::one_rank, batch::uneven},
             {6, 16, 2, 8, pattern::nowhere, batch::full},
             {9, 32, 3, 8, pattern::uniform, batch::none},
             {12, 2880, 4, 5, pattern::uniform, batch::uneven},
             {24, 3584, 16, 3, pattern::holes, batch::uneven},
             {256, 7168, 8, 4, pattern::uniform, batch::uneven},
         })
      for (const bool with_topk : {true, false})
        in_case(describe(of), [&] {
          const problem p = problem_for(of, comm.size(), ++seed);
          form how{
              .with_topk = with_topk, .alignment = 4, .biases = seed % 3, .weights = with_topk};
          static_cast<void>(round_trip(buffer, p, rank, how));
          if (of.hidden % 16 != 0) return;
          how.type = dtype::float8_e4m3fn;
          how.scales = scale_form::columns;
          static_cast<void>(round_trip(buffer, p, rank, how));
        });
  });
  CHECK(worst_status == 0);
}

/// Every width of the routing.
template <class Group>
void check_top_k(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4}};
    for (std::size_t top_k = 1; top_k <= 32; ++top_k) {
      const model of{33, 24, top_k, 4, pattern::holes, batch::uneven};
      in_case(describe(of), [&] {
        const problem p = problem_for(of, comm.size(), top_k);
        static_cast<void>(round_trip(buffer, p, comm.rank().index(), {.worst = 4 * comm.size()}));
      });
    }
  });
  CHECK(worst_status == 0);
}

/// What DeepEP's own tests do: constants per rank, blocks of rows by source, and outputs that are
/// the rows themselves, divided by how many ranks had them.
template <class Group>
void check_constants(std::size_t ranks, std::size_t tokens, std::size_t hidden) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [tokens, hidden](auto& comm) {
    using peerbus::deep_ep::view;
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = tokens}};
    const std::size_t rank = comm.rank().index();
    const std::size_t top_k = 8;
    const problem p = problem_for({16 * comm.size(), hidden, top_k, tokens}, comm.size(), 5);
    const std::vector<bf16> x(tokens * hidden, oracle::round(static_cast<float>(rank)));
    const std::vector<float> weights(tokens * top_k, static_cast<float>(rank));
    const given mine{p, rank, {}};
    const auto layout = buffer.get_dispatch_layout(mine.ids(), p.of.experts);
    auto args = mine.fresh(layout);
    args.x = view(x, {tokens, hidden});
    args.topk_weights = view(weights, {tokens, top_k});
    const auto got = buffer.dispatch(args);
    const auto expect_blocks = [&](const tensor& rows, const auto& handle, bool slots) {
      std::size_t row = 0;
      for (std::size_t source = 0; source < comm.size(); ++source)
        for (; row < static_cast<std::size_t>(handle.rank_prefix.template at<std::int32_t>(source));
             ++row) {
          for (std::size_t h = 0; h < hidden; ++h)
            test::expect_equal(oracle::widen(rows.at<bf16>(row, h)), static_cast<float>(source),
                               "row ", row);
          for (std::size_t k = 0; k < top_k && slots; ++k)
            if (got.recv_topk_idx.template at<std::int64_t>(row, k) != -1)
              test::expect_equal(got.recv_topk_weights.template at<float>(row, k),
                                 static_cast<float>(source), "weight of row ", row);
        }
      test::expect_equal(row, rows.size(0), "rows of all blocks");
    };
    expect_blocks(got.recv_x, got.handle, true);

    const auto home = buffer.combine(
        {.x = got.recv_x, .handle = got.handle, .topk_weights = got.recv_topk_weights});
    std::vector<float> averages;
    std::vector<float> wanted;
    std::vector<float> weights_home;
    std::vector<float> wanted_weights;
    for (std::size_t t = 0; t < tokens; ++t) {
      std::size_t copies = 0;
      for (std::size_t r = 0; r < comm.size(); ++r)
        copies += oracle::deep_ep::goes_to(p, rank, t, r);
      for (std::size_t h = 0; h < hidden; ++h) {
        averages.push_back(oracle::widen(home.combined_x.template at<bf16>(t, h)) /
                           static_cast<float>(copies));
        wanted.push_back(static_cast<float>(rank));
      }
      for (std::size_t k = 0; k < top_k; ++k) {
        weights_home.push_back(home.combined_topk_weights.template at<float>(t, k));
        wanted_weights.push_back(static_cast<float>(rank));
      }
    }
    test::expect(oracle::deep_ep::calc_diff(averages, wanted) < 5e-6, "averages of the rows");
    test::expect(oracle::deep_ep::calc_diff(weights_home, wanted_weights) < 1e-9, "the weights");
    test::expect(weights_home == wanted_weights, "exactly the weights");

    const auto again = buffer.dispatch({.x = view(x, {tokens, hidden}), .handle = got.handle});
    expect_blocks(again.recv_x, got.handle, false);
  });
  CHECK(worst_status == 0);
}

/// Many tokens of a large model.
template <class Group>
void check_large(std::size_t ranks, std::size_t tokens, std::size_t hidden) {
  const int worst_status = Group::run(ranks, [tokens, hidden](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = tokens}};
    const std::size_t rank = comm.rank().index();
    const problem p = problem_for({72, hidden, 6, tokens, pattern::zipf}, comm.size(), 77);
    static_cast<void>(round_trip(buffer, p, rank, {.alignment = 128, .biases = 1}));
    static_cast<void>(
        round_trip(buffer, p, rank, {.type = dtype::float8_e4m3fn, .scales = scale_form::columns}));
  });
  CHECK(worst_status == 0);
}

}  // namespace normal
