// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/mixed_row_path.hpp>
#include <peerbus/moe/plan/level_configs.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/bytes.hpp"
#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace distrust_test {

// A rank that distrusts its peers believes no number that one of them has written: it refuses wrong
// ones by name, and uses no memory that they can change after its check.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::loopback;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange_config;
using peerbus::moe::memory_map;
using peerbus::moe::verdict;
using peerbus::moe::wire_origin;
namespace moe = peerbus::moe;

/// The rank that lies.
constexpr std::size_t liar = 1;

/// The windows of all ranks, which are threads: for each rank its parts, in the order in which they
/// were made. Ranks make windows together.
class all_windows {
 public:
  void clear() { parts_.assign(most_ranks, {}); }
  void add(rank_id rank, std::span<std::byte> part) {
    const std::lock_guard guard{lock_};
    parts_[rank.index()].push_back(part);
  }
  /// Returns the part of `rank` in one of the latest windows; 1 is the last.
  std::span<std::byte> part(std::size_t rank, std::size_t from_last) {
    const std::lock_guard guard{lock_};
    return parts_[rank][parts_[rank].size() - from_last];
  }

 private:
  static constexpr std::size_t most_ranks = 8;
  std::mutex lock_;
  std::vector<std::vector<std::span<std::byte>>> parts_;
};
all_windows windows;

/// A lie that a rank tells once, just before it raises a signal: after its rows or counts have come
/// to their places, and before another rank reads them.
struct lie {
  const std::byte* window = nullptr;  ///< the part of this rank in the window of the signal
  std::size_t first_signal = 0;       ///< the signals before which it is told
  std::size_t signals = 0;
  std::uint64_t value = 0;
  std::function<void()> tell;
};
thread_local lie planned;

/// `Base` with ranks that lie.
template <peerbus::transport Base>
class lying : public peerbus::transport_decorator<Base> {
  using decorator = peerbus::transport_decorator<Base>;

 public:
  using typename decorator::window;
  explicit lying(peerbus::bootstrap& boot) : decorator{boot} {}

  [[nodiscard]] window make_window(peerbus::window_shape shape, peerbus::deadline until) {
    window made = this->inner().make_window(shape, until);
    windows.add(this->boot().rank(), this->inner().local(made));
    return made;
  }
  [[nodiscard]] errc signal(rank_id peer, const window& at, peerbus::signal_id id,
                            std::uint64_t value) noexcept {
    tell(at, id, value);
    return this->inner().signal(peer, at, id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& at,
                                 peerbus::signal_id id, std::uint64_t value) noexcept
    requires(decorator::refines.signal_each)
  {
    tell(at, id, value);
    return this->inner().signal_each(peers, at, id, value);
  }

 private:
  void tell(const window& at, peerbus::signal_id id, std::uint64_t value) noexcept {
    const std::size_t number = peerbus::index(id);
    if (!planned.tell || this->inner().local(at).data() != planned.window ||
        value != planned.value || number < planned.first_signal ||
        number >= planned.first_signal + planned.signals)
      return;
    static_cast<void>(this->inner().quiet());  // What was put has come to its place.
    std::exchange(planned.tell, {})();
  }
};

using direct = lying<loopback>;
using staged = lying<test::indirect<loopback>>;
using hosts = lying<test::lazy_hosts>;

/// A level of an exchange whose memory a lie changes.
struct level {
  exchange_config config;
  memory_map map;
  moe::block_geometry geometry;
  std::vector<std::size_t> ranks;  ///< their numbers in the whole group
  std::size_t window = 1;          ///< which of the latest
  bool hands_on = false;           ///< rows are of tokens of all ranks

