// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

#include "coll_bench/elements.hpp"
#include "coll_bench/mpi_calls.hpp"
#include "coll_bench/options.hpp"
#include "coll_bench/outcome.hpp"
#include "ep_bench/signal_floor.hpp"
#include "support/clock.hpp"
#include "support/pages.hpp"
#include "support/samples.hpp"
#include "support/statistics.hpp"

namespace coll_bench {

/// One rank's part of a run. In every turn the calls of peerbus, of MPI and the plain copies are
/// timed one after the other, so that drift of the machine meets all alike.
template <class Transport>
class measurement {
 public:
  /// `mpi`: nullptr without MPI.
  measurement(peerbus::communicator<Transport>& comm, const options& chosen, const mpi_calls* mpi,
              bool crowded)
      : comm_{&comm},
        chosen_{chosen},
        mpi_{mpi},
        elements_{make_elements(chosen.type, chosen.reduction)},
        team_{comm, chosen.team},
        room_{peerbus::align_up(chosen.most_bytes, peerbus::cache_line_bytes)},
        window_{comm.make_window(2 * room_, 0)},
        memory_{2 * room_},
        hops_{comm, chosen.turns, crowded} {}

  /// Collective.
  [[nodiscard]] outcome run() {
    outcome found;
    for (std::size_t turn = 0; turn < chosen_.turns; ++turn) hops_.measure_block();
    if (!hops_.one_way_ns().empty()) found.hop_ns = bench::median(hops_.one_way_ns());
    found.memory_bytes = team_.map().total_bytes();
    for (const operation which : chosen_.operations) {
      const operation_shape shape{which, comm_->size(), comm_->rank().index(), chosen_.root};
      std::size_t bytes = which == operation::barrier ? 0 : chosen_.least_bytes;
      do {
        if (auto next = measure(shape, bytes); next.count != 0 || bytes == 0)
          found.rows.push_back(std::move(next));
        bytes *= chosen_.factor;
      } while (bytes != 0 && bytes <= chosen_.most_bytes);
    }
    return found;
  }

 private:
  /// Whose calls, and where its operands lie.
  struct variant {
    series time;
    series wrong;
    bool in_place;
    bool by_mpi;
  };

  [[nodiscard]] std::vector<variant> variants(const operation_shape& shape) const {
    using enum series;
    std::vector<variant> all;
    const bool is_barrier = shape.which == operation::barrier;
    if (shape.has_out_of_place() || is_barrier) {
      all.push_back({out_of_place, wrong_out_of_place, false, false});
      if (mpi_ != nullptr) all.push_back({mpi_out_of_place, wrong_mpi_out_of_place, false, true});
    }
    if (shape.has_in_place()) {
      all.push_back({in_place, wrong_in_place, true, false});
      if (mpi_ != nullptr && shape.which != operation::reduce_scatter)
        all.push_back({mpi_in_place, wrong_mpi_in_place, true, true});
    }
    return all;
  }

  /// The operands of this rank, at the start of each half of the memory.
  [[nodiscard]] operands make_operands(const operation_shape& shape, std::size_t elements,
                                       bool in_place) const {
    const std::size_t input = shape.input(elements) * elements_->bytes();
    const std::size_t output = shape.output(elements) * elements_->bytes();
    const std::span<std::byte> all = chosen_.in_window ? window_.local() : memory_.all();
    std::size_t input_at = 0;
    std::size_t output_at = in_place ? 0 : room_;
    if (in_place && input < output) input_at = shape.rank * input;
    if (in_place && output < input) output_at = shape.rank * output;
    if (shape.which == operation::broadcast) input_at = output_at;
    return {operand(all.subspan(input_at, input)), operand(all.subspan(output_at, output))};
  }
  [[nodiscard]] peerbus::collective::window_range<std::byte> operand(
      std::span<std::byte> bytes) const {
    if (chosen_.in_window) return peerbus::collective::in_window(window_, bytes);
    return {bytes, {}};
  }

  void call(const operation_shape& shape, const operands& given, bool by_mpi) {
    if (by_mpi)
      mpi_->call(shape, given);
    else if (shape.which == operation::barrier)
      comm_->barrier();
    else
      elements_->call(shape, team_, given);
  }

  /// Microseconds of one of `calls` calls on this rank, which all ranks begin together.
  template <class Call>
  double time(std::size_t calls, Call&& make_call) {
    comm_->barrier();
    const auto start = bench::clock::now();
    for (std::size_t i = 0; i < calls; ++i) make_call();
    const double spent = bench::microseconds(bench::clock::now() - start);
    comm_->barrier();
    return spent / static_cast<double>(calls);
  }

  /// Computes on one rank in each call, on another one in the next call.
  void compute(std::size_t call_index) const {
    if (call_index % comm_->size() != comm_->rank().index()) return;
    const auto start = bench::clock::now();
    while (bench::microseconds(bench::clock::now() - start) < chosen_.compute_us) {
    }
  }

  /// Times calls beside ranks that compute, whole and in halves.
  void time_uneven(const operation_shape& shape, std::size_t elements, std::size_t turn,
                   bench::sample_store<Transport>& samples) {
    const operands given = make_operands(shape, elements, !shape.has_out_of_place());
    std::size_t index = 0;
    samples.set(static_cast<std::size_t>(series::uneven_whole), turn, time(chosen_.iterations, [&] {
                  call(shape, given, false);
                  compute(index++);
                }));
    samples.set(static_cast<std::size_t>(series::uneven_halves), turn,
                time(chosen_.iterations, [&] {
                  auto half = elements_->start(shape, team_, given);
                  compute(index++);
                  half.finish();
                }));
  }

