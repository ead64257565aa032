// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

#include "embed_c/exchange_case.hpp"
#include "embed_c/ranks_of_c.hpp"

namespace refusals_test {

using embed_c::bf16;
using embed_c::config_of;
using embed_c::fails;
using embed_c::input;
using embed_c::kind;
using embed_c::ok;
using test::expect;
using test::expect_equal;

namespace {

/// An exchange of bf16 rows for a test, with a dispatch that works.
class subject {
 public:
  explicit subject(peerbus_comm* comm,
                   peerbus_exchange_config config = config_of(PEERBUS_BF16, PEERBUS_COMPACT))
      : in{peerbus_comm_rank(comm), peerbus_comm_size(comm), 2}, args{in.args()} {
    ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
    received.struct_bytes = sizeof received;
    sums.resize(in.count * input::hidden);
    out.struct_bytes = sizeof out;
    out.count = in.count;
    out.out = sums.data();
  }
  subject(const subject&) = delete;
  subject& operator=(const subject&) = delete;
  ~subject() { peerbus_exchange_destroy(&exchange); }

  peerbus_code dispatch() { return peerbus_dispatch(exchange, &args, &received); }
  peerbus_code combine() { return peerbus_combine(exchange, received.ticket, &out); }

  input in;
  peerbus_dispatch_args args;
  peerbus_exchange* exchange = nullptr;
  peerbus_received received{};
  std::vector<bf16> sums;
  peerbus_combine_args out{};
};

/// Makes the last rank call `bad`, and requires that it is told `fragment`, that the other ranks
/// are told that they were refused, and that `good` works afterwards.
template <class Bad, class Good>
void check_refusal(peerbus_comm* comm, const char* fragment, Bad&& bad, Good&& good) {
  if (peerbus_comm_rank(comm) + 1 == peerbus_comm_size(comm))
    fails(bad(), PEERBUS_INVALID_ARGUMENT, fragment);
  else
    fails(good(), PEERBUS_REFUSED, "rank");
}

}  // namespace

TEST_CASE("bad input of one rank is refused on all, and the exchange works on") {
  for (const kind how : {kind::threads, kind::processes})
    CHECK(
        embed_c::run(3, how, [](peerbus_comm* comm) {
          subject s{comm};
          const auto good = [&] { return s.dispatch(); };
          const auto with = [&](auto change) {
            return [&s, change] {
              peerbus_dispatch_args args = s.args;
              change(args);
              return peerbus_dispatch(s.exchange, &args, &s.received);
            };
          };
          std::vector<std::int32_t> ids = s.in.ids;
          if (!ids.empty()) ids[0] = input::experts;
          check_refusal(comm, "expert", with([&](auto& a) { a.experts = ids.data(); }), good);
          check_refusal(comm, "token", with([](auto& a) { a.tokens = nullptr; }), good);
          check_refusal(comm, "weights", with([](auto& a) { a.weights = nullptr; }), good);
          check_refusal(comm, "13", with([](auto& a) { a.count = 13; }), good);
          check_refusal(comm, "more than memory", with([](auto& a) { a.count = UINT64_MAX; }),
                        good);
          check_refusal(comm, "expert_id_bits", with([](auto& a) { a.expert_id_bits = 16; }), good);
          check_refusal(comm, "struct_bytes is 8", with([](auto& a) { a.struct_bytes = 8; }), good);
          check_refusal(comm, "attachment", with([](auto& a) { a.attachments[1] = nullptr; }),
                        good);
          check_refusal(comm, "caller refuses", with([](auto& a) { a.refuse = 1; }), good);
          check_refusal(comm, "aligned", with([](auto& a) {
                          a.weights = reinterpret_cast<const float*>(
                              reinterpret_cast<const char*>(a.weights) + 1);
                        }),
                        good);
          check_refusal(
              comm, "args is NULL",
              [&] { return peerbus_dispatch(s.exchange, nullptr, &s.received); }, good);
          check_refusal(
              comm, "received is NULL",
              [&] { return peerbus_dispatch(s.exchange, &s.args, nullptr); }, good);
          ok(s.dispatch(), "a dispatch after all that");

          const auto sum = [&] { return s.combine(); };
          check_refusal(
              comm, "args is NULL",
              [&] { return peerbus_combine(s.exchange, s.received.ticket, nullptr); }, sum);
          check_refusal(
              comm, "out",
              [&] {
                peerbus_combine_args out = s.out;
                out.out = nullptr;
                return peerbus_combine(s.exchange, s.received.ticket, &out);
              },
              sum);
          ok(s.combine(), "a combine after all that");
          ok(peerbus_comm_barrier(comm, 0), "barrier");
        }) == 0);
}

TEST_CASE("configurations that cannot be") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_exchange* exchange = nullptr;
          const auto fails_with = [&](peerbus_code code, const char* fragment, auto change) {
            auto config = config_of(PEERBUS_BF16, PEERBUS_COMPACT);
            change(config);
            fails(peerbus_exchange_create(comm, &config, 0, &exchange), code, fragment);
            expect(exchange == nullptr, "no exchange");
          };
          const auto refused = [&](const char* fragment, auto change) {
            fails_with(PEERBUS_INVALID_ARGUMENT, fragment, change);
          };
          const auto differs = [&](const char* fragment, auto change) {
            fails_with(PEERBUS_MISMATCH, fragment, change);
          };
          refused("codec is 7", [](auto& c) { c.codec = 7; });
          refused("codec is -1", [](auto& c) { c.codec = -1; });
          refused("layout is 5", [](auto& c) { c.layout = 5; });
          refused("top_k is 0", [](auto& c) { c.top_k = 0; });
          refused("hidden is 0", [](auto& c) { c.hidden = 0; });
          refused("struct_bytes is 0", [](auto& c) { c.struct_bytes = 0; });
          // One rank gives them, and all refuse.
          const bool is_odd = peerbus_comm_rank(comm) == 1;
          refused(is_odd ? "relay is 3, expected 0 to 2" : "rank 1",
                  [&](auto& c) { c.relay = is_odd ? 3 : 0; });
          refused(is_odd ? "relay_sums is 2, expected 0 to 1" : "rank 1",
                  [&](auto& c) { c.relay_sums = is_odd ? 2 : 0; });
          // Nothing is allocated for what is refused, nor read: the map has one entry.
          for (const std::uint64_t most : {std::uint64_t{17}, std::uint64_t{1} << 60U, UINT64_MAX})
            refused("expected 1 to 16", [&](auto& c) { c.in_flight = most; });
          const std::uint32_t map = 0;
          for (const std::uint64_t experts :
               {(std::uint64_t{1} << 24U) + 1, std::uint64_t{1} << 32U})
            refused("expected at most 16777216", [&](auto& c) {
              c.experts = experts;
              c.physical_to_logical = &map;
            });
          fails(peerbus_exchange_create(comm, nullptr, 0, &exchange), PEERBUS_INVALID_ARGUMENT,
                "config is NULL");
          auto config = config_of(PEERBUS_BF16, PEERBUS_COMPACT);
          fails(peerbus_exchange_create(comm, &config, 0, nullptr), PEERBUS_INVALID_ARGUMENT,
                "exchange is NULL");
          const auto rank = static_cast<std::uint32_t>(peerbus_comm_rank(comm));
          differs("max_tokens is 12 on rank 0 but 13 on rank 1",
                  [&](auto& c) { c.max_tokens += rank; });
          differs("distrust_peers is 0 on rank 0 but 1 on rank 1",
                  [&](auto& c) { c.distrust_peers = rank; });
          differs("weights_at_combine is 0 on rank 0 but 1 on rank 1",
                  [&](auto& c) { c.weights_at_combine = rank; });
          differs("relay_sums is bf16 on rank 0 but f32 on rank 1",
                  [&](auto& c) { c.relay_sums = rank; });
          config.between = peerbus_comm_rank(comm);
          ok(peerbus_exchange_create(comm, &config, 0, &exchange), "ranks may differ in between");
          peerbus_exchange_destroy(&exchange);
          ok(peerbus_comm_barrier(comm, 0), "barrier");
        }) == 0);
}