  [[nodiscard]] std::size_t place_of(std::size_t rank) const {
    return static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
  }
};

/// A place where a liar writes something for a victim.
class scene {
 public:
  /// Made when dispatch `number` - 1 is combined, whose rows lie as those of the next.
  scene(const level& in, std::size_t victim, std::uint64_t number, bool has_board)
      : in_{&in},
        liar_{in.place_of(liar)},
        victim_{in.place_of(victim)},
        number_{number},
        part_{windows.part(victim, in.window)},
        board_{has_board ? windows.part(in.ranks[0], in.window) : part_} {
    const std::size_t home = in.hands_on ? liar : liar_;
    while (row_ < in.map.row_capacity && origin(row_)->rank != home) ++row_;
  }

  [[nodiscard]] const level& in() const { return *in_; }
  [[nodiscard]] std::size_t victim() const { return victim_; }
  [[nodiscard]] verdict* record() const { return at<verdict>(board_, message()); }
  /// Sets the liar's number of rows for a block of the victim.
  void set_count(std::size_t local_block, std::uint64_t count) const {
    const std::size_t first =
        in_->geometry.has_slots() ? 0 : in_->geometry.blocks.first(rank_id{victim_});
    std::memcpy(board_.data() + message() + in_->map.counts_at +
                    (first + local_block) * in_->map.count_bytes,
                &count, in_->map.count_bytes);
  }
  [[nodiscard]] std::size_t blocks() const { return in_->geometry.blocks.count(rank_id{victim_}); }
  /// The first row of the liar at the victim.
  [[nodiscard]] std::size_t row() const {
    test::expect(row_ < in_->map.row_capacity, "the liar to send the victim a row");
    return row_;
  }
  [[nodiscard]] wire_origin* origin(std::size_t row) const {
    return at<wire_origin>(part_, in_->map.origins + row * sizeof(wire_origin));
  }
  [[nodiscard]] std::int32_t* experts(std::size_t row) const {
    return at<std::int32_t>(part_, in_->map.experts + row * in_->map.slot_bytes);
  }

 private:
  template <class T>
  static T* at(std::span<std::byte> part, std::size_t offset) {
    return reinterpret_cast<T*>(part.data() + offset);
  }
  [[nodiscard]] std::size_t message() const {
    const std::size_t generation = number_ % (2 * in_->map.in_flight);
    return in_->map.counts + (generation * in_->ranks.size() + liar_) * in_->map.message_bytes;
  }

