// SPDX-License-Identifier: MIT
// ctest: timeout=240
#include <cmath>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/codec/nothing.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "embed_c/exchange_case.hpp"
#include "support/bytes.hpp"
#include "support/instances.hpp"

namespace embed_c {

namespace codec = peerbus::codec;
using test::equal_bytes;
using test::expect;
using test::expect_equal;

void check_rows(peerbus_exchange* exchange, const peerbus_received& received,
                const codec_case& with, std::size_t rank, std::size_t ranks) {
  std::vector<input> inputs;
  for (std::size_t r = 0; r < ranks; ++r) inputs.emplace_back(r, ranks, with.token_bytes);
  std::uint64_t rows = 0;
  for (std::uint64_t block = 0; block < received.blocks; ++block)
    for (std::uint64_t source = 0; source < received.ranks; ++source) {
      const std::uint64_t place = block * received.ranks + source;
      for (std::uint64_t i = 0; i < received.counts[place]; ++i, ++rows) {
        const std::uint64_t row = received.first_rows[place] + i;
        const peerbus_origin origin = received.origins[row];
        // With relay the source is the place of the home rank on its host.
        expect_equal(origin.rank % received.ranks, source, "the home of row ", row);
        const input& home = inputs[origin.rank];
        const encoded expected = with.encode(home.token(origin.token));
        const auto* const bytes = static_cast<std::byte*>(received.row_data);
        expect(equal_bytes({bytes + row * received.row_bytes, received.row_bytes}, expected.row),
               "the bytes of row ", row);
        if (received.scales != nullptr)
          expect(equal_bytes({static_cast<std::byte*>(received.scales) + row * received.scale_bytes,
                              received.scale_bytes},
                             expected.scales),
                 "the scales of row ", row);
        expect(equal_bytes(
                   {static_cast<std::byte*>(received.attachments[1]) + row * input::extra_bytes,
                    input::extra_bytes},
                   std::span{home.attachment}.subspan(origin.token * input::extra_bytes,
                                                      input::extra_bytes)),
               "the attachment of row ", row);
        std::vector<float> values(input::hidden);
        ok(peerbus_decode(exchange, received.ticket, row, values.data()), "decode");
        expect(values == expected.values, "the values of row ", row);

        void* memory = nullptr;
        ok(peerbus_output(exchange, received.ticket, row, &memory), "output");
        auto* const output = static_cast<bf16*>(memory);
        if (received.outputs != nullptr)
          expect(memory == static_cast<bf16*>(received.outputs) + row * input::hidden,
                 "one place of the output of row ", row);
        for (std::size_t h = 0; h < input::hidden; ++h) {
          if (received.by_rank == 0) {
            expect_equal(home.ids[origin.token * input::top_k + origin.slot],
                         received.expert_ids[block], "the expert of row ", row);
            output[h] = expert_output(received.expert_ids[block], values[h]);
            continue;
          }
          float sum = 0;
          for (std::size_t k = 0; k < input::top_k; ++k) {
            const std::int32_t e = received.slot_experts[row * input::top_k + k];
            if (e < 0) continue;
            const std::uint32_t expert = received.expert_ids[e];
            expect_equal(home.ids[origin.token * input::top_k + k], expert, "a slot of row ", row);
            sum = std::fma(received.slot_weights[row * input::top_k + k],
                           static_cast<float>(expert_output(expert, values[h])), sum);
          }
          output[h] = bf16{sum};
        }
      }
    }
  expect_equal(rows, received.rows, "rows of rank ", rank);
  if (received.by_rank != 0)
    for (std::uint64_t e = 0; e < received.experts; ++e)
      for (std::uint32_t u = received.use_starts[e]; u < received.use_starts[e + 1]; ++u) {
        const peerbus_row_use use = received.uses[u];
        expect_equal(received.slot_experts[use.row * input::top_k + use.slot],
                     static_cast<std::int32_t>(e), "the expert of use ", u);
      }
  void* none = nullptr;
  fails(peerbus_output(exchange, received.ticket, received.row_capacity, &none),
        PEERBUS_INVALID_ARGUMENT, "no row");
}

void check_sums(const input& in, std::span<const bf16> sums, const codec_case& with, bool by_rank,
                std::size_t ranks, std::size_t hosts, std::uint32_t relay_sums) {
  const bool are_rounded = hosts > 1 && relay_sums == PEERBUS_RELAY_SUMS_BF16;
  const peerbus::moe::expert_placement experts{input::experts, ranks};
  for (std::size_t t = 0; t < in.count; ++t) {
    const encoded token = with.encode(in.token(t));
    for (std::size_t h = 0; h < input::hidden; ++h) {
      // Adds the outputs of the experts of ranks `begin` to `end`. Returns whether there were any.
      const auto add_of = [&](std::size_t begin, std::size_t end, float& to) {
        bool any = false;
        for (std::size_t k = 0; k < input::top_k; ++k) {
          const std::int32_t id = in.ids[t * input::top_k + k];
          if (id < 0) continue;
          const auto e = static_cast<std::size_t>(id);
          const std::size_t owner = experts.owner(e).index();
          if (owner < begin || owner >= end) continue;
          any = true;
          to = std::fma(in.weights[t * input::top_k + k],
                        static_cast<float>(expert_output(e, token.values[h])), to);
        }
        return any;
      };
      float sum = 0;
      for (std::size_t host = 0; host < hosts; ++host) {
        const std::size_t begin = host * ranks / hosts;
        const std::size_t end = (host + 1) * ranks / hosts;
        float of_host = 0;
        if (!by_rank) add_of(begin, end, of_host);
        for (std::size_t rank = begin; by_rank && rank < end; ++rank) {
          float part = 0;
          if (add_of(rank, rank + 1, part)) of_host += static_cast<float>(bf16{part});
        }
        sum += are_rounded ? static_cast<float>(bf16{of_host}) : of_host;
      }
      expect_equal(sums[t * input::hidden + h].bits, bf16{sum}.bits, "channel ", h, " of token ",
                   t);
    }
  }
}

void check_round(peerbus_comm* comm, const peerbus_exchange_config& config, const codec_case& with,
                 bool in_halves) {
  const std::uint64_t rank = peerbus_comm_rank(comm);
  const std::uint64_t ranks = peerbus_comm_size(comm);
  peerbus_exchange* exchange = nullptr;
  ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
  expect(peerbus_exchange_bytes(exchange) > 0, "an exchange has memory");
  const input in{rank, ranks, with.token_bytes};
  peerbus_dispatch_args args = in.args();
  const std::vector<float> others(in.weights.size(), -1.0F);
  const bool are_late = config.weights_at_combine != 0;
  if (are_late) args.weights = others.data();
  for (int round = 0; round < 3; ++round) {
    peerbus_received received{};
    received.struct_bytes = sizeof received;
    std::vector<bf16> sums(in.count * input::hidden);
    peerbus_combine_args out{};
    out.struct_bytes = sizeof out;
    out.count = in.count;
    out.out = sums.data();
    if (are_late) out.weights = in.weights.data();
    if (in_halves) {
      std::uint64_t ticket = 0;
      ok(peerbus_dispatch_send(exchange, &args, &ticket), "dispatch_send");
      ok(peerbus_dispatch_recv(exchange, ticket, nullptr, 0, &received), "dispatch_recv");
      expect_equal(received.ticket, ticket, "the ticket");
      check_rows(exchange, received, with, rank, ranks);
      ok(peerbus_combine_send(exchange, ticket, nullptr), "combine_send");
      ok(peerbus_combine_recv(exchange, ticket, &out), "combine_recv");
    } else {
      ok(peerbus_dispatch(exchange, &args, &received), "dispatch");
      check_rows(exchange, received, with, rank, ranks);
      ok(peerbus_combine(exchange, received.ticket, &out), "combine");
    }
    check_sums(in, sums, with, received.by_rank != 0, ranks, ranks / received.ranks,
               config.relay_sums);
    fails(peerbus_combine(exchange, received.ticket, &out), PEERBUS_INVALID_ARGUMENT, "combined");
  }
  peerbus_exchange_destroy(&exchange);
  expect(exchange == nullptr, "a destroyed handle is null");
  peerbus_exchange_destroy(&exchange);
}

const std::vector<codec_case>& all_codecs() {
  static const std::vector<codec_case> all{
      {PEERBUS_BF16, 2, encode_as<codec::bf16>},
      {PEERBUS_INT8_PER_TOKEN, 2, encode_as<codec::int8_per_token>},
      {PEERBUS_FP8_PER_128_F32, 2, encode_as<codec::fp8_e4m3_per_128_f32>},
      {PEERBUS_FP8_PER_128_ROUNDED, 2, encode_as<codec::fp8_e4m3_per_128_rounded_f32>},
      {PEERBUS_FP8_PER_128_UE8M0, 2, encode_as<codec::fp8_e4m3_per_128_ue8m0>},
      {PEERBUS_FP8_AS_GIVEN, 1, encode_as<codec::fp8_e4m3_as_given>},
      {PEERBUS_NO_ROWS, 2, encode_as<codec::nothing>}};
  return all;
}

}  // namespace embed_c