TEST_CASE("a rank that distrusts its peers finds a wrong number") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          auto config = config_of(PEERBUS_BF16, PEERBUS_EXPERT_SLOTS);
          config.distrust_peers = 1;
          subject s{comm, config};
          ok(s.dispatch(), "dispatch");
          std::memset(s.received.outputs, 0,
                      s.received.row_capacity * input::hidden * sizeof(bf16));
          ok(s.combine(), "combine");
          // The next dispatch has the same memory, and with slots its rows leave at once.
          std::uint64_t ticket = 0;
          ok(peerbus_dispatch_send(s.exchange, &s.args, &ticket), "dispatch_send");
          ok(peerbus_comm_barrier(comm, 0), "barrier");
          const auto receive = [&] {
            return peerbus_dispatch_recv(s.exchange, ticket, nullptr, 0, &s.received);
          };
          if (peerbus_comm_rank(comm) == 0) {
            std::uint64_t place = 0;
            while (s.received.counts[place] == 0) ++place;
            auto& origin =
                const_cast<peerbus_origin&>(s.received.origins[s.received.first_rows[place]]);
            origin.token = 4711;
            fails(receive(), PEERBUS_MISMATCH, "rank 1 sent");
            fails(peerbus_comm_barrier(comm, 0), PEERBUS_POISONED, "4711");
            return;
          }
          peerbus_code told = receive();
          if (told == PEERBUS_OK) {
            std::memset(s.received.outputs, 0,
                        s.received.row_capacity * input::hidden * sizeof(bf16));
            told = s.combine();
          }
          fails(told, PEERBUS_REFUSED, "4711");
        }) == 0);
}