  const level* in_;
  std::size_t liar_;
  std::size_t victim_;
  std::size_t row_ = 0;
  std::uint64_t number_;
  std::span<std::byte> part_;
  std::span<std::byte> board_;
};

/// The signal before which a number is written.
enum class phase : std::uint8_t { counts, rows };

struct wrong_number {
  std::string name;
  phase when;
  std::function<void(const scene&)> write;
  std::string says;
};

/// Every number of a level that peers write, with values below, just above and far above its
/// bounds.
std::vector<wrong_number> wrong_numbers(const level& in) {
  const bool in_slots = in.geometry.has_slots();
  const phase with_counts = in_slots ? phase::rows : phase::counts;
  const auto text = [](const auto&... parts) { return test::detail::join(parts...); };
  std::vector<wrong_number> all;
  const std::size_t tokens = in.config.max_tokens;
  const std::uint64_t most_of_count =
      std::numeric_limits<std::uint64_t>::max() >> (64 - 8 * in.map.count_bytes);
  for (const std::uint64_t count : {std::uint64_t{tokens} + 1, most_of_count})
    all.push_back({text("count ", count), with_counts,
                   [=](const scene& at) { at.set_count(at.blocks() - 1, count); },
                   text(count, " rows for ")});
  if (!in.geometry.by_rank && in.geometry.blocks.count(rank_id{0}) > in.config.top_k)
    all.push_back({"sum of counts", with_counts,
                   [=](const scene& at) {
                     for (std::size_t b = 0; b < at.blocks(); ++b) at.set_count(b, tokens);
                   },
                   " rows for the experts of rank "});
  if (!in_slots)
    for (const std::uint64_t epoch : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3},
                                      std::numeric_limits<std::uint64_t>::max()})
      all.push_back({text("epoch ", epoch), with_counts,
                     [=](const scene& at) { at.record()->epoch = epoch; },
                     text("a signal of counts with those of dispatch ")});
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{in.map.note_bytes} + 1,
                                    std::numeric_limits<std::uint64_t>::max()})
    all.push_back({text("note of ", bytes), with_counts,
                   [=](const scene& at) {
                     at.record()->epoch = 2;
                     at.record()->brought = bytes;
                   },
                   "a note of "});
  const auto add_origin = [&](std::string name, auto&& change, std::string says) {
    all.push_back({std::move(name), phase::rows,
                   [=](const scene& at) { change(at, *at.origin(at.row())); }, std::move(says)});
  };
  for (const std::size_t rank : {std::size_t{8}, std::size_t{0xffff}})
    add_origin(
        text("home rank ", rank),
        [=](const scene&, wire_origin& origin) { origin.rank = static_cast<std::uint16_t>(rank); },
        text(" as one of rank ", rank));
  if (!in.hands_on)
    add_origin(
        "home rank of the victim",
        [](const scene& at, wire_origin& origin) {
          origin.rank = static_cast<std::uint16_t>(at.victim());
        },
        " as one of rank ");
  const std::size_t home_tokens = in.hands_on ? tokens / 2 : tokens;
  for (const std::size_t token : {home_tokens, std::size_t{0xffffffff}})
    add_origin(
        text("token ", token),
        [=](const scene&, wire_origin& origin) {
          origin.token = static_cast<std::uint32_t>(token);
        },
        text(" as token ", token));
  for (const std::size_t slot : {in.map.copies, std::size_t{0xffff}})
    add_origin(
        text("slot ", slot),
        [=](const scene&, wire_origin& origin) { origin.slot = static_cast<std::uint16_t>(slot); },
        text(" as slot ", slot));
  if (!in.geometry.by_rank) return all;
  const auto local =
      static_cast<std::int32_t>(moe::placement_of(in.config, in.ranks.size()).count(rank_id{0}));
  for (const std::int32_t expert : {-2, local, std::numeric_limits<std::int32_t>::min(),
                                    std::numeric_limits<std::int32_t>::max()})
    all.push_back({text("expert ", expert), phase::rows,
                   [=](const scene& at) { *at.experts(at.row()) = expert; },
                   text(" for local expert ", expert)});
  all.push_back({"an expert twice", phase::rows,
                 [=](const scene& at) { std::fill_n(at.experts(at.row()), in.config.top_k, 0); },
                 " twice for local expert 0"});
  return all;
}

test::scenario scenario_of(const exchange_config& config, std::size_t ranks) {
  test::scenario made{{ranks, config.experts, config.hidden, config.top_k}, {}};
  made.note_bytes = config.note_bytes;
  for (std::size_t r = 0; r < ranks; ++r)
    made.inputs.push_back(oracle::make_input(made.shape, r, 4, oracle::routes::uniform, 11));
  return made;
}

/// Dispatches, runs the experts and combines. Throws what the exchange throws.
template <class Exchange>
void do_round(Exchange& over, const test::scenario& from, rank_id rank) {
  const auto rows = test::dispatch(over, from, rank);
  test::run_experts(rows);
  std::vector<bf16> out(from.inputs[rank.index()].tokens.size());
  over.combine(rows, out);
}

