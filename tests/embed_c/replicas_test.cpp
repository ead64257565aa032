// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

#include "embed_c/exchange_case.hpp"
#include "embed_c/ranks_of_c.hpp"
#include "support/ranks.hpp"

namespace c_replicas_test {

// Experts with several places for C: the choice among them, the rows of each place, other places
// between two batches, and weights that move there.

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

peerbus_exchange_config config_with(std::int32_t layout, const peerbus_replica_choice& choice,
                                    std::int32_t codec = PEERBUS_BF16) {
  auto config = config_of(codec, layout);
  config.physical_experts = placed.size();
  config.physical_to_logical = placed.data();
  config.experts_of_rank = places_of_rank.data();
  config.replicas = &choice;
  return config;
}

/// An exchange of bf16 tokens, and batches that work.
class subject {
 public:
  subject(peerbus_comm* comm, const peerbus_exchange_config& config)
      : rank_{peerbus_comm_rank(comm)}, in_{rank_, ranks, 2}, codec_{config.codec} {
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
    const auto& codec = embed_c::all_codecs()[static_cast<std::size_t>(codec_)];
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
  std::int32_t codec_;
};

/// The weights of the experts of an exchange, whose bytes tell the expert, the tensor and the
/// place.
class mover {
 public:
  static constexpr std::array<std::uint64_t, 3> sizes{1000, 1, 4096};

  mover(peerbus_comm* comm, peerbus_exchange* exchange)
      : mine_{places_of_rank[peerbus_comm_rank(comm)]} {
    for (std::uint64_t r = 0; r < peerbus_comm_rank(comm); ++r) first_ += places_of_rank[r];
    const auto shape = shape_of();
    ok(peerbus_expert_weights_create(comm, exchange, &shape, 0, &weights), "create");
    visit([](std::byte& byte, std::byte wanted) { byte = wanted; });
  }
  mover(const mover&) = delete;
  mover& operator=(const mover&) = delete;
  ~mover() { peerbus_expert_weights_destroy(&weights); }

  static peerbus_expert_tensors shape_of() {
    return {sizeof(peerbus_expert_tensors), 0, sizes.size(), sizes.data(), 0, 300};
  }
  table experts() {
    table now(placed.size());
    ok(peerbus_expert_weights_experts(weights, now.data(), now.size()), "experts");
    return now;
  }
  void check_tensors() {
    visit([](const std::byte& byte, std::byte wanted) {
      expect_equal(static_cast<int>(byte), static_cast<int>(wanted), "a byte of a tensor");
    });
  }
  /// Returns the experts of this rank by a table.
  [[nodiscard]] table held(const table& logical) const {
    const auto begin = logical.begin() + static_cast<std::ptrdiff_t>(first_);
    table experts{begin, begin + static_cast<std::ptrdiff_t>(mine_)};
    std::ranges::sort(experts);
    return experts;
  }
  std::uint64_t begin(const table& wanted) {
    std::uint64_t rounds = 99;
    ok(peerbus_expert_weights_begin(weights, wanted.data(), wanted.size(), 0, &rounds), "begin");
    return rounds;
  }
  bool advance(std::uint64_t bytes) {
    std::int32_t all_sent = 99;
    ok(peerbus_expert_weights_advance(weights, bytes, &all_sent), "advance");
    return all_sent == 1;
  }
  bool commit(const std::vector<peerbus_exchange*>& exchanges, const peerbus_replica_choice* by) {
    std::int32_t is_over = 99;
    ok(peerbus_expert_weights_commit(weights, exchanges.data(), exchanges.size(), by, &is_over),
       "commit");
    expect_equal(peerbus_expert_weights_is_moving(weights), 1 - is_over, "whether experts move");
    return is_over == 1;
  }

  peerbus_expert_weights* weights = nullptr;

