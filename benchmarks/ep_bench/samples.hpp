// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

namespace ep_bench {

/// What is timed in every iteration.
enum class series : std::size_t { dispatch, combine, pair, plain_dispatch, plain_combine };
inline constexpr std::size_t series_count = 5;

/// Microseconds of every iteration, by series.
using sample_table = std::array<std::vector<double>, series_count>;

inline std::vector<double>& of(sample_table& table, series which) noexcept {
  return table[static_cast<std::size_t>(which)];
}
inline const std::vector<double>& of(const sample_table& table, series which) noexcept {
  return table[static_cast<std::size_t>(which)];
}

/// The samples of this rank, in memory that rank 0 reads in the end.
template <class Transport>
class sample_store {
 public:
  sample_store(peerbus::communicator<Transport>& comm, std::size_t iterations)
      : comm_{&comm},
        iterations_{iterations},
        window_{comm.make_window(series_count * iterations * sizeof(double), 0)} {
    std::fill(all().begin(), all().end(), 0.0);  // Takes the pages now rather than while timing.
  }

  void set(series which, std::size_t iteration, double microseconds) noexcept {
    all()[static_cast<std::size_t>(which) * iterations_ + iteration] = microseconds;
  }

  /// Collective. Returns: of each iteration the time of its slowest rank; on rank 0 only.
  [[nodiscard]] sample_table slowest() {
    sample_table result;
    comm_->barrier();
    if (comm_->rank().index() == 0) {
      std::vector<double> worst(series_count * iterations_);
      std::vector<double> theirs(worst.size());
      for (const peerbus::rank_id peer : comm_->ranks()) {
        peerbus::check(window_.get(peer, 0, std::span{theirs}), "reading samples");
        peerbus::check(window_.flush(peer), "reading samples");
        std::transform(worst.begin(), worst.end(), theirs.begin(), worst.begin(),
                       [](double a, double b) { return std::max(a, b); });
      }
      for (std::size_t s = 0; s < series_count; ++s) {
        const auto first = worst.begin() + static_cast<std::ptrdiff_t>(s * iterations_);
        result[s].assign(first, first + static_cast<std::ptrdiff_t>(iterations_));
      }
    }
    comm_->barrier();
    return result;
  }

 private:
  [[nodiscard]] std::span<double> all() const noexcept { return window_.template local<double>(); }

  peerbus::communicator<Transport>* comm_;
  std::size_t iterations_;
  peerbus::window<Transport> window_;
};

}  // namespace ep_bench
