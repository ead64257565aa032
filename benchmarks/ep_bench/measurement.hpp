// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/stores.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

#include "ep_bench/balance.hpp"
#include "ep_bench/check.hpp"
#include "ep_bench/core_use.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/lane_pool.hpp"
#include "ep_bench/measured_exchange.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/outcome.hpp"
#include "ep_bench/payload.hpp"
#include "ep_bench/plain_copy.hpp"
#include "ep_bench/plain_encoding.hpp"
#include "ep_bench/plain_floor.hpp"
#include "ep_bench/plain_puts.hpp"
#include "ep_bench/plane_tally.hpp"
#include "ep_bench/progress.hpp"
#include "ep_bench/signal_floor.hpp"
#include "ep_bench/surroundings.hpp"
#include "support/clock.hpp"
#include "support/findings.hpp"
#include "support/pages.hpp"
#include "support/samples.hpp"
#include "support/timed.hpp"

namespace ep_bench {

/// One rank's part of a run: check, warm up, time, check again.
///
/// An iteration is the operations and then what the limit is made of, so that drift of the machine
/// meets all alike. All run in the same `surroundings`: their sources have just been read, and a
/// barrier lets all ranks start together.
template <class Transport>
class measurement {
 public:
  /// `crew`: the lanes of this rank. `cores`: how many there are for all ranks together.
  measurement(peerbus::communicator<Transport>& comm, const options& chosen, lane_pool& crew,
              std::size_t cores)
      : comm_{&comm},
        chosen_{balanced(chosen, comm.size())},
        crew_{&crew},
        moe_{make_exchange(comm, chosen_)},
        truth_{with_findings(), comm.rank().index(), comm.size()},
        tokens_(truth_.tokens_of(comm.rank().index()) * moe_->format().token_bytes),
        combined_(truth_.tokens_of(comm.rank().index()) * chosen.hidden),
        experts_{chosen.hidden},
        check_{chosen_, truth_, comm.rank().index(), moe_->format()},
        floor_{peerbus::reach_of(comm.bus()) == peerbus::peer_reach::all ? floor_kind::copies
                                                                         : floor_kind::puts},
        plain_{make_plain()},
        cores_{cores},
        crowded_{comm.bus().boot().ranks_here() > cores},
        findings_{comm},
        samples_{comm, series_count, chosen.iterations},
        signals_{comm, signal_blocks, crowded_},
        encode_{truth_.tokens_of(comm.rank().index()), moe_->format()},
        surroundings_{chosen, (comm.bus().boot().ranks_here() + cores - 1) / cores} {
    fill_tokens(payload{chosen.seed, moe_->format().of_tokens}, moe_->format(), comm.rank().index(),
                chosen.hidden, tokens_.all());
    if (chosen_.balance == "incremental") rebalancer_.emplace(chosen_, moe_->placement());
    share_copies();
  }

  [[nodiscard]] outcome run() {
    outcome result;
    result.floor = floor_;
    result.phases = chosen_.in_slots() ? 1 : 2;
    result.load = load();
    result.dispatch_bytes = plain_->rows() * one_level_map().row_bytes_in_all();
    result.combine_bytes = plain_->rows() * one_level_map().output_bytes();

    result.choices = moe_->queries().choices();

    result.wrong = findings_.first_of_all(check_everything());
    if (!result.wrong.empty()) return result;
    const std::size_t iterations = warm_up();
    dispatch_meter_ = combine_meter_ = {};
    progress shown{comm_->rank().index() == 0 && chosen_.report.empty(), iterations};
    const std::size_t between = std::max<std::size_t>(iterations / signal_blocks, 1);
    result.balancedness.reserve(iterations);
    std::string miscounted;
    for (std::size_t i = 0; i < iterations; ++i) {
      if (i % between == 0 && i / between < signal_blocks) signals_.measure_block();
      iterate(i);
      result.balancedness.push_back(load().balancedness());
      if (rebalancer_) rebalance(i + 1, result, miscounted);
      shown.at(i);
    }
    const std::string wrong = check_everything();
    result.choices = moe_->queries().choices();
    result.wrong = findings_.first_of_all(miscounted.empty() ? wrong : miscounted);
    if constexpr (may_have_planes)
      if (moved()) {
        result.planes = planes_.per_pair(comm_->bus().near_ranks().size(), pairs_, rows_);
        if (chosen_.relay == peerbus::moe::relay::never)
          result.choices.relay.estimate = relay_estimate();
      }
    bench::gathered_samples gathered = samples_.gather(iterations);
    result.samples = std::move(gathered.slowest);
    result.rank_medians = std::move(gathered.medians);
    result.signal_one_way_ns = signals_.one_way_ns();
    result.stores = moe_->queries().stores_for(truth_.tokens_of(comm_->rank().index()));
    result.learned = moe_->queries().learned_costs();
    if (crowded_) {
      result.dispatch_core = dispatch_meter_.mean();
      result.combine_core = combine_meter_.mean();
    }
    return result;
  }

