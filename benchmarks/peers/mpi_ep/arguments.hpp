// SPDX-License-Identifier: MIT
#pragma once

#include <variant>

#include "ep_bench/options.hpp"

namespace mpi_ep {

enum class rows { per_expert, per_rank };

struct arguments {
  ep_bench::options payload;  ///< as in ep_bench; what does not apply keeps its default
  rows sent = rows::per_expert;
  bool own_rows_travel = false;
};

/// Returns: the arguments, or the exit status after the help (0) or a complaint (2). Only rank 0
/// prints.
[[nodiscard]] std::variant<arguments, int> parse(int argc, char** argv, bool first_rank);

}  // namespace mpi_ep