/// One rank lies to `victims` in its second dispatch. The others distrust, and name it.
template <class Transport, class Layout, class LevelOf>
void check_lie(const exchange_config& config, std::size_t ranks, const Layout& layout,
               const std::vector<std::size_t>& victims, bool has_board, LevelOf&& level_of,
               const wrong_number& wrong) {
  INFO(Layout::name, ", ", ranks, " ranks, ", wrong.name);
  const test::scenario from = scenario_of(config, ranks);
  windows.clear();
  const int worst_status = test::threads_over<Transport>::run(
      ranks,
      [&](auto& comm) {
        exchange_config own = config;
#ifndef PEERBUS_TEST_TRUSTS_PEERS  // Defined by hand, to see what the lies do.
        own.distrust_peers = true;
#endif
        moe::exchange over{comm, own, int8_per_token{}, layout};
        do_round(over, from, comm.rank());
        const level in = level_of(over);
        std::vector<scene> scenes;
        std::string trouble;
        if (comm.rank().index() == liar) {
          for (const std::size_t victim : victims) scenes.emplace_back(in, victim, 2, has_board);
          planned = {.window = windows.part(liar, in.window).data(),
                     .first_signal = (wrong.when == phase::counts ? 0 : 1) * in.ranks.size(),
                     .signals = in.ranks.size(),
                     .value = 2,
                     .tell = [&] {
                       try {
                         for (const scene& at : scenes) wrong.write(at);
                       } catch (const test::failure& problem) {
                         trouble = problem.what();
                       }
                     }};
        }
        comm.barrier();
        try {
          do_round(over, from, comm.rank());
          test::fail("nothing was thrown; ", trouble);
        } catch (const peerbus::error& caught) {
          const std::string_view text = caught.what();
          const auto expect_said = [&](std::string_view part) {
            test::expect(text.find(part) != std::string_view::npos, "'", text, "' to say '", part,
                         "'");
          };
          if (caught.code() == errc::refused)
            expect_said("found that rank 1 sent ");
          else
            test::expect_code(caught.code(), errc::mismatch, text);
          test::expect(caught.code() == errc::refused || comm.rank().index() != liar,
                       "a liar that is told of its lie, not '", text, "'");
          expect_said("rank 1 sent ");
          expect_said(wrong.says);
        }
        test::expect(!planned.tell && trouble.empty(), "the lie to be told; ", trouble);
        static_cast<void>(
            comm.bus().boot().allgather({}, comm.default_deadline(), "the end of the test"));
      },
      {.timeout = std::chrono::seconds{15}});
  CHECK(worst_status == 0);
}

/// One level of all ranks, each with as many experts.
template <class Exchange, class Layout>
level whole_level(Exchange& over, const Layout& layout, std::size_t ranks) {
  std::vector<std::size_t> all(ranks);
  for (std::size_t r = 0; r < ranks; ++r) all[r] = r;
  return {over.config(), over.map(), layout.geometry(over.config(), ranks), std::move(all)};
}

/// Tells the lies whose names begin with `prefix`.
template <class Transport, class Layout>
void check_lies(const exchange_config& config, std::size_t ranks,
                const std::vector<std::size_t>& victims, const Layout& layout = {},
                std::string_view prefix = {}) {
  const bool has_board =
      ranks > 4 && std::same_as<Transport, direct> && !layout.geometry(config, ranks).has_slots();
  const level in{config,
                 moe::exchange<Transport, int8_per_token, Layout>::map_for(config, ranks, layout),
                 layout.geometry(config, ranks), std::vector<std::size_t>(ranks)};
  for (const wrong_number& wrong : wrong_numbers(in))
    if (wrong.name.starts_with(prefix))
      check_lie<Transport>(
          config, ranks, layout, victims, has_board,
          [&](auto& over) { return whole_level(over, layout, ranks); }, wrong);
}

/// The two levels of an exchange of 4 ranks on 2 hosts, from the place of the liar.
template <class Exchange, class Layout>
std::array<level, 2> relay_levels(Exchange& over, const Layout& layout) {
  const exchange_config& whole = over.config();
  const moe::detail::near_groups groups{
      {{rank_id{0}, rank_id{1}}, {rank_id{2}, rank_id{3}}}, 0, liar};
  const auto experts = moe::detail::experts_of_groups(moe::placement_of(whole, 4), groups);
  const std::size_t held = std::max(experts[0].held.size(), experts[1].held.size());
  const auto configs = moe::detail::configs_of_levels(
      whole, groups, experts[0],
      {2, held, moe::detail::copies_in_group(groups, whole.top_k, moe::layout_by_rank<Layout>)});
  const auto far_geometry = moe::rank_major{}.geometry(configs.far, 2);
  return {level{configs.far,
                {configs.far, far_geometry, 2, over.map().format,
                 moe::mixed_row_path<int8_per_token>::needs},
                far_geometry,
                {1, 3},
                2},
          level{configs.near, over.map(), layout.geometry(configs.near, 2), {0, 1}, 1, true}};
}

