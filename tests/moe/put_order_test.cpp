// SPDX-License-Identifier: MIT
// ctest: tsan
//
// How many puts an exchange makes where it cannot store into its peers' memory, and in which order.
// A transport may join puts whose destinations continue each other; these tests join them too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace put_order_test {

namespace {

using peerbus::rank_id;
using peerbus::codec::int8_per_token;

/// A transport that keeps a list of what it is asked to do.
class listing : public test::indirect<peerbus::loopback> {
  using base = test::indirect<peerbus::loopback>;

 public:
  struct request {
    std::size_t peer;
    std::size_t offset;
    std::size_t bytes;
  };
  std::vector<request> puts;
  std::vector<std::size_t> signals;  ///< their peers
  std::size_t gets = 0;
  std::size_t flushes = 0;

  explicit listing(peerbus::bootstrap& boot) : base{boot} {}

  [[nodiscard]] peerbus::errc put(rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    puts.push_back({peer.index(), offset, source.size()});
    return base::put(peer, at, offset, source);
  }
  [[nodiscard]] peerbus::errc signal(rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    signals.push_back(peer.index());
    return base::signal(peer, at, id, value);
  }
  [[nodiscard]] peerbus::errc get(rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    ++gets;
    return base::get(peer, at, offset, target);
  }
  [[nodiscard]] peerbus::errc flush(rank_id peer) noexcept {
    ++flushes;
    return base::flush(peer);
  }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    ++flushes;
    return base::quiet();
  }
};
static_assert(peerbus::transport<listing>);

/// The puts to one array of a batch set: how many, and how many if those are joined that continue
/// the put before to the same peer.
struct tally {
  std::size_t puts = 0;
  std::size_t joined = 0;
};

class tallies {
 public:
  /// `arrays` are the offsets at which arrays begin, in ascending order.
  tallies(const std::vector<listing::request>& puts, std::vector<std::size_t> arrays) {
    std::map<std::size_t, listing::request> latest;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> reached;
    for (const listing::request& one : puts) {
      const std::size_t array = *std::prev(std::ranges::upper_bound(arrays, one.offset));
      tally& here = of_[array];
      ++here.puts;
      const auto before = latest.find(one.peer);
      const bool continues =
          before != latest.end() && before->second.offset + before->second.bytes == one.offset;
      here.joined += continues ? 0 : 1;
      latest[one.peer] = one;
      // Each array of a peer is written from its beginning to its end.
      auto& end = reached[{one.peer, array}];
      test::expect(one.offset >= end, "puts to rank ", one.peer, " in ascending order");
      end = one.offset + one.bytes;
    }
  }
  tally operator[](std::size_t array) { return of_[array]; }

 private:
  std::map<std::size_t, tally> of_;
};

