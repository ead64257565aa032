// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// One token among others that differ: its result may not. docs/reproducibility.md says for what.
namespace same_bits {

using peerbus::bf16;
namespace moe = peerbus::moe;

constexpr std::size_t experts = 35, hidden = 128, top_k = 4, most = 5;

/// The token that is always the same: slots of several magnitudes, so that another order of sums
/// gives other bits.
template <class Codec>
struct the_token {
  std::vector<peerbus::token_of<Codec>> values;
  std::array<std::int32_t, top_k> ids{33, 0, 17, 9};
  std::array<float, top_k> weights{0.4F, 0.013F, 0.3F, 0.287F};

  the_token() {
    oracle::random draw{7};
    for (std::size_t i = 0; i < hidden; ++i)
      values.emplace_back(static_cast<float>(draw.unit() * 4 - 2));
  }
};

/// What an expert makes of a channel.
inline bf16 output_of(std::size_t expert, float value) {
  return bf16{value * std::pow(1.7F, static_cast<float>(expert % 11)) - value * 0.3F};
}

/// The result of the token as the sum of its slots in their order.
template <class Codec>
std::vector<bf16> expected() {
  const the_token<Codec> token;
  std::vector<std::byte> row(Codec::row_bytes(hidden));
  std::vector<std::byte> scales(Codec::scale_bytes(hidden));
  std::vector<float> values(hidden);
  Codec{}.encode(std::span<const peerbus::token_of<Codec>>{token.values}, row, scales);
  Codec{}.decode(row, scales, values);
  std::vector<bf16> sums;
  for (const float value : values) {
    float sum = 0;
    for (std::size_t k = 0; k < top_k; ++k)
      sum = std::fma(token.weights[k],
                     static_cast<float>(output_of(static_cast<std::size_t>(token.ids[k]), value)),
                     sum);
    sums.emplace_back(sum);
  }
  return sums;
}

/// Sends the token from one rank in a batch of others, and requires its bits. `seed` chooses the
/// rank, the place in the batch, the other tokens, and where experts lie.
template <class Codec, class Layout, class Communicator>
void check(Communicator& comm, const Layout& layout, std::uint64_t seed,
           std::span<const bf16> wanted) {
  oracle::random of_all{seed};
  std::vector<std::uint32_t> placed(experts);
  std::iota(placed.begin(), placed.end(), 0U);
  for (std::size_t i = experts; i > 1; --i) std::swap(placed[i - 1], placed[of_all.below(i)]);
  const std::size_t home = of_all.below(comm.size());
  moe::exchange_config config{
      .experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = most};
  config.in_flight = 1 + seed % 2;
  config.physical_to_logical = placed;
  config.relay = moe::relay::automatic;
  config.same_bits = true;
  moe::exchange exchange{comm, config, Codec{}, layout};
  test::expect(!exchange.relay().relays, "one level");
  if (exchange.relay().groups > 1)
    test::expect(exchange.relay().why.find("same_bits") != std::string::npos,
                 "why: ", exchange.relay().why);

  const the_token<Codec> token;
  struct batch {
    std::vector<peerbus::token_of<Codec>> tokens;
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
    std::size_t place = 0;
    moe::ticket ticket{};
  };
  std::vector<batch> batches(config.in_flight);
  oracle::random draw{seed * 100 + comm.rank().index()};
  for (batch& each : batches) {  // All are sent before the first is received.
    const std::size_t count = comm.rank().index() == home ? 1 + draw.below(most) : draw.below(most);
    for (std::size_t i = 0; i < count * hidden; ++i)
      each.tokens.emplace_back(static_cast<float>(draw.unit() * 200 - 100));
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t k = 0; k < top_k; ++k) {
        each.ids.push_back(static_cast<std::int32_t>((draw.below(8) + k * 8) % experts));
        each.weights.push_back(static_cast<float>(draw.unit()));
      }
    if (comm.rank().index() == home) {
      each.place = draw.below(count);
      const auto to = [&](auto& all, const auto& from) {
        std::copy(from.begin(), from.end(),
                  all.begin() + static_cast<std::ptrdiff_t>(each.place * from.size()));
      };
      to(each.tokens, token.values);
      to(each.ids, token.ids);
      to(each.weights, token.weights);
    }
    each.ticket = exchange.dispatch_send(each.tokens, {each.ids, each.weights});
  }
  for (batch& each : batches) {
    const auto received = exchange.dispatch_recv(each.ticket);
    std::vector<float> values(hidden);
    const auto fill = [&](const auto& rows, std::size_t expert) {
      for (std::size_t row = 0; row < rows.count(); ++row) {
        rows.decode(row, values);
        for (std::size_t h = 0; h < hidden; ++h) rows.output(row)[h] = output_of(expert, values[h]);
      }
    };
    if constexpr (requires { received.experts(); }) {
      for (const auto& expert : received.experts()) fill(expert, expert.id());
    } else {
      for (std::size_t e = 0; e < received.local_experts(); ++e)
        for (const auto source : comm.ranks())
          fill(received.rows_from(e, source), received.expert_id(e));
    }
    std::vector<bf16> sums(each.tokens.size());
    exchange.combine(received, sums);
    if (comm.rank().index() != home) continue;
    for (std::size_t h = 0; h < hidden; ++h)
      test::expect_equal(sums[each.place * hidden + h].bits, wanted[h].bits, "channel ", h,
                         " of the token, seed ", seed);
  }
}

/// Checks all layouts that take `same_bits`, on `ranks` ranks of `Group`.
template <class Codec, class Group>
void check_layouts(std::size_t ranks, std::uint64_t seed) {
  const std::vector<bf16> wanted = expected<Codec>();
  const int status = Group::run(ranks, [&](auto& comm) {
    check<Codec>(comm, moe::compact{}, seed, wanted);
    check<Codec>(comm, moe::compact{.alignment = 8, .zero_gaps = true}, seed + 1, wanted);
    check<Codec>(comm, moe::padded{}, seed + 2, wanted);
    check<Codec>(comm, moe::expert_slots{}, seed + 3, wanted);
  });
  CHECK(status == 0);
}

}  // namespace same_bits