/// Tells the lies of the near level, and those of the far one whose names begin with `far_prefix`:
/// the far level has one layout under all near ones.
template <class Layout>
void check_relay_lies(const exchange_config& config, std::string_view far_prefix = {}) {
  INFO("weights at combine: ", config.weights_at_combine);
  const Layout layout{};
  test::pretended = {2, false};
  for (const std::size_t which : {0U, 1U}) {
    const auto level_of = [&](auto& over) { return relay_levels(over, layout)[which]; };
    std::vector<wrong_number> all;
    const int worst_status = test::threads_over<hosts>::run(4, [&](auto& comm) {
      moe::exchange over{comm, config, int8_per_token{}, layout};
      if (comm.rank().index() == liar) all = wrong_numbers(level_of(over));
    });
    CHECK(worst_status == 0);
    const std::size_t victim = which == 0 ? 3 : 0;
    const std::string_view prefix = which == 0 ? far_prefix : std::string_view{};
    for (const wrong_number& wrong : all)
      if (wrong.name.starts_with(prefix))
        check_lie<hosts>(config, 4, layout, {victim}, false, level_of, wrong);
  }
}

/// Fills what peers could still write after a rank has read it with nonsense.
void spoil(std::span<std::byte> bytes) { test::fill_bytes(bytes, std::byte{0xff}); }
void spoil_rows(const level& in, std::size_t rank, std::size_t set) {
  const auto rows = windows.part(rank, in.window).subspan(set * in.map.set_bytes);
  spoil(rows.subspan(in.map.origins, in.map.row_capacity * sizeof(wire_origin)));
  spoil(rows.subspan(in.map.experts, in.map.row_capacity * in.map.slot_bytes));
}
void spoil_counts(const level& in, std::size_t rank) {
  const auto part = windows.part(rank, in.window);
  for (std::size_t m = 0; m < 2 * in.map.in_flight * in.ranks.size(); ++m)
    spoil(part.subspan(in.map.counts + m * in.map.message_bytes + in.map.counts_at,
                       in.map.note_at - in.map.counts_at));
}

/// Returns the outputs of all ranks. If `spoils`, each rank overwrites the counts in its window
/// once its rows have left, and the origins and expert ids once rows have arrived.
template <class Transport, class Layout, class LevelsOf>
std::vector<std::vector<bf16>> outputs_of(exchange_config config, std::size_t ranks,
                                          const Layout& layout, bool distrusts, bool spoils,
                                          LevelsOf&& levels_of) {
  config.distrust_peers = distrusts;
  const test::scenario from = scenario_of(config, ranks);
  windows.clear();
  std::vector<std::vector<bf16>> outputs(ranks);
  const int worst_status = test::threads_over<Transport>::run(ranks, [&](auto& comm) {
    const std::size_t rank = comm.rank().index();
    moe::exchange over{comm, config, int8_per_token{}, layout};
    const auto levels = levels_of(over, rank);
    const level& last = levels.back();
    if (spoils && !last.geometry.has_slots())
      planned = {.window = windows.part(rank, last.window).data(),
                 .first_signal = (config.in_flight + 1 % config.in_flight) * last.ranks.size(),
                 .signals = last.ranks.size(),
                 .value = 1,
                 .tell = [&] { spoil_counts(last, rank); }};
    const auto rows = test::dispatch(over, from, comm.rank());
    planned = {};
    comm.barrier();
    if (spoils)
      for (const level& in : levels) spoil_rows(in, rank, 1 % config.in_flight);
    comm.barrier();
    test::run_experts(rows);
    outputs[rank].resize(from.inputs[rank].tokens.size());
    over.combine(rows, outputs[rank]);
  });
  CHECK(worst_status == 0);
  return outputs;
}