namespace exchange_test {

namespace {

using embed_c::bf16;
using embed_c::config_of;
using embed_c::fails;
using embed_c::input;
using embed_c::kind;
using embed_c::ok;
using test::expect;
using test::expect_equal;

/// The rows of all ranks and their sums, as bytes.
struct outcome {
  std::vector<std::byte> rows;
  std::vector<std::byte> sums;
};

void append(std::vector<std::byte>& to, const void* bytes, std::size_t count) {
  const auto* const first = static_cast<const std::byte*>(bytes);
  if (count != 0) to.insert(to.end(), first, first + count);
}

/// Sends tokens by C++ and by C, and requires equal bytes.
template <class Codec, class Layout>
void compare_with_cpp(std::int32_t codec, std::int32_t layout, std::size_t ranks) {
  std::vector<outcome> by_c(ranks);
  std::vector<outcome> by_cpp(ranks);
  CHECK(embed_c::run(ranks, kind::threads, [&](peerbus_comm* comm) {
          const std::uint64_t rank = peerbus_comm_rank(comm);
          const input in{rank, ranks, sizeof(peerbus::token_of<Codec>)};
          const auto config = config_of(codec, layout);
          peerbus_exchange* exchange = nullptr;
          ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
          peerbus_received received{};
          received.struct_bytes = sizeof received;
          const auto args = in.args();
          ok(peerbus_dispatch(exchange, &args, &received), "dispatch");
          outcome& result = by_c[rank];
          for (std::uint64_t i = 0; i < received.blocks * ranks; ++i)
            for (std::uint64_t row = received.first_rows[i];
                 row < received.first_rows[i] + received.counts[i]; ++row) {
              append(result.rows,
                     static_cast<std::byte*>(received.row_data) + row * received.row_bytes,
                     received.row_bytes);
              append(result.rows,
                     static_cast<std::byte*>(received.scales) + row * received.scale_bytes,
                     received.scale_bytes);
              auto* const output = static_cast<bf16*>(received.outputs) + row * input::hidden;
              for (std::size_t h = 0; h < input::hidden; ++h)
                output[h] = bf16{static_cast<float>(row % 16 + h)};
            }
          result.sums.resize(in.count * input::hidden * sizeof(bf16));
          peerbus_combine_args out{};
          out.struct_bytes = sizeof out;
          out.count = in.count;
          out.out = result.sums.data();
          ok(peerbus_combine(exchange, received.ticket, &out), "combine");
          peerbus_exchange_destroy(&exchange);
        }) == 0);
  CHECK(peerbus::run_threads(ranks, [&](peerbus::bootstrap& boot) {
          using bus = peerbus::any_transport;
          peerbus::communicator<bus> comm{bus{peerbus::loopback{boot}}};
          const std::size_t rank = comm.rank().index();
          using token = peerbus::token_of<Codec>;
          const input in{rank, ranks, sizeof(token)};
          peerbus::moe::exchange<bus, Codec, Layout> moe{comm,
                                                         {.experts = input::experts,
                                                          .hidden = input::hidden,
                                                          .top_k = input::top_k,
                                                          .max_tokens = input::tokens,
                                                          .attachments = {0, input::extra_bytes}}};
          const std::span tokens{reinterpret_cast<const token*>(in.values.data()),
                                 in.count * input::hidden};
          auto received = moe.dispatch(tokens, {in.ids, in.weights},
                                       {.attachments = {{{}, in.attachment, {}, {}}}});
          outcome& result = by_cpp[rank];
          const auto keep = [&](const auto& rows) {
            for (std::size_t i = 0; i < rows.count(); ++i) {
              append(result.rows, rows.row(i).data(), rows.row(i).size_bytes());
              const auto scales = rows.template scales<std::byte>();
              const std::size_t bytes = scales.size() / rows.count();
              append(result.rows, scales.data() + i * bytes, bytes);
              for (std::size_t h = 0; h < input::hidden; ++h)
                rows.output(i)[h] = bf16{static_cast<float>((rows.first_row() + i) % 16 + h)};
            }
          };
          if constexpr (requires { received.experts(); })
            for (const auto& expert : received.experts()) keep(expert);
          else if constexpr (requires { received.rows_from(0, peerbus::rank_id{0}); })
            for (std::size_t e = 0; e < received.local_experts(); ++e)
              for (const auto source : comm.ranks()) keep(received.rows_from(e, source));
          else if constexpr (requires { received.all(); })
            for (const auto source : comm.ranks()) keep(received.rows_from(source));
          else
            keep(received);
          std::vector<bf16> sums(in.count * input::hidden);
          moe.combine(received, sums);
          append(result.sums, sums.data(), sums.size() * sizeof(bf16));
        }) == 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(!(by_c[rank].rows.empty() && by_c[rank].sums.empty()));
    CHECK(by_c[rank].rows == by_cpp[rank].rows);
    CHECK(by_c[rank].sums == by_cpp[rank].sums);
  }
}

}  // namespace

TEST_CASE("every codec and layout through C") {
  for (const embed_c::codec_case& with : embed_c::all_codecs())
    for (const std::int32_t layout :
         {PEERBUS_COMPACT, PEERBUS_PADDED, PEERBUS_RANK_MAJOR, PEERBUS_SLOTS, PEERBUS_EXPERT_SLOTS})
      for (const std::uint64_t n : {1U, 3U}) {
        CAPTURE(with.codec);
        CAPTURE(layout);
        auto config = config_of(with.codec, layout);
        if (layout == PEERBUS_COMPACT) config.alignment = 4;
        CHECK(embed_c::run(n, kind::threads, [&](peerbus_comm* comm) {
                embed_c::check_round(comm, config, with, false);
              }) == 0);
        auto at_home = config;
        at_home.outputs_at_home = 1;
        at_home.in_flight = 2;
        CHECK(embed_c::run(n, kind::threads, [&](peerbus_comm* comm) {
                embed_c::check_round(comm, at_home, with, true);
              }) == 0);
      }
}

TEST_CASE("ranks that are processes") {
  const embed_c::codec_case& with = embed_c::all_codecs()[PEERBUS_INT8_PER_TOKEN];
  for (const std::uint64_t n : {1U, 2U, 5U, 64U})
    CHECK(embed_c::run(n, kind::processes, [&](peerbus_comm* comm) {
            embed_c::check_round(comm, config_of(with.codec, PEERBUS_COMPACT), with, false);
            embed_c::check_round(comm, config_of(with.codec, PEERBUS_RANK_MAJOR), with, true);
          }) == 0);
}

TEST_CASE("ranks of two hosts, in one level and with relay") {
  for (const std::uint64_t n : {1U, 2U, 4U, 5U})
    CHECK(embed_c::run(n, kind::hosts, [n](peerbus_comm* comm) {
            for (const std::int32_t codec : {PEERBUS_BF16, PEERBUS_INT8_PER_TOKEN})
              for (const std::int32_t layout : {PEERBUS_COMPACT, PEERBUS_PADDED, PEERBUS_RANK_MAJOR,
                                                PEERBUS_SLOTS, PEERBUS_EXPERT_SLOTS})
                for (const std::uint32_t relay : {PEERBUS_RELAY_NEVER, PEERBUS_RELAY_ALWAYS}) {
                  // A host then holds top_k experts, and hosts are equal in size.
                  if (relay == PEERBUS_RELAY_ALWAYS && n != 4) continue;
                  auto config = config_of(codec, layout);
                  config.relay = relay;
                  config.in_flight = relay == PEERBUS_RELAY_ALWAYS ? 2 : 1;
                  const auto& with = embed_c::all_codecs()[static_cast<std::size_t>(codec)];
                  embed_c::check_round(comm, config, with, layout % 2 != 0);
                  config.relay_sums = PEERBUS_RELAY_SUMS_F32;
                  const bool by_rank = layout == PEERBUS_RANK_MAJOR || layout == PEERBUS_SLOTS;
                  config.weights_at_combine = by_rank ? 0 : 1;
                  config.between = std::uint64_t{1} << (40 + peerbus_comm_rank(comm));
                  embed_c::check_round(comm, config, with, layout % 2 != 0);
                }
          }) == 0);
}

// Needs an RDMA device: the tests of verbs run it, without the filter of skipped cases.
TEST_CASE("ranks joined by verbs, on one host and on two" * doctest::skip()) {
  for (const std::int32_t transport : {PEERBUS_VERBS, PEERBUS_PLANES_VERBS}) {
    CAPTURE(transport);
    peerbus_comm_options options{};
    options.struct_bytes = sizeof options;
    options.transport = transport;
    CHECK(embed_c::run(
              3, kind::hosts,
              [](peerbus_comm* comm) {
                for (const std::int32_t codec : {PEERBUS_BF16, PEERBUS_INT8_PER_TOKEN})
                  for (const std::int32_t layout : {PEERBUS_COMPACT, PEERBUS_RANK_MAJOR})
                    embed_c::check_round(comm, config_of(codec, layout),
                                         embed_c::all_codecs()[static_cast<std::size_t>(codec)],
                                         false);
              },
              &options) == 0);
  }
}

TEST_CASE("the bytes are those of the interface of C++") {
  namespace codec = peerbus::codec;
  namespace moe = peerbus::moe;
  for (const std::size_t n : {1U, 3U}) {
    compare_with_cpp<codec::bf16, moe::compact>(PEERBUS_BF16, PEERBUS_COMPACT, n);
    compare_with_cpp<codec::bf16, moe::padded>(PEERBUS_BF16, PEERBUS_PADDED, n);
    compare_with_cpp<codec::bf16, moe::rank_major>(PEERBUS_BF16, PEERBUS_RANK_MAJOR, n);
    compare_with_cpp<codec::int8_per_token, moe::compact>(PEERBUS_INT8_PER_TOKEN, PEERBUS_COMPACT,
                                                          n);
    compare_with_cpp<codec::int8_per_token, moe::slots>(PEERBUS_INT8_PER_TOKEN, PEERBUS_SLOTS, n);
    compare_with_cpp<codec::int8_per_token, moe::expert_slots>(PEERBUS_INT8_PER_TOKEN,
                                                               PEERBUS_EXPERT_SLOTS, n);
    compare_with_cpp<codec::fp8_e4m3_per_128_f32, moe::compact>(PEERBUS_FP8_PER_128_F32,
                                                                PEERBUS_COMPACT, n);
    compare_with_cpp<codec::fp8_e4m3_per_128_ue8m0, moe::padded>(PEERBUS_FP8_PER_128_UE8M0,
                                                                 PEERBUS_PADDED, n);
    compare_with_cpp<codec::fp8_e4m3_as_given, moe::rank_major>(PEERBUS_FP8_AS_GIVEN,
                                                                PEERBUS_RANK_MAJOR, n);
  }
}

}  // namespace exchange_test
