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

namespace ep_bench {

/// Microseconds of every iteration, by what was timed.
using sample_table = std::vector<std::vector<double>>;

/// The samples of this rank, in memory that rank 0 reads in the end.
template <class Transport>
class sample_store {
 public:
  sample_store(peerbus::communicator<Transport>& comm, std::size_t series, std::size_t iterations)
      : comm_{&comm},
        series_{series},
        iterations_{iterations},
        window_{comm.make_window(series * iterations * sizeof(double), 0)} {
    std::fill(all().begin(), all().end(), 0.0);  // Takes the pages now rather than while timing.
  }

  void set(std::size_t series, std::size_t iteration, double microseconds) noexcept {
    all()[series * iterations_ + iteration] = microseconds;
  }

  /// Collective. Returns: of each of the first `done` iterations the time of its slowest rank; on
  /// rank 0 only.
  [[nodiscard]] sample_table slowest(std::size_t done) {
    sample_table result(series_);
    comm_->barrier();
    if (comm_->rank().index() == 0) {
      std::vector<double> worst(series_ * iterations_);
      std::vector<double> theirs(worst.size());
      for (const peerbus::rank_id peer : comm_->ranks()) {
        peerbus::check(window_.get(peer, 0, std::span{theirs}), "reading samples");
        peerbus::check(window_.flush(peer), "reading samples");
        std::transform(worst.begin(), worst.end(), theirs.begin(), worst.begin(),
                       [](double a, double b) { return std::max(a, b); });
      }
      for (std::size_t s = 0; s < series_; ++s) {
        const auto first = worst.begin() + static_cast<std::ptrdiff_t>(s * iterations_);
        result[s].assign(first, first + static_cast<std::ptrdiff_t>(done));
      }
    }
    comm_->barrier();
    return result;
  }

 private:
  [[nodiscard]] std::span<double> all() const noexcept { return window_.template local<double>(); }

  peerbus::communicator<Transport>* comm_;
  std::size_t series_;
  std::size_t iterations_;
  peerbus::window<Transport> window_;
};

}  // namespace ep_bench
