// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

#include "embed_c/exchange_case.hpp"
#include "embed_c/ranks_of_c.hpp"
#include "support/ranks.hpp"

namespace c_replicas_test {

// Experts with several places for C: the choice among them, the rows of each place, and other
// places between two batches.

namespace {

using embed_c::bf16;
using embed_c::config_of;
using embed_c::fails;
using embed_c::input;
using embed_c::kind;
using embed_c::ok;
using test::expect;
using test::expect_equal;
using table = std::vector<std::uint32_t>;

constexpr std::uint64_t ranks = 3;
// Experts 0, 1 and 5 have two places. All are at least where they are without a table.
const table places_of_rank{4, 3, 4};
const table placed{0, 1, 2, 5, 3, 4, 0, 5, 6, PEERBUS_VACANT, 1};
const table first_places{0, 1, 2, 4, 5, 7, 8};  ///< of each expert, where it is without a table
// As many places at each rank. Experts 2, 4 and 6 have two.
const table later{6, 3, PEERBUS_VACANT, 4, 2, 6, 0, 1, 2, 4, 5};

peerbus_replica_choice choice_of(std::uint32_t policy) {
  return {sizeof(peerbus_replica_choice), policy, nullptr, nullptr, nullptr};
}

/// Quotas by which only the first place of an expert of `placed` gets rows.
table quotas_of_first_places() {
  table quotas(placed.size());
  for (const std::uint32_t place : first_places) quotas[place] = 7;
  return quotas;
}

peerbus_exchange_config config_with(std::int32_t layout, const peerbus_replica_choice& choice) {
  auto config = config_of(PEERBUS_BF16, layout);
  config.physical_experts = placed.size();
  config.physical_to_logical = placed.data();
  config.experts_of_rank = places_of_rank.data();
  config.replicas = &choice;
  return config;
}

/// An exchange of bf16 rows, and batches that work.
class subject {
 public:
  subject(peerbus_comm* comm, const peerbus_exchange_config& config)
      : rank_{peerbus_comm_rank(comm)}, in_{rank_, ranks, 2} {
    ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
  }
  subject(const subject&) = delete;
  subject& operator=(const subject&) = delete;
  ~subject() { peerbus_exchange_destroy(&exchange); }

  peerbus_received dispatch() {
    const auto args = in_.args();
    peerbus_received received{};
    received.struct_bytes = sizeof received;
    ok(peerbus_dispatch(exchange, &args, &received), "dispatch");
    return received;
  }
  /// Computes the outputs, combines and requires the sums of experts without a table.
  void combine(const peerbus_received& received) {
    const auto& codec = embed_c::all_codecs()[PEERBUS_BF16];
    embed_c::check_rows(exchange, received, codec, rank_, ranks);
    std::vector<bf16> sums(in_.count * input::hidden);
    peerbus_combine_args out{};
    out.struct_bytes = sizeof out;
    out.count = in_.count;
    out.out = sums.data();
    ok(peerbus_combine(exchange, received.ticket, &out), "combine");
    embed_c::check_sums(in_, sums, codec, received.by_rank != 0, ranks, 1);
  }
  /// Requires that the experts of this rank are those of `wanted`, by a batch.
  void check_places(const table& wanted) {
    const auto received = dispatch();
    std::size_t place = 0;
    for (std::uint64_t r = 0; r < rank_; ++r) place += places_of_rank[r];
    expect_equal(received.experts, places_of_rank[rank_], "the places of this rank");
    for (std::size_t e = 0; e < received.experts; ++e)
      expect_equal(received.expert_ids[e], wanted[place + e], "the expert of place ", place + e);
    combine(received);
  }
  peerbus_code install(const table& wanted, const peerbus_replica_choice* choice = nullptr) {
    return peerbus_exchange_install_experts(exchange, wanted.data(), wanted.size(), choice, 0);
  }

  peerbus_exchange* exchange = nullptr;

