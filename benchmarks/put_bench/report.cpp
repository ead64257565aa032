// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "put_bench/measure.hpp"
#include "put_bench/rank.hpp"

namespace put_bench {
namespace {

bool all_right(const contenders& all) {
  return std::ranges::all_of(all, [](const auto& each) { return each->right(); });
}

/// Returns the streams that were asked for.
std::vector<named_stream> streams_of(const options& chosen) {
  std::vector<named_stream> streams;
  if (chosen.wants("bandwidth"))
    for (const std::size_t bytes : chosen.bandwidth_bytes)
      streams.push_back(
          {"side by side", {bytes, std::max<std::size_t>(chosen.volume / bytes, 1), 0}});
  if (chosen.wants("rows")) {
    streams.push_back({"rows apart: none merge", {chosen.row_bytes, chosen.rows, gap_of_rows}});
    streams.push_back({"rows side by side", {chosen.row_bytes, chosen.rows, 0}});
  }
  return streams;
}

}  // namespace

report::report(peerbus::bootstrap& boot, const options& chosen, const std::string& over)
    : chosen_{chosen}, rank_{boot.rank().index()}, prints_{rank_ == 0} {
  if (prints_) std::printf("put_bench  %s\n", over.c_str());
  values_["config"] = {{"over", over},
                       {"transport", chosen.transport},
                       {"queue_depth", chosen.queue_depth},
                       {"rounds", chosen.rounds},
                       {"blocks", chosen.blocks}};
}

void report::measure(const contenders& all, const std::function<void()>& end_turn) {
  const turns how{chosen_.rounds, chosen_.blocks, prints_, end_turn};
  if (chosen_.wants("latency"))
    values_["latency"] =
        measure_latency("small payload, us one way", all, chosen_.latency_bytes, how);
  if (const auto streams = streams_of(chosen_); !streams.empty())
    values_["bandwidth"] = measure_bandwidth(all, streams, how);
  right_ = right_ && all_right(all);
}

void report::measure_part(const char* part, const std::string& title, const contenders& all,
                          const std::function<void()>& end_turn) {
  values_[part] = measure_latency(title, all, chosen_.order_bytes,
                                  {chosen_.order_rounds, chosen_.blocks, prints_, end_turn});
  right_ = right_ && all_right(all);
}

int report::finish() const {
  if (!right_) std::fprintf(stderr, "put_bench: rank %zu has a wrong payload\n", rank_);
  if (prints_) {
    std::printf("check    %s\n", right_ ? "passed" : "FAILED");
    auto all = values_;
    all["check"] = {{"passed", right_}};
    if (!chosen_.json.empty()) bench::write_json(chosen_.json, all);
  }
  return right_ ? 0 : 1;
}

}  // namespace put_bench
