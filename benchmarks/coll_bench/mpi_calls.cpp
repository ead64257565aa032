// SPDX-License-Identifier: MIT
#include "coll_bench/mpi_calls.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#if PEERBUS_BENCH_MPI
#include <mpi.h>

#include <algorithm>
#include <array>
#endif

namespace coll_bench {

#if PEERBUS_BENCH_MPI
namespace {

MPI_Datatype type_for(std::string_view name) {
  if (name == "f64") return MPI_DOUBLE;
  if (name == "i32") return MPI_INT32_T;
  if (name == "u8") return MPI_UINT8_T;
  if (name == "f32") return MPI_FLOAT;
  return MPI_UINT16_T;  // As many bytes, for operations that only move them.
}

MPI_Op reduction_for(std::string_view name) {
  if (name == "prod") return MPI_PROD;
  if (name == "min") return MPI_MIN;
  if (name == "max") return MPI_MAX;
  return MPI_SUM;
}

class started_mpi final : public mpi_calls {
 public:
  started_mpi(std::string_view type, std::string_view reduction)
      : type_{type_for(type)}, reduction_{reduction_for(reduction)} {
    MPI_Init(nullptr, nullptr);
    MPI_Type_size(type_, &bytes_);
  }
  ~started_mpi() override { MPI_Finalize(); }

  [[nodiscard]] std::string library() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string_view all{text.data(), static_cast<std::size_t>(length)};
    return std::string{all.substr(0, all.find(','))};
  }

  void call(const operation_shape& shape, const operands& given) const override {
    const std::span input{given.input};
    const std::span output{given.output};
    // Where an operand has a row of each rank, the other one may be a row of it.
    const auto* const first = input.data();
    const bool in_place = first == output.data() ||
                          (first > output.data() && first < output.data() + output.size()) ||
                          (output.data() > first && output.data() < first + input.size());
    const void* const from = in_place ? MPI_IN_PLACE : input.data();
    void* const to = output.data();
    const int root = static_cast<int>(shape.root);
    const bool is_root = shape.is_root();
    const int all = elements(std::max(input.size(), output.size()));
    const int each = all / (shape.has_rows() ? static_cast<int>(shape.ranks) : 1);
    switch (shape.which) {
      case operation::all_reduce:
        MPI_Allreduce(from, to, all, type_, reduction_, MPI_COMM_WORLD);
        break;
      case operation::all_gather:
        MPI_Allgather(from, each, type_, to, each, type_, MPI_COMM_WORLD);
        break;
      case operation::all_to_all:
        MPI_Alltoall(from, each, type_, to, each, type_, MPI_COMM_WORLD);
        break;
      case operation::reduce_scatter:
        MPI_Reduce_scatter_block(from, to, each, type_, reduction_, MPI_COMM_WORLD);
        break;
      case operation::broadcast: MPI_Bcast(to, all, type_, root, MPI_COMM_WORLD); break;
      case operation::reduce:
        MPI_Reduce(is_root ? from : input.data(), to, elements(input.size()), type_, reduction_,
                   root, MPI_COMM_WORLD);
        break;
      case operation::gather:
        MPI_Gather(is_root ? from : input.data(), elements(input.size()), type_, to,
                   elements(input.size()), type_, root, MPI_COMM_WORLD);
        break;
      case operation::scatter:
        MPI_Scatter(input.data(), elements(output.size()), type_,
                    is_root && in_place ? MPI_IN_PLACE : to, elements(output.size()), type_, root,
                    MPI_COMM_WORLD);
        break;
      case operation::barrier: MPI_Barrier(MPI_COMM_WORLD); break;
    }
  }

 private:
  [[nodiscard]] int elements(std::size_t bytes) const noexcept {
    return static_cast<int>(bytes / static_cast<std::size_t>(bytes_));
  }

  MPI_Datatype type_;
  MPI_Op reduction_;
  int bytes_ = 1;
};

}  // namespace

const bool mpi_built = true;

std::unique_ptr<mpi_calls> start_mpi(std::string_view type, std::string_view reduction) {
  return std::make_unique<started_mpi>(type, reduction);
}

#else

const bool mpi_built = false;

std::unique_ptr<mpi_calls> start_mpi(std::string_view, std::string_view) { return nullptr; }

#endif

}  // namespace coll_bench
