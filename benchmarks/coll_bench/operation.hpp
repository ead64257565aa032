// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace coll_bench {

enum class operation {
  all_reduce,
  all_gather,
  all_to_all,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier
};

inline constexpr std::array operation_names{"all_reduce",     "all_gather", "all_to_all",
                                            "reduce_scatter", "broadcast",  "reduce",
                                            "gather",         "scatter",    "barrier"};

inline constexpr std::string_view name_of(operation which) noexcept {
  return operation_names[static_cast<std::size_t>(which)];
}

/// An operation among `ranks` ranks, as one of them sees it. Sizes are those of nccl-tests: `size`
/// is the larger of input and output, in bytes.
struct operation_shape {
  operation which = operation::all_reduce;
  std::size_t ranks = 1;
  std::size_t rank = 0;
  std::size_t root = 0;

  [[nodiscard]] constexpr bool is_of(std::initializer_list<operation> group) const noexcept {
    for (const operation each : group)
      if (each == which) return true;
    return false;
  }
  [[nodiscard]] constexpr bool reduces() const noexcept {
    return is_of({operation::all_reduce, operation::reduce, operation::reduce_scatter});
  }
  [[nodiscard]] constexpr bool has_root() const noexcept {
    return is_of({operation::broadcast, operation::reduce, operation::gather, operation::scatter});
  }
  [[nodiscard]] constexpr bool is_root() const noexcept { return rank == root; }
  /// Whether the longer operand has a row for each rank.
  [[nodiscard]] constexpr bool has_rows() const noexcept {
    return is_of({operation::all_gather, operation::all_to_all, operation::reduce_scatter,
                  operation::gather, operation::scatter});
  }
  /// Whether the output has a row of each rank.
  [[nodiscard]] constexpr bool gets_rows() const noexcept {
    return is_of({operation::all_gather, operation::all_to_all, operation::gather});
  }
  /// Broadcast has one operand only.
  [[nodiscard]] constexpr bool has_out_of_place() const noexcept {
    return which != operation::broadcast && which != operation::barrier;
  }
  [[nodiscard]] constexpr bool has_in_place() const noexcept { return which != operation::barrier; }

  /// Elements of a row, or of an operand without rows.
  [[nodiscard]] constexpr std::size_t count(std::size_t elements) const noexcept {
    return has_rows() ? elements / ranks : elements;
  }
  /// Elements of the input of this rank.
  [[nodiscard]] constexpr std::size_t input(std::size_t elements) const noexcept {
    switch (which) {
      case operation::all_gather:
      case operation::gather: return count(elements);
      case operation::scatter: return is_root() ? elements : 0;
      default: return elements;
    }
  }
  /// Elements of the output of this rank.
  [[nodiscard]] constexpr std::size_t output(std::size_t elements) const noexcept {
    switch (which) {
      case operation::reduce_scatter:
      case operation::scatter: return count(elements);
      case operation::gather:
      case operation::reduce: return is_root() ? elements : 0;
      default: return elements;
    }
  }

  /// Bus bandwidth / algorithm bandwidth, as nccl-tests/doc/PERFORMANCE.md defines it.
  [[nodiscard]] constexpr double bus_factor() const noexcept {
    const double peers = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    if (which == operation::all_reduce) return 2 * peers;
    return has_rows() ? peers : 1;
  }
};

}  // namespace coll_bench
