// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "support/noise.hpp"
#include "support/statistics.hpp"

namespace ep_bench {

/// Where rows and outputs lie and who moves them, in words.
inline std::string words_for_layout(const options& chosen) {
  std::string words = chosen.layout == "rank_major"     ? "rank-major"
                      : chosen.layout == "slots"        ? "rank-major in slots"
                      : chosen.layout == "expert_slots" ? "by expert in slots"
                      : chosen.layout == "automatic"    ? "by expert, automatic"
                                                        : chosen.layout;
  if (chosen.outputs == "home") words += ", outputs at home";
  if (chosen.lanes > 1) words += ", " + std::to_string(chosen.lanes) + " lanes";
  return words;
}

/// The tokens of each rank, such as "3, 0, 128".
inline std::string words_for_tokens(const options& chosen) {
  std::string words;
  for (const std::size_t count : chosen.tokens_of_ranks)
    words += (words.empty() ? "" : ", ") + std::to_string(count);
  return words;
}

/// How the bytes of a run are counted, in words.
inline std::string bytes_formula(const options& chosen) {
  const std::string row = chosen.codec == "bf16"           ? "2 x hidden"
                          : chosen.codec == "int8"         ? "hidden + 4"
                          : chosen.codec == "fp8"          ? "hidden + hidden / 32"
                          : chosen.codec == "fp8_as_given" ? "hidden"
                                                           : "hidden + hidden / 128 to whole words";
  const bool by_rank = chosen.by_rank();
  return "per rank: dispatch = rows x (row and scales + 8" +
         std::string{by_rank ? " + 8 x top_k" : ""} + "), with row and scales = " + row + " for " +
         chosen.codec + ", 8 for the origin" +
         (by_rank ? ", 8 x top_k for expert ids and weights" : "") +
         "; combine = rows x 2 x hidden; rows = " +
         (by_rank ? "pairs of a token and a rank with experts of it, counted on rank 0"
                  : "tokens x top_k" +
                        std::string{chosen.tokens_of_ranks.size() > 1 ? ", of rank 0" : ""});
}

/// What comes between the operations, in words.
inline std::string words_for_between(const options& chosen) {
  if (chosen.between == between::nothing) return "nothing between the operations";
  const std::string work = "each row read and each output written between the operations";
  if (chosen.between == between::expert) return work;
  return work + ", and " + std::to_string(chosen.weights_mib) +
         " MiB of memory of its own read by each core before each";
}

/// What moves the bytes of the limit, in words.
inline std::string words_for_copies(const outcome& result, bool streams) {
  if (result.floor == floor_kind::puts)
    return "puts from registered memory, one with a signal to each peer";
  const std::string copy = streams ? "a streaming copy" : "a plain copy";
  return result.shares_floor() ? copy + " of all ranks' bytes by one rank per core" : copy;
}

inline constexpr std::string_view what_is_checked =
    "bitwise against a plain reference, before and after timing: every received row with its scale "
    "and origin, its expert (or its slots) and its order; every combined element, by fma in order; "
    "the bytes that the limit moves";

/// What a perfect program would need in the surroundings of the run, and its parts, in
/// microseconds: medians.
struct limit {
  double copy = 0;       ///< of the bytes that must cross, and of results, by the faster stores
  double encode = 0;     ///< reading and encoding each token
  double signals = 0;    ///< a signal's way for each phase
  bool streams = false;  ///< whether the faster stores are streaming ones

  [[nodiscard]] double total() const noexcept { return copy + encode + signals; }
  /// Takes the faster of two copies.
  void take_faster(double plain, double streaming) noexcept {
    copy = std::min(plain, streaming);
    streams = streaming < plain;
  }
};

/// The statistics that a report shows; there are some only if something was timed.
struct figures {
  bench::statistics dispatch;
  std::optional<bench::statistics> read;     ///< none if nothing comes between the operations
  std::optional<bench::statistics> experts;  ///< none unless they compute
  bench::statistics combine;
  bench::statistics sum;
  bench::statistics plain_dispatch;
  std::optional<bench::statistics> streaming_dispatch;  ///< none if the limit has puts
  std::optional<double> signal_one_way_ns;              ///< none with one rank
  limit dispatch_limit;
  limit combine_limit;
  double sum_limit = 0;  ///< with the reading that the stores leave to do, in microseconds
  double own_copy = 0;   ///< the faster copy of one rank's bytes, also where ranks share cores

  [[nodiscard]] static std::optional<figures> of_run(const outcome& result) {
    if (result.samples.empty()) return std::nullopt;
    const auto in = [&](series which) { return bench::summarise(result.of(which)); };
    const auto median = [&](series which) { return in(which).p50; };
    figures found;
    found.dispatch = in(series::dispatch);
    if (median(series::read) > 0) found.read = in(series::read);
    if (median(series::experts) > 0) found.experts = in(series::experts);
    found.combine = in(series::combine);
    found.sum = in(series::sum);
    found.plain_dispatch = in(series::plain_dispatch);
    const bool copies = result.floor == floor_kind::copies;
    if (copies) found.streaming_dispatch = in(series::streaming_dispatch);
    double way = 0;
    if (!result.signal_one_way_ns.empty()) {
      // Where ranks share cores, the others may still be on their way to a barrier.
      found.signal_one_way_ns = result.crowded ? std::ranges::min(result.signal_one_way_ns)
                                               : bench::median(result.signal_one_way_ns);
      way = *found.signal_one_way_ns / 1000;
    }

    const double plain = found.plain_dispatch.p50;
    const double streaming = copies ? found.streaming_dispatch->p50 : plain;
    found.own_copy = std::min(plain, streaming);
    limit& there = found.dispatch_limit;
    there.encode = median(series::encode);
    // A put has its signal with it.
    there.signals = way * static_cast<double>(copies ? result.phases : result.phases - 1);
    there.take_faster(plain, streaming);
    limit& back = found.combine_limit;
    const double plain_back = median(series::plain_combine);
    back.signals = copies ? way : 0;
    back.take_faster(plain_back, copies ? median(series::streaming_combine) : plain_back);
    if (result.shares_floor()) {
      there.take_faster(median(series::shared_plain_dispatch),
                        median(series::shared_streaming_dispatch));
      back.take_faster(median(series::shared_plain_combine),
                       median(series::shared_streaming_combine));
    }
    // The stores that leave the rows in the caches may be slower and still the better ones.
    const double plain_both = plain + median(series::plain_read);
    const double best_both =
        copies ? std::min(plain_both, streaming + median(series::streaming_read)) : plain_both;
    found.sum_limit = best_both - found.own_copy + there.total() + back.total();
    // With the same rows, spread evenly.
    if (found.experts) {
      std::vector<double> even = result.of(series::experts);
      for (std::size_t i = 0; i < even.size(); ++i) even[i] *= result.balancedness[i];
      found.sum_limit += bench::median(even);
    }
    return found;
  }
};

/// 10^9 bytes a second.
inline double gigabytes_per_second(std::size_t bytes, double microseconds) noexcept {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

/// Returns the signs that other programs disturbed a run, in words, if there are any.
inline std::string noise_of(const options& chosen, const outcome& result) {
  const auto found = figures::of_run(result);
  if (!found) return bench::signs_of_noise(chosen.noise);
  return bench::signs_of_noise(
      chosen.noise,
      {{"dispatch", found->dispatch}, {"combine", found->combine}, {"their sum", found->sum}});
}

}  // namespace ep_bench