 private:
  static constexpr bool may_have_planes = std::same_as<Transport, peerbus::any_transport>;
  static constexpr std::size_t signal_blocks = 32;

  std::unique_ptr<plain_floor> make_plain() {
    if constexpr (!peerbus::direct_transport<Transport>)
      if (floor_ == floor_kind::puts) {
        auto puts = std::make_unique<plain_puts<Transport>>(
            *comm_, truth_, one_level_map().row_bytes_in_all(), one_level_map().output_bytes());
        puts_ = puts.get();
        return puts;
      }
    auto copies = std::make_unique<plain_copy>(*moe_, chosen_, truth_, comm_->rank().index());
    copies_ = copies.get();
    return copies;
  }

  /// Prepares the copies of all ranks' bytes, if ranks share cores.
  void share_copies() {
    if (floor_ != floor_kind::copies || !crowded_) return;
    shared_ = {};
    if (comm_->rank().index() < cores_)
      for (std::size_t r = comm_->rank().index(); r < comm_->size(); r += cores_)
        shared_.add(std::make_unique<plain_copy>(*moe_, chosen_, truth_, r));
    // A few ranks prepare for all. The others must not spend the time limit of a dispatch on it.
    comm_->barrier(peerbus::deadline::after(std::chrono::minutes{10}));
  }

  /// Adds the rows of the last dispatch, and gives experts other places if a plan says so. What
  /// the limit moves then goes there too. `steps`: the iterations that are done.
  void rebalance(std::size_t steps, outcome& result, std::string& miscounted) {
    const std::string wrong = rebalancer_->add(truth_);
    if (miscounted.empty()) miscounted = wrong;
    const auto plan = rebalancer_->plan(steps, moe_->placement(), chosen_);
    if (!plan) return;
    result.replans.push_back(*plan);
    moe_->forget();
    moe_->install_experts(chosen_.physical_to_logical, config_of(chosen_).replicas);
    rebalancer_->move_to(moe_->placement());
    truth_ = oracle{chosen_, comm_->rank().index(), comm_->size()};
    plain_ = make_plain();
    share_copies();
    result.load = load();
  }

  /// Returns the map of an exchange in one level.
  [[nodiscard]] peerbus::moe::memory_map one_level_map() const {
    return moe_->map_for(config_of(chosen_), comm_->size(), peerbus::reach_of(comm_->bus()));
  }

  /// Returns the options with what the exchange has chosen, which says where rows lie.
  const options& with_findings() noexcept {
    if (moe_->relay().relays) chosen_.relayed_among = moe_->relay().group_of;
    chosen_.protocol = moe_->config().protocol;
    return chosen_;
  }

  /// Returns what an exchange that may relay would decide by, if hosts are equal in size.
  [[nodiscard]] peerbus::moe::relay_estimate relay_estimate() const {
    const peerbus::moe::memory_map map = one_level_map();
    return peerbus::moe::estimate_relay({.experts = chosen_.experts,
                                         .top_k = chosen_.top_k,
                                         .ranks = comm_->size(),
                                         .groups = comm_->size() / comm_->bus().near_ranks().size(),
                                         .max_tokens = chosen_.tokens,
                                         .row_bytes = map.format.row_bytes + map.format.scale_bytes,
                                         .output_bytes = map.output_bytes(),
                                         .by_rank = chosen_.by_rank()},
                                        peerbus::moe::relay_costs_of(chosen_.costs));
  }

  [[nodiscard]] peerbus::moe::routing route() const noexcept {
    return {truth_.mine().experts, truth_.mine().weights};
  }