 private:
  std::uint64_t rank_;
  input in_;
};

/// Returns the rows of each place if replicas are chosen in turns, those at other ranks than `only`
/// as 0. `only` may be `ranks`, for all.
table rows_in_turns(const table& logical, std::uint64_t only) {
  table rows(logical.size());
  for (std::uint64_t r = 0; r < ranks; ++r) {
    const input in{r, ranks, 2};
    for (std::size_t slot = 0; slot < in.ids.size(); ++slot) {
      if (in.ids[slot] < 0) continue;
      const auto expert = static_cast<std::uint32_t>(in.ids[slot]);
      table replicas;
      for (std::uint32_t p = 0; p < logical.size(); ++p)
        if (logical[p] == expert) replicas.push_back(p);
      const std::uint32_t place = replicas[(slot / input::top_k + r + expert) % replicas.size()];
      const std::uint64_t holder = place < 4 ? 0 : place < 7 ? 1 : 2;
      if (only == ranks || only == holder) ++rows[place];
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("experts with replicas through C have the sums of those without") {
  const auto& bf16_rows = embed_c::all_codecs()[PEERBUS_BF16];
  const table quotas = quotas_of_first_places();
  const table distances{2, 1, 0};
  auto weighted = choice_of(PEERBUS_REPLICA_WEIGHTED);
  weighted.quotas = quotas.data();
  auto fixed = choice_of(PEERBUS_REPLICA_FIXED);
  fixed.chosen = first_places.data();
  auto far = choice_of(PEERBUS_REPLICA_NEAREST);
  far.distances = distances.data();
  for (const kind how : {kind::threads, kind::processes, kind::hosts})
    CHECK(embed_c::run(ranks, how, [&](peerbus_comm* comm) {
            for (const std::int32_t layout :
                 {PEERBUS_COMPACT, PEERBUS_PADDED, PEERBUS_EXPERT_SLOTS})
              for (const auto& choice :
                   {choice_of(PEERBUS_REPLICA_NEAREST), choice_of(PEERBUS_REPLICA_ROUND_ROBIN), far,
                    weighted, fixed})
                embed_c::check_round(comm, config_with(layout, choice), bf16_rows, false);
            // By rank the choice decides which experts are added up together.
            for (const std::int32_t layout : {PEERBUS_RANK_MAJOR, PEERBUS_SLOTS})
              for (const auto& choice : {weighted, fixed})
                embed_c::check_round(comm, config_with(layout, choice), bf16_rows, true);
          }) == 0);
}

TEST_CASE("the rows of each place are those that the choice sent there") {
  CHECK(embed_c::run(ranks, kind::threads, [](peerbus_comm* comm) {
          const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
          for (const std::int32_t layout : {PEERBUS_COMPACT, PEERBUS_PADDED, PEERBUS_RANK_MAJOR,
                                            PEERBUS_SLOTS, PEERBUS_EXPERT_SLOTS}) {
            subject s{comm, config_with(layout, in_turns)};
            const auto received = s.dispatch();
            const bool of_all = layout == PEERBUS_COMPACT || layout == PEERBUS_PADDED;
            table rows(placed.size(), 99);
            std::int32_t said = 99;
            const auto count = [&](std::uint64_t ticket, std::uint64_t size) {
              return peerbus_exchange_count_rows(s.exchange, ticket, rows.data(), size, &said);
            };
            ok(count(received.ticket, rows.size()), "count_rows");
            expect_equal(said, of_all ? 1 : 0, "whether all ranks' rows are known");
            expect(rows == rows_in_turns(placed, of_all ? ranks : peerbus_comm_rank(comm)),
                   "the rows of places in layout ", layout);
            ok(peerbus_exchange_count_rows(s.exchange, received.ticket, rows.data(), rows.size(),
                                           nullptr),
               "count_rows");
            fails(count(received.ticket, rows.size() - 1), PEERBUS_INVALID_ARGUMENT,
                  "rows has 10 entries, expected physical experts, 11");
            fails(count(77, rows.size()), PEERBUS_INVALID_ARGUMENT, "ticket 77");
            fails(peerbus_exchange_count_rows(s.exchange, received.ticket, nullptr, 11, nullptr),
                  PEERBUS_INVALID_ARGUMENT, "rows is NULL");
          }
        }) == 0);
}

TEST_CASE("experts get other places between batches of C") {
  CHECK(embed_c::run(ranks, kind::processes, [](peerbus_comm* comm) {
          const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
          for (const std::int32_t layout :
               {PEERBUS_COMPACT, PEERBUS_PADDED, PEERBUS_EXPERT_SLOTS}) {
            subject s{comm, config_with(layout, in_turns)};
            s.check_places(placed);
            ok(s.install(later, &in_turns), "install_experts");
            s.check_places(later);
            const auto received = s.dispatch();
            table rows(later.size());
            ok(peerbus_exchange_count_rows(s.exchange, received.ticket, rows.data(), rows.size(),
                                           nullptr),
               "count_rows");
            expect(rows ==
                       rows_in_turns(
                           later, layout == PEERBUS_EXPERT_SLOTS ? peerbus_comm_rank(comm) : ranks),
                   "the choice that was installed");
            fails(s.install(placed), PEERBUS_INVALID_ARGUMENT, "dispatch 3 is received");
            s.combine(received);
            ok(s.install(placed), "install_experts");
            // What was dispatched before is over.
            fails(peerbus_exchange_count_rows(s.exchange, received.ticket, rows.data(), rows.size(),
                                              nullptr),
                  PEERBUS_INVALID_ARGUMENT, "ticket 3");
            std::vector<float> values(input::hidden);
            fails(peerbus_decode(s.exchange, received.ticket, 0, values.data()),
                  PEERBUS_INVALID_ARGUMENT, "");
            expect_equal(peerbus_awaits_combine(s.exchange, received.ticket), 0, "a former batch");
            s.check_places(placed);
          }
        }) == 0);
}

TEST_CASE("a bad table is refused on all ranks of C, and the experts stay where they are") {
  CHECK(
      embed_c::run(ranks, kind::threads, [](peerbus_comm* comm) {
        const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
        subject s{comm, config_with(PEERBUS_COMPACT, in_turns)};
        const bool is_odd_one = peerbus_comm_rank(comm) == 1;
        const auto refused = [&](peerbus_code code, std::string_view says, const table& bad,
                                 const peerbus_replica_choice& choice) {
          fails(s.install(is_odd_one ? bad : later, is_odd_one ? &choice : &in_turns), code, says);
          s.check_places(placed);
        };
        constexpr auto invalid = PEERBUS_INVALID_ARGUMENT;
        const auto spoilt = [](std::size_t place, std::uint32_t expert) {
          table made = later;
          made[place] = expert;
          return made;
        };
        refused(invalid, "physical_to_logical has 2 entries, expected physical experts, 11", {0, 1},
                in_turns);
        refused(invalid, "physical_to_logical[1] is 7, expected 0 to 6, or vacant", spoilt(1, 7),
                in_turns);
        refused(invalid, "physical_to_logical lacks expert 3", spoilt(1, PEERBUS_VACANT), in_turns);
        refused(invalid, "physical_to_logical[3] is 6, which physical expert 0 of rank 0 is too",
                spoilt(3, 6), in_turns);
        refused(PEERBUS_MISMATCH, "physical_to_logical[3] is 4 on rank 0 but 4294967295 on rank 1",
                spoilt(3, PEERBUS_VACANT), in_turns);
        refused(invalid, "replicas.policy is 4", later, choice_of(4));
        refused(invalid, "replicas.quotas has 0 entries with policy weighted, expected 11", later,
                choice_of(PEERBUS_REPLICA_WEIGHTED));
        auto fixed = choice_of(PEERBUS_REPLICA_FIXED);
        fixed.chosen = first_places.data();
        refused(invalid, "replicas.chosen[0] is 0, which is expert 6", later, fixed);
        auto small = in_turns;
        small.struct_bytes = 8;
        refused(invalid, is_odd_one ? "replicas.struct_bytes is 8" : "rank 1", later, small);
        fails(peerbus_exchange_install_experts(s.exchange, nullptr, later.size(), nullptr, 0),
              invalid, "physical_to_logical has 0 entries");
        s.check_places(placed);
        ok(s.install(later), "install_experts");
        s.check_places(later);
      }) == 0);
}

TEST_CASE("configurations of places that cannot be are refused on all ranks") {
  CHECK(embed_c::run(ranks, kind::threads, [](peerbus_comm* comm) {
          const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
          const bool is_odd_one = peerbus_comm_rank(comm) == 1;
          peerbus_exchange* exchange = nullptr;
          const auto refused = [&](std::string_view says, auto change) {
            auto config = config_with(PEERBUS_COMPACT, in_turns);
            if (is_odd_one) change(config);
            fails(peerbus_exchange_create(comm, &config, 0, &exchange), PEERBUS_INVALID_ARGUMENT,
                  says);
            expect(exchange == nullptr, "no exchange");
          };
          // Other ranks are told whose table cannot be read.
          const char* const elsewhere = "rank 1 could not: exchange: physical_to_logical has 1";
          refused(is_odd_one ? "physical_experts is 11 without physical_to_logical" : elsewhere,
                  [](auto& c) { c.physical_to_logical = nullptr; });
          auto small = in_turns;
          small.struct_bytes = 8;
          refused(is_odd_one ? "replicas.struct_bytes is 8" : elsewhere,
                  [&](auto& c) { c.replicas = &small; });
          refused("physical_to_logical has 10 entries, expected the sum of experts_of_rank, 11",
                  [](auto& c) { c.physical_experts = 10; });
          refused("expected at most 16777216", [](auto& c) {
            c.physical_experts = std::uint64_t{1} << 60U;
            c.experts_of_rank = nullptr;
          });
          const auto unknown = choice_of(9);
          refused("replicas.policy is 9", [&](auto& c) { c.replicas = &unknown; });
          // Programs that were compiled with an earlier header.
          auto earlier = config_with(PEERBUS_COMPACT, in_turns);
          earlier.struct_bytes = offsetof(peerbus_exchange_config, physical_experts);
          earlier.physical_to_logical = nullptr;
          embed_c::check_round(comm, earlier, embed_c::all_codecs()[PEERBUS_BF16], false);
        }) == 0);
}

TEST_CASE("groups that relay hold each expert once") {
  CHECK(embed_c::run(4, kind::hosts, [](peerbus_comm* comm) {
          auto config = config_of(PEERBUS_BF16, PEERBUS_COMPACT);
          config.relay = PEERBUS_RELAY_ALWAYS;
          auto with_table = config;
          with_table.physical_experts = placed.size();
          with_table.physical_to_logical = placed.data();
          peerbus_exchange* exchange = nullptr;
          fails(peerbus_exchange_create(comm, &with_table, 0, &exchange), PEERBUS_UNSUPPORTED,
                "relay is always");
          ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
          table rows{0, 1, 2, 3, 4, 5, 6};
          fails(peerbus_exchange_install_experts(exchange, rows.data(), rows.size(), nullptr, 0),
                PEERBUS_UNSUPPORTED, "expected an exchange that does not relay");
          const input in{peerbus_comm_rank(comm), 4, 2};
          const auto args = in.args();
          peerbus_received received{};
          received.struct_bytes = sizeof received;
          ok(peerbus_dispatch(exchange, &args, &received), "dispatch");
          fails(peerbus_exchange_count_rows(exchange, received.ticket, rows.data(), rows.size(),
                                            nullptr),
                PEERBUS_UNSUPPORTED, "relay");
          peerbus_exchange_destroy(&exchange);
        }) == 0);
}

}  // namespace c_replicas_test