template <class Transport, class Layout, class LevelsOf>
void check_copies(const exchange_config& config, std::size_t ranks, const Layout& layout,
                  LevelsOf&& levels_of) {
  INFO(Layout::name);
  const auto outputs = outputs_of<Transport>(config, ranks, layout, false, false, levels_of);
  CHECK(outputs_of<Transport>(config, ranks, layout, true, false, levels_of) == outputs);
  CHECK(outputs_of<Transport>(config, ranks, layout, true, true, levels_of) == outputs);
}
template <class Transport, class Layout>
void check_copies(const exchange_config& config, const Layout& layout = {}) {
  check_copies<Transport>(config, 3, layout, [&](auto& over, std::size_t) {
    return std::array{whole_level(over, layout, 3)};
  });
}

/// 9 experts, 3 of each rank. Tokens have 2.
constexpr exchange_config config{
    .experts = 9, .hidden = 16, .top_k = 2, .max_tokens = 4, .note_bytes = 8};
/// An expert of each rank.
constexpr exchange_config few_experts{.experts = 3,
                                      .hidden = 16,
                                      .top_k = 2,
                                      .max_tokens = 4,
                                      .outputs = moe::outputs_at::home,
                                      .note_bytes = 8};

}  // namespace

#define PEERBUS_TEST_TRANSPORTS direct, staged

TEST_CASE_TEMPLATE("distrust: layouts by expert", Transport, PEERBUS_TEST_TRANSPORTS) {
  check_lies<Transport, moe::compact>(config, 3, {0, 2});
  check_lies<Transport, moe::compact>(few_experts, 3, {0}, {.alignment = 4, .zero_gaps = true});
  check_lies<Transport, moe::padded>(config, 3, {0});
  check_lies<Transport, moe::expert_slots>(config, 3, {0, 2});
  check_lies<Transport, moe::expert_slots>(few_experts, 3, {2});
}

TEST_CASE_TEMPLATE("distrust: layouts by rank", Transport, PEERBUS_TEST_TRANSPORTS) {
  check_lies<Transport, moe::rank_major>(config, 3, {0, 2});
  check_lies<Transport, moe::rank_major>(few_experts, 3, {0});
  check_lies<Transport, moe::slots>(config, 3, {0});
  check_lies<Transport, moe::slots>(few_experts, 3, {0, 2});
}

TEST_CASE("distrust: both protocols of an automatic layout") {
  for (const auto protocol :
       {moe::dispatch_protocol::counts_first, moe::dispatch_protocol::one_phase}) {
    exchange_config chosen = config;
    chosen.protocol = protocol;
    check_lies<direct, moe::automatic>(chosen, 3, {0});
    check_lies<direct, moe::automatic_by_rank>(chosen, 3, {0});
  }
}

TEST_CASE("distrust: counts on a board that all ranks share") {
  exchange_config of_five = config;
  of_five.experts = 15;
  of_five.top_k = 6;
  check_lies<direct, moe::compact>(of_five, 5, {0});
}

TEST_CASE("distrust: levels of an exchange that relays, also where weights are awaited") {
  exchange_config relayed = config;
  relayed.relay = moe::relay::always;
  for (const std::size_t experts : {4U, 8U}) {
    relayed.experts = experts;
    check_relay_lies<moe::rank_major>(relayed, "count ");
    check_relay_lies<moe::slots>(relayed, "count ");
    relayed.weights_at_combine = experts == 8;
    check_relay_lies<moe::compact>(relayed);
  }
}

