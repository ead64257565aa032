// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/on_lanes.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// Several threads of each rank that carry one operation together.
namespace conformance {

/// Runs `body(lane)` on `count` lanes of the calling rank: threads, or what `Group` has instead.
template <class Group, class Body>
void on_lanes_of(std::size_t count, Body body) {
  if constexpr (requires { Group::on_lanes(count, body); })
    Group::on_lanes(count, body);
  else
    test::on_lanes(count, body);
}

/// What an expert makes of row `i`; any function of the row and its source will do.
template <class Rows>
void fill_output(const Rows& rows, std::size_t i, std::vector<float>& values) {
  values.resize(rows.hidden());
  rows.decode(i, values);
  const auto from = rows.origin(i);
  const auto out = rows.output(i);
  for (std::size_t h = 0; h < out.size(); ++h)
    out[h] = oracle::apply(from.token + from.slot, h, values[h]);
}

/// Calls `visit(rows, i)` for each row that this lane takes.
template <class Codec, class Visit>
void for_rows(const peerbus::moe::received<Codec>& got, peerbus::moe::lane as, Visit&& visit) {
  for (const auto& expert : got.experts()) {
    const auto [begin, end] = as.share(expert.count());
    for (std::size_t i = begin; i < end; ++i) visit(expert, i);
  }
}
template <class Codec, class Visit>
void for_rows(const peerbus::moe::received_tokens<Codec>& got, peerbus::moe::lane as,
              Visit&& visit) {
  const auto [begin, end] = as.share(got.count());
  for (std::size_t i = begin; i < end; ++i) visit(got, i);
}

template <class Codec, class Visit>
void for_rows(const peerbus::moe::received_token_slots<Codec>& got, peerbus::moe::lane as,
              Visit&& visit) {
  for (const peerbus::rank_id source : peerbus::all_ranks{got.ranks()}) {
    const auto rows = got.rows_from(source);
    const auto [begin, end] = as.share(rows.count());
    for (std::size_t i = begin; i < end; ++i) visit(rows, i);
  }
}

/// A hash of all rows, scales, origins and attachments, in order.
template <class Received>
std::uint64_t hash_of(const Received& got) {
  std::uint64_t hashed = 0xcbf29ce484222325U;
  for_rows(got, {}, [&](const auto& rows, std::size_t i) {
    const auto from = rows.origin(i);
    const std::array<std::uint64_t, 3> origin{from.rank.index(), from.token, from.slot};
    const auto attached = rows.attachment(0);
    const std::size_t bytes = attached.size() / rows.count();
    const auto scales = rows.template scales<std::byte>();
    const std::size_t scale_bytes = scales.size() / rows.count();
    hashed = test::hash(hashed, std::as_bytes(std::span{origin}));
    hashed = test::hash(hashed, std::as_bytes(rows.row(i)));
    hashed = test::hash(hashed, attached.subspan(i * bytes, bytes));
    hashed = test::hash(hashed, scales.subspan(i * scale_bytes, scale_bytes));
  });
  return hashed;
}

/// The same batches by one lane and by several, whole and in halves: the same bytes.
template <class Group, class Layout>
void check_lanes(std::size_t ranks, std::size_t lanes, Layout layout,
                 peerbus::moe::outputs_at outputs, std::uint64_t rounds) {
  CAPTURE(ranks);
  CAPTURE(lanes);
  CAPTURE(Layout::name);
  const exchange_case one{7, 32, 3, 9, oracle::routes::holes};
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    using peerbus::bf16;
    peerbus::moe::exchange_config config{.experts = one.experts,
                                         .hidden = one.hidden,
                                         .top_k = one.top_k,
                                         .max_tokens = one.max_tokens,
                                         .in_flight = 2,
                                         .outputs = outputs,
                                         .attachments = {12},
                                         .stream_from = peerbus::moe::never_stream};
    const peerbus::codec::int8_per_token codec;
    peerbus::moe::exchange alone{comm, config, codec, layout};
    config.stream_from = stream_from(comm.rank(), lanes);
    peerbus::moe::exchange together{comm, config, codec, layout};

    struct batch {
      oracle::input in;
      std::vector<std::byte> attached;
      std::uint64_t hashed = 0;
      std::vector<bf16> out;
    };
    std::vector<batch> batches(rounds);
    const auto extras = [](const batch& from) {
      return peerbus::moe::attachments{std::span<const std::byte>{from.attached}};
    };
    for (std::uint64_t round = 0; round < rounds; ++round) {
      batch& b = batches[round];
      b.in = make_scenario(one, comm.size(), round).inputs[comm.rank().index()];
      b.attached.resize(b.in.count * 12);
      for (std::size_t i = 0; i < b.attached.size(); ++i)
        b.attached[i] = static_cast<std::byte>(i * 7 + round + comm.rank().index());
      const auto got =
          alone.dispatch(b.in.tokens, {b.in.experts, b.in.weights}, {.attachments = extras(b)});
      b.hashed = hash_of(got);
      std::vector<float> values;
      for_rows(got, {}, [&](const auto& rows, std::size_t i) { fill_output(rows, i, values); });
      b.out.resize(b.in.tokens.size());
      alone.combine(got, b.out);
    }

    // Two batches at a time: the odd one whole, the even one in halves around it.
    std::vector<bf16> outs[2];
    on_lanes_of<Group>(lanes, [&](peerbus::moe::lane as) {
      std::vector<float> values;
      const auto run = [&](const auto& got) {
        for_rows(got, as, [&](const auto& rows, std::size_t i) { fill_output(rows, i, values); });
      };
      const auto expect_same = [&](const batch& b, const std::vector<bf16>& out) {
        test::check_combined(out, b.out, one.hidden, 0);
      };
      for (std::uint64_t round = 0; round + 1 < rounds; round += 2) {
        const batch& odd = batches[round + 1];
        const batch& even = batches[round];
        const auto first =
            together.dispatch_send(even.in.tokens, {even.in.experts, even.in.weights},
                                   {.as = as, .attachments = extras(even)});
        const auto b = together.dispatch(odd.in.tokens, {odd.in.experts, odd.in.weights},
                                         {.as = as, .attachments = extras(odd)});
        const auto a = together.dispatch_recv(first, {.as = as});
        test::expect_equal(hash_of(a), even.hashed, "hash of the rows of batch ", round);
        test::expect_equal(hash_of(b), odd.hashed, "hash of the rows of batch ", round + 1);
        run(a);
        run(b);
        if (as.index == 0) {
          outs[0].assign(even.out.size(), bf16::from_bits(0xdead));
          outs[1].assign(odd.out.size(), bf16::from_bits(0xdead));
        }
        // Lanes meet in here: after it, lane 0's buffers are known to all.
        together.combine_send(a, {.as = as});
        together.combine(b, outs[1], {.as = as});
        together.combine_recv(a, outs[0], {.as = as});
        // The last serial step of combine_recv is behind all sums.
        expect_same(even, outs[0]);
        expect_same(odd, outs[1]);
      }
    });
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_lanes_all_layouts(std::size_t ranks, std::size_t lanes, std::uint64_t rounds) {
  namespace moe = peerbus::moe;
  using moe::outputs_at;
  check_lanes<Group>(ranks, lanes, moe::compact{}, outputs_at::expert, rounds);
  check_lanes<Group>(ranks, lanes, moe::compact{.alignment = 4, .zero_gaps = true},
                     outputs_at::home, rounds);
  check_lanes<Group>(ranks, lanes, moe::padded{}, outputs_at::expert, rounds);
  check_lanes<Group>(ranks, lanes, moe::rank_major{}, outputs_at::expert, rounds);
  check_lanes<Group>(ranks, lanes, moe::rank_major{}, outputs_at::home, rounds);
  check_lanes<Group>(ranks, lanes, moe::slots{}, outputs_at::expert, rounds);
}

}  // namespace conformance