  [[nodiscard]] bool has_halves(const operation_shape& shape) const {
    return chosen_.compute_us > 0 && shape.which != operation::barrier;
  }

  [[nodiscard]] std::size_t count_wrong(const operation_shape& shape, std::size_t elements,
                                        const variant& which) {
    if (!chosen_.check || shape.which == operation::barrier) return 0;
    const operands given = make_operands(shape, elements, which.in_place);
    elements_->fill(shape, given);
    comm_->barrier();
    if (which.time == series::uneven_halves)
      elements_->start(shape, team_, given).finish();
    else
      call(shape, given, which.by_mpi);
    const std::size_t wrong = elements_->count_wrong(shape, given);
    comm_->barrier();
    return wrong;
  }

  [[nodiscard]] row measure(const operation_shape& shape, std::size_t bytes) {
    std::size_t elements = bytes / elements_->bytes();
    if (shape.has_rows()) elements -= elements % shape.ranks;
    row result{shape, elements * elements_->bytes(), shape.count(elements), 0, {}, "-"};
    if (elements == 0 && shape.which != operation::barrier) return result;
    result.floor_bytes = floor_bytes(shape, result.bytes);

    bench::sample_store<Transport> samples{*comm_, series_count, chosen_.turns};
    const auto check = [&] {
      std::vector<variant> checked = variants(shape);
      if (has_halves(shape))
        checked.push_back(
            {series::uneven_halves, series::wrong_halves, !shape.has_out_of_place(), false});
      for (const variant& which : checked) {
        wrong_[static_cast<std::size_t>(which.wrong)] += count_wrong(shape, elements, which);
        samples.set(static_cast<std::size_t>(which.wrong), 0,
                    static_cast<double>(wrong_[static_cast<std::size_t>(which.wrong)]));
      }
    };
    wrong_.fill(0);
    check();
    for (const variant& which : variants(shape)) {
      const operands given = make_operands(shape, elements, which.in_place);
      for (std::size_t i = 0; i < chosen_.warmup; ++i) call(shape, given, which.by_mpi);
    }
    for (std::size_t turn = 0; turn < chosen_.turns; ++turn) {
      for (const variant& which : variants(shape)) {
        const operands given = make_operands(shape, elements, which.in_place);
        samples.set(static_cast<std::size_t>(which.time), turn,
                    time(chosen_.iterations, [&] { call(shape, given, which.by_mpi); }));
      }
      samples.set(static_cast<std::size_t>(series::floor), turn,
                  time(chosen_.iterations, [&] { copy_plainly(shape, result.floor_bytes); }));
      if (has_halves(shape)) time_uneven(shape, elements, turn, samples);
    }
    check();
    // A team may have found it out meanwhile.
    result.algorithm = algorithm_of(shape, result.count * elements_->bytes());
    result.samples = samples.slowest(chosen_.turns);
    return result;
  }

  /// The algorithm of a call, of which each rank's input has so many bytes. "-" if there is no
  /// choice, as for operands that peers read in a window.
  [[nodiscard]] std::string algorithm_of(const operation_shape& shape, std::size_t bytes) const {
    using peerbus::collective::choice_of;
    constexpr std::array chosen_of{std::pair{operation::all_reduce, choice_of::all_reduce},
                                   std::pair{operation::all_gather, choice_of::all_gather},
                                   std::pair{operation::reduce_scatter, choice_of::reduce_scatter},
                                   std::pair{operation::broadcast, choice_of::broadcast}};
    const auto found =
        std::ranges::find(chosen_of, shape.which, &std::pair<operation, choice_of>::first);
    if (found == chosen_of.end()) return "-";
    if (chosen_.in_window && peerbus::direct_transport<Transport>) return "-";
    const bool is_integer = chosen_.type[0] == 'i' || chosen_.type[0] == 'u';
    return std::string{name_of(team_.algorithm_of(found->second, bytes, is_integer))};
  }

  /// Bytes that this rank copies for the floor, the own row included.
  static std::size_t floor_bytes(const operation_shape& shape, std::size_t bytes) noexcept {
    if (shape.which == operation::barrier) return 0;
    if (shape.gets_rows()) return bytes;
    return static_cast<std::size_t>(shape.bus_factor() * static_cast<double>(bytes));
  }

  /// Copies as many bytes from the window of each peer, and as the own row if the output has one;
  /// `bytes` bytes in all.
  void copy_plainly(const operation_shape& shape, std::size_t bytes) {
    const auto peers = comm_->peers();
    // Some transports read into windows only. Nothing looks at what was read.
    const auto target =
        comm_->bus().capabilities().any_local_memory ? memory_.all() : window_.local();
    const std::size_t part = bytes / std::max<std::size_t>(peers.size() + shape.gets_rows(), 1);
    for (std::size_t i = 0; i < peers.size(); ++i)
      peerbus::check(window_.get(peers[i], i * part, target.subspan(i * part, part)), "copying");
    if (shape.gets_rows())
      std::memcpy(target.data() + peers.size() * part, window_.local().data(), part);
    for (const peerbus::rank_id peer : peers) peerbus::check(window_.flush(peer), "copying");
  }

  peerbus::communicator<Transport>* comm_;
  options chosen_;
  const mpi_calls* mpi_;
  std::unique_ptr<element_calls> elements_;
  peerbus::collective::team team_;
  std::size_t room_;  ///< of an operand
  peerbus::window<Transport> window_;
  bench::pages<std::byte> memory_;  ///< of operands, and of what is copied plainly
  ep_bench::signal_floor<Transport> hops_;
  std::array<std::size_t, series_count> wrong_{};
};

}  // namespace coll_bench