template <class Layout>
void check_puts(std::size_t ranks, Layout layout) {
  CAPTURE(ranks);
  CAPTURE(Layout::name);
  const int worst_status = test::threads_over<listing>::run(ranks, [layout](auto& comm) {
    const peerbus::moe::exchange_config config{
        .experts = 16, .hidden = 64, .top_k = 4, .max_tokens = 32, .attachments = {16, 300}};
    peerbus::moe::exchange moe{comm, config, int8_per_token{}, layout};
    const oracle::shape shape{comm.size(), config.experts, config.hidden, config.top_k};
    const std::size_t me = comm.rank().index();
    listing& bus = comm.bus();
    const auto& map = moe.map();
    const std::vector<std::byte> attached(config.max_tokens * 300);
    for (std::uint64_t round = 0; round < 4; ++round) {
      const auto mine = oracle::make_input(shape, me, config.max_tokens,
                                           static_cast<oracle::routes>(round % 3), round);
      // Blocks of peers that get rows from here, and these rows.
      std::set<std::size_t> blocks;
      std::set<std::pair<std::size_t, std::size_t>> copies;
      constexpr bool by_rank = std::is_same_v<Layout, peerbus::moe::rank_major>;
      const auto owners = oracle::owners(shape);
      for (std::size_t slot = 0; slot < mine.experts.size(); ++slot) {
        if (mine.experts[slot] == -1) continue;
        const auto expert = static_cast<std::size_t>(mine.experts[slot]);
        if (owners[expert] == me) continue;
        blocks.insert(by_rank ? owners[expert] : expert);
        copies.insert({slot / config.top_k, by_rank ? owners[expert] : expert});
      }

      bus.puts.clear();
      bus.gets = bus.flushes = 0;
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights},
                                    {.attachments = {std::span{attached}.first(mine.count * 16),
                                                     std::span{attached}.first(mine.count * 300)}});
      {
        tallies sent{bus.puts,
                     {map.counts, map.rows, map.scales, map.origins, map.experts, map.weights,
                      map.attachments[0], map.attachments[1], map.outputs}};
        const auto expect_few = [&](std::size_t array, std::size_t puts, auto what) {
          test::expect_equal(sent[array].puts, puts, "puts of ", what);
          test::expect(sent[array].joined <= blocks.size(), sent[array].joined, " runs of ", what,
                       ", at most one for each of ", blocks.size(), " blocks");
        };
        test::expect_equal(sent[map.counts].puts, comm.size() - 1, "count messages");
        expect_few(map.rows, copies.size(), "rows");
        expect_few(map.attachments[1], copies.size(), "the large attachment");
        // What is small is packed: as many puts as there are runs of rows.
        const std::size_t runs = sent[map.rows].joined;
        expect_few(map.scales, runs, "scales");
        expect_few(map.origins, runs, "origins");
        expect_few(map.attachments[0], runs, "the small attachment");
        if (by_rank) {
          expect_few(map.experts, runs, "expert ids");
          expect_few(map.weights, runs, "weights");
        }
        test::expect_equal(sent[map.outputs].puts, 0U, "puts elsewhere");
      }

      test::run_experts(got);
      bus.puts.clear();
      // The slots at other ranks that outputs go home to.
      std::set<std::pair<std::size_t, std::size_t>> slots;
      const auto add = [&](const auto& rows) {
        for (std::size_t i = 0; i < rows.count(); ++i)
          if (const auto from = rows.origin(i); from.rank != comm.rank())
            slots.insert({from.rank.index(), from.token * map.copies + from.slot});
      };
      if constexpr (by_rank)
        add(got);
      else
        for (const auto& expert : got.experts()) add(expert);
      std::size_t runs_home = 0;
      for (const auto& [home, slot] : slots)
        runs_home += slot == 0 || !slots.contains({home, slot - 1}) ? 1 : 0;
      std::vector<peerbus::bf16> out(mine.tokens.size());
      moe.combine(got, out);
      // One put for each output that goes home, none for those that are at home.
      tallies home{bus.puts, {0, map.staged.returned}};
      test::expect_equal(home[map.staged.returned].puts, slots.size(), "puts of outputs");
      test::expect_equal(home[map.staged.returned].joined, runs_home, "runs of outputs");
      test::expect_equal(bus.puts.size(), slots.size(), "puts of combine");
      for (const auto& one : bus.puts) {
        test::expect_equal(one.bytes, map.output_bytes(), "bytes of an output");
        test::expect(one.peer != me && one.offset >= map.staged.returned &&
                         one.offset < map.sets + map.set_bytes,
                     "a slot at another rank");
      }
      test::expect_equal(bus.gets, 0U, "gets");
      test::expect_equal(bus.flushes, 0U, "flushes");
    }
  });
  CHECK(worst_status == 0);
}

/// Ranks that only have tokens, and ranks that only have experts: each kind has no bytes for its
/// own.
template <class Layout>
void check_apart(Layout layout) {
  constexpr std::size_t senders = 3, ranks = 5;
  const int worst_status = test::threads_over<listing>::run(ranks, [layout](auto& comm) {
    const std::vector<std::uint32_t> experts_of_rank{0, 0, 0, 3, 3};
    peerbus::moe::exchange_config config{
        .experts = 6, .hidden = 64, .top_k = 2, .max_tokens = 8, .in_flight = 2};
    config.experts_of_rank = experts_of_rank;
    peerbus::moe::exchange moe{comm, config, int8_per_token{}, layout};
    const oracle::shape shape{comm.size(), config.experts, config.hidden, config.top_k};
    const bool sends = comm.rank().index() < senders;
    listing& bus = comm.bus();
    bus.puts.clear();
    bus.signals.clear();
    constexpr std::ptrdiff_t batches = 5;
    for (std::uint64_t round = 0; round < batches; ++round) {
      const auto mine =
          oracle::make_input(shape, comm.rank().index(), sends ? config.max_tokens - round : 0,
                             oracle::routes::uniform, round);
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
      test::run_experts(got);
      std::vector<peerbus::bf16> out(mine.tokens.size());
      moe.combine(got, out);
    }
    for (const auto& one : bus.puts)
      test::expect((one.peer < senders) != sends, "no put to rank ", one.peer);
    // By a signal a phase each learns that none refuses.
    for (const peerbus::rank_id peer : comm.ranks())
      if (peer != comm.rank() && (peer.index() < senders) == sends)
        test::expect_equal(std::ranges::count(bus.signals, peer.index()), 2 * batches,
                           "signals to rank ", peer.index());
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("ranks without experts send each other no bytes, nor do ranks without tokens") {
  check_apart(peerbus::moe::slots{});
}

TEST_CASE("puts are few, follow each other, and wait for nobody") {
  for (const std::size_t ranks : {1U, 2U, 4U, 5U}) {
    check_puts(ranks, peerbus::moe::compact{});
    check_puts(ranks, peerbus::moe::compact{.alignment = 8});
    check_puts(ranks, peerbus::moe::padded{});
    check_puts(ranks, peerbus::moe::rank_major{});
  }
}

}  // namespace put_order_test
