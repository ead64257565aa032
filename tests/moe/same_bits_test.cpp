// SPDX-License-Identifier: MIT
// ctest: tsan every_build
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

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace same_bits_test {

// One token among others that differ: its result may not. docs/reproducibility.md says for what.

namespace {

using peerbus::bf16;
namespace moe = peerbus::moe;

constexpr std::size_t experts = 35, hidden = 128, top_k = 4, most = 5;

using threads = test::any_over<peerbus::any_transport, test::threads_over<peerbus::loopback>,
                               test::threads_over<test::indirect<peerbus::loopback>>,
                               test::threads_over<test::partly_direct<peerbus::loopback>>>;
using processes =
    test::any_over<peerbus::any_transport, test::processes_over<peerbus::unified_bus>>;

/// The token that is always the same: slots of several magnitudes, so that another order of sums
/// gives other bits.
struct the_token {
  std::vector<bf16> values;
  std::array<std::int32_t, top_k> ids{33, 0, 17, 9};
  std::array<float, top_k> weights{0.4F, 0.013F, 0.3F, 0.287F};

  the_token() {
    oracle::random draw{7};
    for (std::size_t i = 0; i < hidden; ++i)
      values.emplace_back(static_cast<float>(draw.unit() * 4 - 2));
  }
};

/// What an expert makes of a channel.
bf16 output_of(std::size_t expert, float value) {
  return bf16{value * std::pow(1.7F, static_cast<float>(expert % 11)) - value * 0.3F};
}

/// The result of the token as the sum of its slots in their order.
template <class Codec>
std::vector<bf16> expected() {
  const the_token token;
  std::vector<std::byte> row(Codec::row_bytes(hidden));
  std::vector<std::byte> scales(Codec::scale_bytes(hidden));
  std::vector<float> values(hidden);
  Codec{}.encode(std::span<const bf16>{token.values}, row, scales);
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

  const the_token token;
  struct batch {
    std::vector<bf16> tokens;
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

}  // namespace

TEST_CASE("the bits of a token do not depend on ranks, batches, placement, layout or path") {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 5U, 8U})
    check_layouts<peerbus::codec::int8_per_token, threads>(ranks, 10 * ranks);
  for (const std::size_t ranks : {1U, 3U, 8U})
    check_layouts<peerbus::codec::int8_per_token, processes>(ranks, 200 + 10 * ranks);
}

TEST_CASE("nor on 64 ranks, of which most hold no expert of the token") {
  check_layouts<peerbus::codec::int8_per_token, processes>(64, 3);
}

TEST_CASE("what cannot keep the bits is refused by name, on all ranks") {
  using peerbus::errc;
  const int status = threads::run(2, [](auto& comm) {
    const moe::exchange_config config{
        .experts = 6, .hidden = 64, .top_k = 2, .max_tokens = 4, .same_bits = true};
    const auto refused = [&](const auto& layout, std::string_view text) {
      test::expect_error(errc::invalid_argument, {text}, [&] {
        moe::exchange{comm, config, peerbus::codec::int8_per_token{}, layout};
      });
    };
    refused(moe::rank_major{}, "same_bits with layout rank_major");
    refused(moe::slots{}, "same_bits with layout slots");
    auto only_one = config;
    only_one.same_bits = comm.rank().index() == 1;
    test::expect_error(errc::mismatch, {"same_bits"}, [&] {
      moe::exchange{comm, only_one, peerbus::codec::int8_per_token{}, moe::compact{}};
    });
  });
  CHECK(status == 0);
  const int over_planes =
      test::threads_over<test::partly_direct<peerbus::loopback>>::run(4, [](auto& typed) {
        peerbus::communicator comm{
            peerbus::any_transport{test::partly_direct<peerbus::loopback>{typed.bus().boot()}}};
        const moe::exchange_config config{.experts = 8,
                                          .hidden = 64,
                                          .top_k = 2,
                                          .max_tokens = 4,
                                          .relay = moe::relay::always,
                                          .same_bits = true};
        test::expect_error(errc::unsupported, {"relay is always, but", "same_bits"}, [&] {
          moe::exchange{comm, config, peerbus::codec::int8_per_token{}, moe::compact{}};
        });
      });
  CHECK(over_planes == 0);
}

}  // namespace same_bits_test
