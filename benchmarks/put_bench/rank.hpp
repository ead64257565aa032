// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>

#include "put_bench/contender.hpp"
#include "put_bench/options.hpp"
#include "support/json.hpp"

namespace put_bench {

///@{
/// Collective: measures, and prints on rank 0. Returns: the exit status, 1 if a payload was wrong.
/// Throws: `peerbus::error` as the transport; unsupported if this program was built without it.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_fabric(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_verbs(peerbus::bootstrap& boot, const options& chosen);
///@}

/// Compares what a connection takes in groups of several sizes; not within a group.
/// Returns: the exit status.
[[nodiscard]] int show_verbs_memory(const options& chosen);

/// What a rank measures, and what of it is written.
class report {
 public:
  /// Prints what is measured, on rank 0. `over` describes the transport.
  report(peerbus::bootstrap& boot, const options& chosen, const std::string& over);

  [[nodiscard]] bool prints() const noexcept { return prints_; }
  /// Collective: measures the parts latency, bandwidth and rows that were asked for. `end_turn` is
  /// collective.
  void measure(const contenders& all, const std::function<void()>& end_turn);
  /// Collective: measures small payloads for a part of its own.
  void measure_part(const char* part, const std::string& title, const contenders& all,
                    const std::function<void()>& end_turn);
  /// Checks that every payload was right, and writes the results. Returns: the exit status.
  [[nodiscard]] int finish() const;

 private:
  const options& chosen_;
  std::size_t rank_;
  bool prints_;
  bool right_ = true;
  bench::json values_;
};

}  // namespace put_bench
