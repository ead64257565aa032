// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <new>
#include <type_traits>

#include <benchmark/benchmark.h>

#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/pin.hpp"

namespace micro {

/// What rank 0 found out, in memory that outlives it: ranks may be forked processes.
struct found {
  static constexpr std::size_t most_contenders = 6;

  double seconds = 0;  ///< of the measured operations, all together
  /// Medians, of each that took turns: see `alternate`.
  std::array<double, most_contenders> nanoseconds{};
  bool payload_right = true;
  int refusal = 0;  ///< an errno, where the system does not allow what was to be measured
};
static_assert(std::is_trivially_copyable_v<found>);

/// The medians of the first `Count` contenders.
template <std::size_t Count>
std::array<double, Count> medians_of(const found& result) noexcept {
  static_assert(Count <= found::most_contenders);
  std::array<double, Count> first;
  std::copy_n(result.nanoseconds.begin(), Count, first.begin());
  return first;
}

class shared_found {
 public:
  shared_found()
      : page_{::mmap(nullptr, sizeof(found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0)} {
    if (page_ == MAP_FAILED) throw std::bad_alloc{};
    new (page_) found{};
  }
  shared_found(const shared_found&) = delete;
  shared_found& operator=(const shared_found&) = delete;
  ~shared_found() { ::munmap(page_, sizeof(found)); }

  /// What counts of a rank's `own`: a wrong payload of any, the rest of rank 0 alone.
  void add(const found& own, bool first) const noexcept {
    found& all = get();
    if (first) {
      all.seconds = own.seconds;
      all.nanoseconds = own.nanoseconds;
      all.refusal = own.refusal;
    }
    if (!own.payload_right) all.payload_right = false;
  }
  [[nodiscard]] found& get() const noexcept { return *static_cast<found*>(page_); }

 private:
  void* page_;
};

inline bool crowded(std::size_t ranks) noexcept { return ranks > peerbus::usable_cores(); }

/// Starts `ranks` ranks, each on a core of its own if there are enough. `body` is called with the
/// communicator, the number of operations of `state` and a `found` of the rank, in which it says
/// how long they took: the start of the group is not counted. Returns: what rank 0 found, and
/// whether the payload was right on all.
template <peerbus::runnable_transport Transport, class Body>
found run_group(benchmark::State& state, std::size_t ranks, Body body) {
  const shared_found shared;
  const auto operations = static_cast<std::size_t>(state.max_iterations);
  const bool pin = !crowded(ranks);
  const int status =
      peerbus::run<Transport>(ranks,
                              [&](peerbus::communicator<Transport>& comm) {
                                if (pin && Transport::ranks_are == peerbus::rank_kind::threads)
                                  bench::pin_this_thread(comm.rank().index());
                                found own;
                                body(comm, operations, own);
                                shared.add(own, comm.rank().index() == 0);
                              },
                              {.pin = pin, .grace = std::chrono::seconds{1}});
  const found result = shared.get();
  if (status != 0)
    state.SkipWithError("a rank failed");
  else if (result.refusal != 0)
    state.SkipWithError(
        ("skipped, as the system refuses: " + peerbus::describe_errno(result.refusal)).c_str());
  else if (!result.payload_right)
    state.SkipWithError("the payload arrived wrong");
  for (auto _ : state) state.SetIterationTime(result.seconds / static_cast<double>(operations));
  return result;
}

/// Counters that put a measured time beside its one reference of the same run: medians of short
/// blocks that took turns.
inline void compare(benchmark::State& state, const char* reference, const found& result) {
  state.counters[reference] = result.nanoseconds[0];
  state.counters["measured_ns"] = result.nanoseconds[1];
  state.counters["ratio"] = result.nanoseconds[1] / result.nanoseconds[0];
}

}  // namespace micro