TEST_CASE("distrust: rows for places without an expert") {
  constexpr std::uint32_t none = moe::vacant;
  // Of ranks 0 to 3: 1, 2, 3 and 2.
  constexpr std::array<std::uint32_t, 8> names{0, 1, none, 2, none, 3, 0, none};
  constexpr std::array<std::uint32_t, 4> of_rank{1, 2, 3, 2};
  exchange_config relayed = config;
  relayed.experts = 4;
  relayed.physical_to_logical = names;
  relayed.experts_of_rank = of_rank;
  const auto whole = [](auto& over) { return whole_level(over, moe::compact{}, 4); };
  wrong_number alone{"rows", phase::counts, [](const scene& at) { at.set_count(1, 1); },
                     "rank 1 sent rows for physical expert 4, which is vacant"};
  check_lie<direct>(relayed, 4, moe::compact{}, {2}, false, whole, alone);
  alone.write = [](const scene& at) { at.set_count(1, 0xff); };
  check_lie<direct>(relayed, 4, moe::compact{}, {2}, false, whole, alone);

  relayed.relay = moe::relay::always;
  test::pretended = {2, false};
  const auto tell = [&](std::int32_t place, std::string says) {
    check_lie<hosts>(relayed, 4, moe::compact{}, {3}, false,
                     [](auto& over) { return relay_levels(over, moe::compact{})[0]; },
                     {"an expert", phase::rows,
                      [=](const scene& at) { at.experts(at.row())[0] = place; }, std::move(says)});
  };
  // The group of rank 3 holds the experts from 3 on, at places 5 to 9.
  tell(1, "rank 1 sent rows for physical expert 4, which is vacant");
  tell(4, "rank 1 sent rows for physical expert 7, which is vacant");
  // It holds those from 5 on, and only three of its places are of an expert.
  constexpr std::array<std::uint32_t, 4> fewer_of_rank{2, 3, 1, 2};
  relayed.experts_of_rank = fewer_of_rank;
  tell(4, "rank 1 sent rows for a place that no rank has");
}

TEST_CASE("distrust: all ranks or none") {
  CHECK(test::threads_over<direct>::run(2, [](auto& comm) {
          exchange_config own = config;
          own.distrust_peers = comm.rank().index() == 0;
          test::expect_error(errc::mismatch, {"distrust_peers is 1 on rank 0 but 0 on rank 1"},
                             [&] { moe::exchange over{comm, own, int8_per_token{}}; });
        }) == 0);
}

TEST_CASE_TEMPLATE("distrust: what is checked is a copy", Transport, PEERBUS_TEST_TRANSPORTS) {
  for (exchange_config of : {config, few_experts}) {
    of.in_flight = 2;
    check_copies<Transport, moe::compact>(of);
    check_copies<Transport, moe::padded>(of);
    check_copies<Transport, moe::expert_slots>(of);
    check_copies<Transport, moe::rank_major>(of);
    check_copies<Transport, moe::slots>(of);
  }
}

TEST_CASE("distrust: what is checked on both levels of a relay is a copy") {
  test::pretended = {2, false};
  exchange_config relayed = config;
  relayed.experts = 8;
  relayed.relay = moe::relay::always;
  check_copies<hosts>(relayed, 4, moe::slots{}, [](auto& over, std::size_t rank) {
    auto levels = relay_levels(over, moe::slots{});
    levels[0].ranks = {rank % 2, rank % 2 + 2};
    levels[1].ranks = {rank / 2 * 2, rank / 2 * 2 + 1};
    return levels;
  });
}

#undef PEERBUS_TEST_TRANSPORTS

TEST_CASE("distrust: counts of two and four bytes") {
  for (const std::size_t tokens : {300U, 70'000U}) {
    exchange_config wide = few_experts;
    wide.max_tokens = tokens;
    check_lies<direct, moe::compact>(wide, 3, {0}, {}, "count ");
  }
}

}  // namespace distrust_test
