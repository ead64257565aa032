// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

#include "support/statistics.hpp"

namespace bench {

/// Microseconds of every iteration, by what was timed.
using sample_table = std::vector<std::vector<double>>;

/// What rank 0 keeps of the samples of all ranks.
struct gathered_samples {
  sample_table slowest;  ///< by series: of each iteration the time of its slowest rank
  sample_table medians;  ///< by series: the median of each rank
};

/// The rank that was slowest by its median.
struct slowest_rank {
  std::size_t rank = 0;
  double median = 0;         ///< of this rank
  double median_of_all = 0;  ///< of the medians of all ranks

  /// Returns the slowest of ranks with these medians, of which there is at least one.
  [[nodiscard]] static slowest_rank of(const std::vector<double>& medians) {
    const auto most = std::max_element(medians.begin(), medians.end());
    return {static_cast<std::size_t>(most - medians.begin()), *most, bench::median(medians)};
  }
};

/// The samples of this rank, in memory that rank 0 reads in the end.
template <class Transport>
class sample_store {
 public:
  sample_store(peerbus::communicator<Transport>& comm, std::size_t series, std::size_t iterations)
      : comm_{&comm},
        series_{series},
        iterations_{iterations},
        window_{comm.make_window((series * iterations + read_at_once) * sizeof(double), 0)} {
    std::fill(all().begin(), all().end(), 0.0);  // Takes the pages now rather than while timing.
  }

  void set(std::size_t series, std::size_t iteration, double microseconds) noexcept {
    all()[series * iterations_ + iteration] = microseconds;
  }

  /// Collective. Returns what the first `done` iterations were, of which there is at least one; on
  /// rank 0 only.
  [[nodiscard]] gathered_samples gather(std::size_t done) {
    gathered_samples result{sample_table(series_), sample_table(series_)};
    comm_->barrier();
    if (comm_->rank().index() == 0)
      for (const peerbus::rank_id peer : comm_->ranks()) {
        const std::vector<double> theirs = read(peer);
        for (std::size_t s = 0; s < series_; ++s) {
          const auto first = theirs.begin() + static_cast<std::ptrdiff_t>(s * iterations_);
          const std::vector<double> times(first, first + static_cast<std::ptrdiff_t>(done));
          std::vector<double>& worst = result.slowest[s];
          worst.resize(done);
          for (std::size_t i = 0; i < done; ++i) worst[i] = std::max(worst[i], times[i]);
          result.medians[s].push_back(median(times));
        }
      }
    comm_->barrier();
    return result;
  }

  /// Collective. Returns: of each of the first `done` iterations the time of its slowest rank; on
  /// rank 0 only.
  [[nodiscard]] sample_table slowest(std::size_t done) { return gather(done).slowest; }

 private:
  /// Returns all samples of a rank.
  [[nodiscard]] std::vector<double> read(peerbus::rank_id peer) {
    std::vector<double> result(series_ * iterations_);
    for (std::size_t at = 0; at < result.size(); at += read_at_once) {
      const auto part =
          all().last(read_at_once).first(std::min<std::size_t>(result.size() - at, read_at_once));
      peerbus::check(window_.get(peer, at * sizeof(double), part), "reading samples");
      peerbus::check(window_.flush(peer), "reading samples");
      std::copy(part.begin(), part.end(), result.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return result;
  }

  /// Behind the samples there is room for so many of another rank, since not every transport can
  /// read into memory other than a window's.
  static constexpr std::size_t read_at_once = 4096;

  [[nodiscard]] std::span<double> all() const noexcept { return window_.template local<double>(); }

  peerbus::communicator<Transport>* comm_;
  std::size_t series_;
  std::size_t iterations_;
  peerbus::window<Transport> window_;
};

}  // namespace bench
