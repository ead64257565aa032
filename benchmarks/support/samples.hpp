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

namespace bench {

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
        window_{comm.make_window((series * iterations + read_at_once) * sizeof(double), 0)} {
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
      for (const peerbus::rank_id peer : comm_->ranks())
        for (std::size_t at = 0; at < worst.size(); at += read_at_once) {
          const auto theirs = all()
                                  .last(read_at_once)
                                  .first(std::min<std::size_t>(worst.size() - at, read_at_once));
          peerbus::check(window_.get(peer, at * sizeof(double), theirs), "reading samples");
          peerbus::check(window_.flush(peer), "reading samples");
          for (std::size_t i = 0; i < theirs.size(); ++i)
            worst[at + i] = std::max(worst[at + i], theirs[i]);
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