TEST_CASE("tickets in the wrong order") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          auto config = config_of(PEERBUS_BF16, PEERBUS_COMPACT);
          config.in_flight = 2;
          subject s{comm, config};
          fails(peerbus_combine(s.exchange, 0, &s.out), PEERBUS_INVALID_ARGUMENT, "ticket 0");
          fails(peerbus_combine(s.exchange, 77, &s.out), PEERBUS_INVALID_ARGUMENT, "ticket 77");
          void* output = nullptr;
          fails(peerbus_output(s.exchange, 1, 0, &output), PEERBUS_INVALID_ARGUMENT, "ticket 1");
          fails(peerbus_dispatch_recv(s.exchange, 1, nullptr, 0, &s.received),
                PEERBUS_INVALID_ARGUMENT, "");
          std::array<std::uint64_t, 2> tickets{};
          for (std::uint64_t& ticket : tickets)
            ok(peerbus_dispatch_send(s.exchange, &s.args, &ticket), "dispatch_send");
          std::uint64_t third = 0;
          fails(peerbus_dispatch_send(s.exchange, &s.args, &third), PEERBUS_INVALID_ARGUMENT, "");
          fails(peerbus_combine_send(s.exchange, tickets[0], nullptr), PEERBUS_INVALID_ARGUMENT,
                "received");
          for (const std::uint64_t ticket : tickets) {
            ok(peerbus_dispatch_recv(s.exchange, ticket, nullptr, 0, &s.received), "dispatch_recv");
            std::memset(s.received.outputs, 0, s.received.end * input::hidden * sizeof(bf16));
            ok(peerbus_combine_send(s.exchange, ticket, nullptr), "combine_send");
          }
          fails(peerbus_combine_send(s.exchange, tickets[1], nullptr), PEERBUS_INVALID_ARGUMENT,
                "");
          for (const std::uint64_t ticket : tickets)
            ok(peerbus_combine_recv(s.exchange, ticket, &s.out), "combine_recv");
        }) == 0);
}

TEST_CASE("notes, waits, and what goes home beside outputs") {
  CHECK(embed_c::run(3, kind::threads, [](peerbus_comm* comm) {
          const std::uint64_t rank = peerbus_comm_rank(comm);
          auto config = config_of(PEERBUS_BF16, PEERBUS_PADDED);
          config.note_bytes = 4;
          config.output_attachment = 4;
          subject s{comm, config};
          const auto letter = static_cast<std::uint32_t>(1000 + rank);
          std::array<std::int64_t, 3> waited{};
          if (rank != 1) s.args.note = &letter;
          s.args.waited_ns = waited.data();
          ok(s.dispatch(), "dispatch");
          for (std::uint64_t source = 0; source < 3; ++source) {
            const void* note = nullptr;
            std::uint64_t bytes = 99;
            ok(peerbus_note(s.exchange, s.received.ticket, source, &note, &bytes), "note");
            expect_equal(bytes, source == 1 ? 0U : 4U, "bytes of the note");
            if (bytes != 0)
              expect_equal(*static_cast<const std::uint32_t*>(note), 1000 + source, "the note");
          }
          for (std::uint64_t place = 0; place < s.received.blocks * 3; ++place)
            for (std::uint64_t i = 0; i < s.received.counts[place]; ++i) {
              const std::uint64_t row = s.received.first_rows[place] + i;
              void* beside = nullptr;
              ok(peerbus_output_attachment(s.exchange, s.received.ticket, row, &beside), "beside");
              *static_cast<std::uint32_t*>(beside) = s.received.expert_ids[place / 3];
            }
          s.out.attached = 1;
          std::memset(s.received.outputs, 0,
                      s.received.row_capacity * input::hidden * sizeof(bf16));
          ok(s.combine(), "combine");
          const peerbus::moe::expert_placement experts{input::experts, 3};
          for (std::uint64_t t = 0; t < s.in.count; ++t)
            for (std::uint64_t k = 0; k < input::top_k; ++k) {
              const std::int32_t expert = s.in.ids[t * input::top_k + k];
              if (expert < 0) continue;
              const void* come = nullptr;
              ok(peerbus_returned_attachment(
                     s.exchange, s.received.ticket, t, k,
                     experts.owner(static_cast<std::size_t>(expert)).index(), &come),
                 "returned_attachment");
              expect_equal(*static_cast<const std::uint32_t*>(come),
                           static_cast<std::uint32_t>(expert), "what came home");
            }
        }) == 0);
}

TEST_CASE("an interrupted dispatch poisons the communicator") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          subject s{comm};
          if (peerbus_comm_rank(comm) == 0) {
            const auto stop = [](void*) -> std::int32_t { return 1; };
            ok(peerbus_comm_set_interrupt(comm, stop, nullptr), "set_interrupt");
            fails(s.dispatch(), PEERBUS_INTERRUPTED, "rank 1");
            fails(s.dispatch(), PEERBUS_POISONED, "unusable since");
            fails(peerbus_comm_barrier(comm, 0), PEERBUS_POISONED, "unusable since");
          } else {
            fails(peerbus_comm_barrier(comm, 0), PEERBUS_PEER_DEAD, "rank 0 left");
          }
        }) == 0);
}

}  // namespace refusals_test