  /// Returns: how many iterations to time, the same on all ranks.
  std::size_t warm_up() {
    std::size_t iterations = chosen_.iterations;
    std::size_t warmup = chosen_.warmup;
    if (chosen_.seconds > 0) {
      iterate(0);
      const auto start = bench::clock::now();
      iterate(0);
      const double lap = bench::microseconds(bench::clock::now() - start) / 1e6;
      // Three at least, as fewer would show no spread.
      const auto most = static_cast<double>(iterations);
      const double fit = std::clamp(chosen_.seconds / lap, std::min(3.0, most), most);
      iterations = findings_.of_first(static_cast<std::size_t>(fit));
      warmup = std::min(warmup, iterations / 10);
    }
    for (std::size_t i = 0; i < warmup; ++i) iterate(0);
    // An exchange tries both kinds of stores early. What is timed is what it has found, unless so
    // little is timed that the trial would be most of the run.
    const std::uint64_t found = peerbus::moe::first_measured_dispatch(moe_->config().in_flight);
    if (floor_ == floor_kind::copies && chosen_.stores == "automatic" &&
        (iterations >= found || !chosen_.costs_to.empty()))
      while (moe_->queries().next_dispatch() <= found)
        operations([](std::optional<series>, double) {});
    return iterations;
  }

  /// Does laps of all that is timed. What each finds in the caches is what `--between` says, never
  /// what another has left there.
  void iterate(std::size_t i) {
    timed_laps(i, [&](auto&& note) { operations(note); });
    timed_laps(i, [&](auto&& note) { encoding(note); });
    timed_laps(i, [&](auto&& note) {
      copies(note, *plain_, store_kind::plain,
             {series::plain_dispatch, series::plain_read, series::plain_combine});
    });
    if (floor_ != floor_kind::copies) return;
    timed_laps(i, [&](auto&& note) {
      copies(note, *plain_, store_kind::streaming,
             {series::streaming_dispatch, series::streaming_read, series::streaming_combine});
    });
    if (!crowded_) return;
    timed_laps(i, [&](auto&& note) {
      copies(note, shared_, store_kind::plain,
             {series::shared_plain_dispatch, std::nullopt, series::shared_plain_combine});
    });
    timed_laps(i, [&](auto&& note) {
      copies(note, shared_, store_kind::streaming,
             {series::shared_streaming_dispatch, std::nullopt, series::shared_streaming_combine});
    });
  }

  /// Does `lap(note)`, and one before it whose times are not noted if the caches need that.
  template <class Lap>
  void timed_laps(std::size_t i, Lap&& lap) {
    if (surroundings_.needs_lap()) lap([](std::optional<series>, double) {});
    is_metered_ = crowded_ && comm_->rank().index() == 0;
    lap([&](std::optional<series> which, double microseconds) {
      if (which) samples_.set(static_cast<std::size_t>(*which), i, microseconds);
    });
    is_metered_ = false;
  }

  /// Returns what the planes have moved so far, if the transport has any.
  [[nodiscard]] std::optional<moved_by_planes> moved() const noexcept {
    if constexpr (may_have_planes) return moved_by(comm_->bus());
    return std::nullopt;
  }

  template <class Note>
  void operations(Note&& note) {
    surroundings_.restore();
    tokens_.recall();
    if (const auto now = moved()) planes_.leave_out(*now);
    const double there =
        bench::timed(*comm_, [&] { metered(dispatch_meter_, [&] { dispatch(); }); });
    if (rebalancer_) rebalancer_->count(*moe_, moe_->ticket());
    const double reading = work_between();
    const double working = compute();
    surroundings_.restore();
    const double back = bench::timed(*comm_, [&] { metered(combine_meter_, [&] { combine(); }); });
    if (const auto now = moved()) planes_.take(*now);
    ++pairs_;
    note(series::dispatch, there);
    note(series::read, reading);
    note(series::combine, back);
    note(series::experts, working);
    note(series::sum, there + reading + working + back);
  }

  /// Does an operation, and meters it on rank 0 where ranks share cores: a few system calls count
  /// little there.
  template <class Operation>
  void metered(core_meter& meter, Operation&& operation) {
    is_metered_ ? meter.add(operation) : operation();
  }

  /// What no dispatch can do without besides moving bytes: it reads each token and encodes it.
  template <class Note>
  void encoding(Note&& note) {
    surroundings_.restore();
    tokens_.recall();
    note(series::encode, bench::timed(*comm_, [&] { encode_.run(tokens_.all()); }));
  }

  /// The series of what the limit is made of.
  struct series_of_copies {
    series there;
    std::optional<series> read;
    series back;
  };
  template <class Note, class Copies>
  void copies(Note&& note, Copies& moved, store_kind stores, const series_of_copies& which) {
    surroundings_.restore();
    moved.recall();
    note(which.there, bench::timed(*comm_, [&] { moved.dispatch(stores); }));
    note(which.read, work_between());
    surroundings_.restore();
    note(which.back, bench::timed(*comm_, [&] { moved.combine(stores); }));
  }

