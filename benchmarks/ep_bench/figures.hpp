// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "support/statistics.hpp"

namespace ep_bench {

/// Where rows and outputs lie and who moves them, in words.
inline std::string words_for_layout(const options& chosen) {
  std::string words = chosen.layout == "rank"           ? "rank-major"
                      : chosen.layout == "slots"        ? "rank-major in slots"
                      : chosen.layout == "expert_slots" ? "by expert in slots"
                      : chosen.layout == "automatic"    ? "by expert, automatic"
                                                        : chosen.layout;
  if (chosen.outputs == "home") words += ", outputs at home";
  if (chosen.lanes > 1) words += ", " + std::to_string(chosen.lanes) + " lanes";
  return words;
}

/// How the bytes of a run are counted, in words.
inline std::string bytes_formula(const options& chosen) {
  const std::string row = chosen.codec == "bf16"   ? "2 x hidden"
                          : chosen.codec == "int8" ? "hidden + 4"
                          : chosen.codec == "fp8"  ? "hidden + hidden / 32"
                                                   : "hidden + hidden / 128 to whole words";
  const bool by_rank = chosen.by_rank();
  return "per rank: dispatch = rows x (row and scales + 8" +
         std::string{by_rank ? " + 8 x top_k" : ""} + "), with row and scales = " + row + " for " +
         chosen.codec + ", 8 for the origin" +
         (by_rank ? ", 8 x top_k for expert ids and weights" : "") +
         "; combine = rows x 2 x hidden; rows = " +
         (by_rank ? "pairs of a token and a rank with experts of it, counted on rank 0"
                  : "tokens x top_k");
}

/// What the floor is, in words that follow "p50 of".
inline std::string words_for_floor(const outcome& result) {
  if (result.floor == floor_kind::puts)
    return "putting the same bytes from registered memory, one put and one signal to each peer, "
           "nothing quantised, placed or summed";
  std::string words = "copying (by plain or by streaming stores) or reading the same bytes";
  if (result.shares_floor()) words += " of all ranks by one rank per core";
  return words;
}

inline constexpr std::string_view what_is_checked =
    "bitwise against a plain reference, before and after timing: every received row with its scale "
    "and origin, its expert (or its slots) and its order; every combined element, by fma in order; "
    "the bytes that the floor moves";

/// The statistics that a report shows; there are some only if something was timed.
struct figures {
  bench::statistics dispatch;
  bench::statistics combine;
  bench::statistics pair;
  bench::statistics plain_dispatch;
  bench::statistics plain_combine;
  std::optional<bench::statistics> streaming_dispatch;  ///< none if the floor is puts
  /// Of all ranks' bytes, copied by as many ranks as there are cores; none if each has its own.
  std::optional<bench::statistics> shared_plain_dispatch;
  std::optional<bench::statistics> shared_streaming_dispatch;
  std::optional<bench::statistics> shared_plain_combine;
  std::optional<double> signal_one_way_ns;  ///< none with one rank

  [[nodiscard]] static std::optional<figures> of_run(const outcome& result) {
    if (result.samples.empty()) return std::nullopt;
    const auto in = [&](series which) { return bench::summarise(result.of(which)); };
    figures found{in(series::dispatch),
                  in(series::combine),
                  in(series::pair),
                  in(series::plain_dispatch),
                  in(series::plain_combine),
                  std::nullopt,
                  std::nullopt,
                  std::nullopt,
                  std::nullopt,
                  std::nullopt};
    if (result.floor == floor_kind::copies)
      found.streaming_dispatch = in(series::streaming_dispatch);
    if (result.shares_floor()) {
      found.shared_streaming_dispatch = in(series::shared_streaming_dispatch);
      found.shared_plain_dispatch = in(series::shared_plain_dispatch);
      found.shared_plain_combine = in(series::shared_plain_combine);
    }
    if (!result.signal_one_way_ns.empty())
      found.signal_one_way_ns = bench::median(result.signal_one_way_ns);
    return found;
  }

  /// What an operation is compared with: what the cores can do together where ranks share them, and
  /// for dispatch the faster of plain and streaming stores.
  [[nodiscard]] const bench::statistics& dispatch_floor() const noexcept {
    return shared_plain_dispatch ? faster(*shared_plain_dispatch, shared_streaming_dispatch)
                                 : own_dispatch_floor();
  }
  /// The same for the bytes of one rank.
  [[nodiscard]] const bench::statistics& own_dispatch_floor() const noexcept {
    return faster(plain_dispatch, streaming_dispatch);
  }
  /// Whether the floor of dispatch is the streaming copy.
  [[nodiscard]] bool floor_streams() const noexcept {
    const bench::statistics* const least = &dispatch_floor();
    return least != &plain_dispatch && !(shared_plain_dispatch && least == &*shared_plain_dispatch);
  }
  [[nodiscard]] const bench::statistics& combine_floor() const noexcept {
    return shared_plain_combine ? *shared_plain_combine : plain_combine;
  }

 private:
  static const bench::statistics& faster(
      const bench::statistics& plain, const std::optional<bench::statistics>& streaming) noexcept {
    return streaming && streaming->p50 < plain.p50 ? *streaming : plain;
  }
};

/// 10^9 bytes a second.
inline double gigabytes_per_second(std::size_t bytes, double microseconds) noexcept {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

}  // namespace ep_bench
