// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coll_bench/elements.hpp"
#include "coll_bench/operation.hpp"

namespace coll_bench {

/// Whether MPI was there when this program was built.
extern const bool mpi_built;

/// The same operations by MPI, whose own errors end the job.
class mpi_calls {
 public:
  mpi_calls() = default;
  mpi_calls(const mpi_calls&) = delete;
  mpi_calls& operator=(const mpi_calls&) = delete;
  virtual ~mpi_calls() = default;

  /// The name and version of the library.
  [[nodiscard]] virtual std::string library() const = 0;
  /// Calls the operation; in place if both operands begin at the same byte or one lies in the
  /// other. MPI's reduce_scatter in place leaves its output elsewhere and is not to be called.
  virtual void call(const operation_shape& shape, const operands& given) const = 0;
};

/// Starts MPI, which the destructor ends. nullptr unless `mpi_built`. MPI cannot reduce bf16, and
/// takes operands of no more than 2^31 - 1 bytes; `parse` refuses both.
[[nodiscard]] std::unique_ptr<mpi_calls> start_mpi(std::string_view type,
                                                   std::string_view reduction);

}  // namespace coll_bench