 private:
  template <class Visit>
  void visit(Visit visit) {
    const table now = experts();
    for (std::uint64_t e = 0; e < mine_; ++e) {
      const std::uint32_t expert = now[first_ + e];
      if (expert == PEERBUS_VACANT) continue;
      for (std::uint64_t t = 0; t < sizes.size(); ++t) {
        void* data = nullptr;
        ok(peerbus_expert_weights_tensor(weights, e, t, &data), "tensor");
        const std::span bytes{static_cast<std::byte*>(data), sizes[t]};
        for (std::size_t i = 0; i < bytes.size(); ++i)
          visit(bytes[i], static_cast<std::byte>((expert + 1) * 31 + t * 7 + i * 13 + i / 64));
      }
    }
  }

  std::uint64_t mine_, first_ = 0;
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

TEST_CASE("a plan for the places of an exchange of C changes as many as it may") {
  CHECK(embed_c::run(ranks, kind::threads, [](peerbus_comm* comm) {
          subject s{comm, config_with(PEERBUS_COMPACT, choice_of(PEERBUS_REPLICA_ROUND_ROBIN))};
          std::array<double, 7> loads{1, 1, 1, 1, 90, 1, 1};
          table planned(placed.size(), 99);
          std::uint64_t moves = 99;
          const auto plan = [&](double least_gain, std::uint64_t fixed, std::uint64_t places) {
            return peerbus_exchange_plan_experts(s.exchange, loads.data(), least_gain, 1, fixed,
                                                 planned.data(), places, &moves);
          };
          ok(plan(0.01, 0, placed.size()), "plan_experts");
          expect_equal(moves, std::uint64_t{1}, "moves");
          expect_equal(std::ranges::count(planned, 4U), 2, "places of the busiest expert");
          std::size_t changed = 0;
          for (std::size_t p = 0; p < placed.size(); ++p)
            changed += planned[p] != placed[p] ? 1 : 0;
          expect_equal(changed, std::size_t{1}, "places that get another expert");
          ok(s.install(planned), "install_experts");
          s.check_places(planned);
          ok(s.install(placed), "install_experts");
          ok(plan(0.01, 4, placed.size()), "plan_experts");
          expect_equal(moves, std::uint64_t{0}, "moves from fixed places");
          expect(planned == placed, "the places as they are");
          fails(plan(-1, 0, placed.size()), PEERBUS_INVALID_ARGUMENT, "least_gain is -1");
          fails(plan(0, 0, 3), PEERBUS_INVALID_ARGUMENT,
                "physical_to_logical has 3 entries, expected physical experts, 11");
          loads[2] = -1;
          fails(plan(0, 0, placed.size()), PEERBUS_INVALID_ARGUMENT, "the load of expert 2 is -1");
          fails(peerbus_exchange_plan_experts(s.exchange, nullptr, 0, 0, 0, planned.data(),
                                              placed.size(), nullptr),
                PEERBUS_INVALID_ARGUMENT, "loads is NULL");
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

TEST_CASE("weights of C move while two exchanges of other codecs and layouts go on") {
  for (const kind how : {kind::threads, kind::processes, kind::hosts})
    CHECK(embed_c::run(ranks, how, [](peerbus_comm* comm) {
            const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
            subject first{comm, config_with(PEERBUS_COMPACT, in_turns)};
            subject second{comm,
                           config_with(PEERBUS_EXPERT_SLOTS, in_turns, PEERBUS_INT8_PER_TOKEN)};
            mover m{comm, first.exchange};
            for (const table& wanted : {later, placed}) {
              const std::uint64_t rounds = m.begin(wanted);
              expect(rounds > 1, "more rounds than one, as a rank has one spare place");
              std::uint64_t ended = 0;
              for (bool is_over = false; !is_over;) {
                // Ranks send at a pace of their own.
                static_cast<void>(m.advance(700 * (1 + peerbus_comm_rank(comm))));
                const table before = m.experts();
                first.check_places(before);
                second.check_places(before);
                m.check_tensors();
                is_over = m.commit({first.exchange, second.exchange}, &in_turns);
                if (m.experts() != before) ++ended;
                expect_equal(is_over, ended == rounds, "whether all rounds have ended");
              }
              m.check_tensors();
              expect(m.held(m.experts()) == m.held(wanted), "the experts that were wanted");
            }
            first.check_places(m.experts());
            // The choice that was installed with the last map.
            const auto received = first.dispatch();
            table rows(placed.size());
            ok(peerbus_exchange_count_rows(first.exchange, received.ticket, rows.data(),
                                           rows.size(), nullptr),
               "count_rows");
            expect(rows == rows_in_turns(m.experts(), ranks), "the rows of places");
            first.combine(received);
          }) == 0);
}

TEST_CASE("moves of C that cannot be are refused on all ranks, and the old map stands") {
  CHECK(embed_c::run(ranks, kind::threads, [](peerbus_comm* comm) {
          constexpr auto invalid = PEERBUS_INVALID_ARGUMENT;
          const bool is_odd_one = peerbus_comm_rank(comm) == 1;
          const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
          subject s{comm, config_with(PEERBUS_COMPACT, in_turns)};
          peerbus_expert_weights* none = nullptr;
          const auto refused = [&](peerbus_code code, std::string_view says, auto change) {
            auto shape = mover::shape_of();
            if (is_odd_one) change(shape);
            fails(peerbus_expert_weights_create(comm, s.exchange, &shape, 0, &none), code, says);
            expect(none == nullptr, "no weights");
          };
          refused(invalid, "0 tensors", [](auto& shape) { shape.tensors = 0; });
          refused(invalid, is_odd_one ? "tensors.bytes is NULL" : "rank 1",
                  [](auto& shape) { shape.bytes = nullptr; });
          refused(invalid, is_odd_one ? "tensors.struct_bytes is 8" : "rank 1",
                  [](auto& shape) { shape.struct_bytes = 8; });
          refused(PEERBUS_MISMATCH, "spare is 1 on rank 0 but 2 on rank 1",
                  [](auto& shape) { shape.spare = 2; });

          mover m{comm, s.exchange};
          void* data = nullptr;
          fails(peerbus_expert_weights_tensor(m.weights, 4, 0, &data), invalid,
                "tensor 0 of local expert 4 given, expected one of 3 tensors of one of ");
          fails(peerbus_expert_weights_tensor(m.weights, 0, 3, &data), invalid, "tensor 3");
          fails(peerbus_expert_weights_tensor(m.weights, 0, 0, nullptr), invalid, "data is NULL");
          table few(3);
          fails(peerbus_expert_weights_experts(m.weights, few.data(), few.size()), invalid,
                "has 3 entries, expected physical experts, 11");
          const auto begins = [&](const table& wanted) {
            return peerbus_expert_weights_begin(m.weights, wanted.data(), wanted.size(), 0,
                                                nullptr);
          };
          table lacking = later;
          lacking[1] = PEERBUS_VACANT;
          fails(begins(is_odd_one ? lacking : later), invalid, "lacks expert 3");
          fails(begins(is_odd_one ? placed : later), PEERBUS_MISMATCH, "physical_to_logical[");
          fails(peerbus_expert_weights_begin(m.weights, is_odd_one ? nullptr : later.data(),
                                             later.size(), 0, nullptr),
                invalid, "physical_to_logical has 0 entries");
          expect_equal(peerbus_expert_weights_is_moving(m.weights), 0, "nothing moves");

          // Moves that are given up half way.
          const std::uint64_t rounds = m.begin(later);
          fails(begins(later), invalid, "moves are under way");
          if (!is_odd_one) static_cast<void>(m.advance(700));
          ok(peerbus_expert_weights_abandon(m.weights, 0), "abandon");
          expect_equal(peerbus_expert_weights_is_moving(m.weights), 0, "nothing moves");
          expect(m.experts() == placed, "the old map");
          s.check_places(placed);
          m.check_tensors();

          expect_equal(m.begin(later), rounds, "rounds");
          while (!m.advance(1 << 20)) continue;
          ok(peerbus_comm_barrier(comm, 0), "barrier");
          fails(peerbus_expert_weights_commit(m.weights, nullptr, 1, nullptr, nullptr), invalid,
                "count is 0, expected an exchange");
          peerbus_exchange* destroyed = nullptr;
          fails(peerbus_expert_weights_commit(m.weights, &destroyed, 1, nullptr, nullptr), invalid,
                "the exchange is NULL");
          auto bad = in_turns;
          bad.struct_bytes = 8;
          fails(peerbus_expert_weights_commit(m.weights, &s.exchange, 1,
                                              is_odd_one ? &bad : &in_turns, nullptr),
                invalid, is_odd_one ? "replicas.struct_bytes is 8" : "rank 1");
          const auto received = s.dispatch();
          fails(peerbus_expert_weights_commit(m.weights, &s.exchange, 1, &in_turns, nullptr),
                invalid, "expected all batches to be combined");
          s.combine(received);
          expect(m.experts() == placed, "the old map");
          s.check_places(placed);
          m.check_tensors();
          while (!m.commit({s.exchange}, nullptr)) static_cast<void>(m.advance(1 << 20));
          s.check_places(m.experts());
          m.check_tensors();
          expect_equal(m.begin(m.experts()), std::uint64_t{0}, "rounds to where all are");
          expect_equal(peerbus_expert_weights_is_moving(nullptr), 0, "nothing");
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

TEST_CASE("hosts that relay have replicas too") {
  CHECK(
      embed_c::run(4, kind::hosts, [](peerbus_comm* comm) {
        // All are at least where they are without a table, to where this choice sends rows.
        const table places{0, 1, 5, 2, 3, 0, 4, 5, 1, 6, PEERBUS_VACANT, 2};
        const table as_without{0, 1, 3, 4, 6, 7, 9};
        auto fixed = choice_of(PEERBUS_REPLICA_FIXED);
        fixed.chosen = as_without.data();
        auto config = config_of(PEERBUS_BF16, PEERBUS_COMPACT);
        config.relay = PEERBUS_RELAY_ALWAYS;
        config.physical_experts = places.size();
        config.physical_to_logical = places.data();
        config.replicas = &fixed;
        embed_c::check_round(comm, config, embed_c::all_codecs()[PEERBUS_BF16], false);
        peerbus_exchange* exchange = nullptr;
        ok(peerbus_exchange_create(comm, &config, 0, &exchange), "create");
        const table others{6, 5, 4, 3, 2, 1, 0, PEERBUS_VACANT, 6, 5, 4, 3};
        const auto in_turns = choice_of(PEERBUS_REPLICA_ROUND_ROBIN);
        ok(peerbus_exchange_install_experts(exchange, others.data(), others.size(), &in_turns, 0),
           "install_experts");
        const std::uint64_t rank = peerbus_comm_rank(comm);
        const input in{rank, 4, 2};
        const auto args = in.args();
        peerbus_received received{};
        received.struct_bytes = sizeof received;
        ok(peerbus_dispatch(exchange, &args, &received), "dispatch");
        for (std::size_t e = 0; e < received.experts; ++e)
          expect_equal(received.expert_ids[e], others[3 * rank + e], "the expert of place ", e);
        table rows(others.size(), 99);
        std::int32_t said = 99;
        ok(peerbus_exchange_count_rows(exchange, received.ticket, rows.data(), rows.size(), &said),
           "count_rows");
        expect_equal(said, 0, "whether all ranks' rows are known");
        for (std::size_t place = 0; place < rows.size(); ++place)
          if (place / 3 != rank) expect_equal(rows[place], 0U, "rows of another rank's place");
        expect_equal(std::accumulate(rows.begin(), rows.end(), std::uint64_t{}), received.rows,
                     "the rows of this rank's places");
        peerbus_exchange_destroy(&exchange);
      }) == 0);
}

}  // namespace c_replicas_test