  /// Does what experts do between dispatch and combine, if they do. Returns the time in which each
  /// row is read once, in microseconds.
  double work_between() {
    if (!surroundings_.experts_work()) return 0;
    const double spent = bench::timed(*comm_, [&] { moe_->read(); });
    moe_->work(experts_);
    return spent;
  }

  /// Computes for as long as `--row-us` says that this rank's experts need for their rows. Returns
  /// the time, in microseconds.
  double compute() {
    if (chosen_.row_us == 0) return 0;
    const double needed =
        chosen_.row_us * static_cast<double>(truth_.expert_rows(comm_->rank().index()));
    return bench::timed(*comm_, [&] {
      const auto start = bench::clock::now();
      while (bench::microseconds(bench::clock::now() - start) < needed) continue;
    });
  }

  /// Returns how the rows of experts spread over the ranks.
  [[nodiscard]] rank_load load() const {
    rank_load found;
    for (std::size_t rank = 0; rank < truth_.ranks(); ++rank) {
      const auto rows = static_cast<double>(truth_.expert_rows(rank));
      found.most_rows = std::max(found.most_rows, rows);
      found.mean_rows += rows / static_cast<double>(truth_.ranks());
    }
    return found;
  }

  void dispatch() {
    crew_->run([&](peerbus::moe::lane as) { moe_->dispatch(tokens_.all(), route(), as); });
  }
  void combine() {
    crew_->run([&](peerbus::moe::lane as) { moe_->combine(combined_.all(), as); });
  }

  /// Operations and plain copies alike: a floor that moves other bytes would be none. Every rank
  /// goes through all of it, whatever it finds.
  [[nodiscard]] std::string check_everything() {
    std::fill(combined_.all().begin(), combined_.all().end(), peerbus::bf16::from_bits(0xffff));
    dispatch();
    std::string found = moe_->check(check_);
    const auto note = [&found](const std::string& text) {
      if (found.empty()) found = text;
    };
    if constexpr (may_have_planes) rows_ = moe_->queries().traffic(moe_->ticket());
    moe_->work(experts_);
    combine();
    note(check_.combined(combined_.all()));
    comm_->barrier();
    if (floor_ == floor_kind::puts) {
      note(puts_->check());
    } else {
      note(copies_->check_outputs(check_));
      for (const store_kind stores : {store_kind::plain, store_kind::streaming}) {
        copies_->combine(stores);
        note(copies_->check_results());
      }
      const auto check_copies = [&](auto&& copy) {
        copies_->spoil();
        comm_->barrier();
        copy();
        comm_->barrier();
        if (const auto text = moe_->check(check_); !text.empty()) note("plain copy: " + text);
        comm_->barrier();
      };
      check_copies([&] { copies_->dispatch(store_kind::plain); });
      check_copies([&] { copies_->dispatch(store_kind::streaming); });
      if (crowded_) check_copies([&] { shared_.dispatch(store_kind::plain); });
    }
    return found;
  }

  peerbus::communicator<Transport>* comm_;
  options chosen_;
  lane_pool* crew_;
  std::unique_ptr<measured_exchange> moe_;  // First, as it refuses what is too large.
  oracle truth_;
  bench::pages<std::byte> tokens_;  ///< as the codec takes them
  bench::pages<peerbus::bf16> combined_;
  expert_work experts_;
  any_checker check_;
  floor_kind floor_;
  plain_copy* copies_ = nullptr;           ///< `plain_`, unless it is `puts_`
  plain_puts<Transport>* puts_ = nullptr;  ///< `plain_`, if rows are put
  std::unique_ptr<plain_floor> plain_;
  std::size_t cores_;
  bool crowded_;
  /// The plain copies of several ranks, done by as many ranks as there are cores: the least time in
  /// which the cores could move the bytes of all. On the other ranks empty.
  plain_copies shared_;
  std::optional<rebalancer> rebalancer_;  ///< of `--balance incremental`
  bench::shared_findings<Transport> findings_;
  bench::sample_store<Transport> samples_;
  signal_floor<Transport> signals_;
  plain_encoding encode_;
  surroundings surroundings_;
  core_meter dispatch_meter_;
  core_meter combine_meter_;
  bool is_metered_ = false;
  plane_tally planes_;
  peerbus::moe::row_traffic rows_;  ///< of each dispatch, if there may be several planes
  std::size_t pairs_ = 0;           ///< dispatches with their combines that the tally has
};

}  // namespace ep_bench
