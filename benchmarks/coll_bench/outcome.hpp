// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "coll_bench/operation.hpp"
#include "support/samples.hpp"

namespace coll_bench {

/// What is found out about an operation of one size. Times are microseconds of a call, one for each
/// turn; wrong elements are those of the rank that has most.
enum class series : std::size_t {
  out_of_place,
  in_place,
  mpi_out_of_place,
  mpi_in_place,
  floor,
  wrong_out_of_place,
  wrong_in_place,
  wrong_mpi_out_of_place,
  wrong_mpi_in_place,
  uneven_whole,   ///< beside ranks that compute after each operation
  uneven_halves,  ///< beside ranks that compute between the halves of each operation
  wrong_halves
};
inline constexpr std::size_t series_count = 12;

/// The results of an operation of one size. On rank 0 only; a time that does not apply is 0.
struct row {
  operation_shape shape;
  std::size_t bytes = 0;
  std::size_t count = 0;        ///< elements that each rank contributes to another
  std::size_t floor_bytes = 0;  ///< that the floor copies at each rank
  bench::sample_table samples;  ///< by `series`
  std::string algorithm;        ///< that the team has chosen; "-" without a choice

  [[nodiscard]] const std::vector<double>& of(series which) const noexcept {
    return samples[static_cast<std::size_t>(which)];
  }
};

struct outcome {
  std::vector<row> rows;
  double hop_ns = 0;             ///< a cache line from rank 0 to rank 1, median; 0 with one rank
  std::size_t memory_bytes = 0;  ///< of the team, at each rank
  std::size_t cores = 0;         ///< that the ranks may use
  std::string library;           ///< MPI's name; empty without it
  std::string noise;             ///< signs that others disturbed the run; empty: none

  /// How many elements were wrong, in all that was checked.
  [[nodiscard]] double wrong() const noexcept {
    double sum = 0;
    for (const row& each : rows)
      for (const series which :
           {series::wrong_out_of_place, series::wrong_in_place, series::wrong_mpi_out_of_place,
            series::wrong_mpi_in_place, series::wrong_halves})
        sum += each.of(which).front();
    return sum;
  }
};

inline constexpr std::string_view bytes_formula =
    "size: the larger of input and output, in bytes; count: elements a rank gives another; "
    "algbw = size / time; busbw = algbw x 2(n-1)/n for all_reduce, 1 for broadcast and reduce, "
    "(n-1)/n for others; GB/s of 10^9";
inline constexpr std::string_view floor_formula =
    "each rank copies as many bytes out of its peers' windows as bus bandwidth counts, and its own "
    "row where the output has rows, once, all ranks at the same time without waiting for each "
    "other; "
    "of a barrier: two hops";

}  // namespace coll_bench
