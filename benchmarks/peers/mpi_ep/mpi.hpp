// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

namespace mpi_ep {

/// MPI from its start to its end. Its errors end the whole job with a message, as MPI does unless
/// told otherwise, so that nothing here looks at return codes.
class session {
 public:
  session(int* argc, char*** argv) { MPI_Init(argc, argv); }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { MPI_Finalize(); }

  [[nodiscard]] static std::size_t rank() noexcept {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] static std::size_t ranks() noexcept {
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return static_cast<std::size_t>(ranks);
  }
};

/// Rows of one size that travel between all ranks in one MPI_Alltoallv. Rows of a rank to itself do
/// not go through MPI: whoever fills the buffers puts them where they belong.
class row_exchange {
 public:
  row_exchange(std::size_t row_bytes, std::size_t ranks)
      : send_counts_(ranks), send_firsts_(ranks), receive_counts_(ranks), receive_firsts_(ranks) {
    MPI_Type_contiguous(static_cast<int>(row_bytes), MPI_BYTE, &row_);
    MPI_Type_commit(&row_);
  }
  row_exchange(const row_exchange&) = delete;
  row_exchange& operator=(const row_exchange&) = delete;
  ~row_exchange() { MPI_Type_free(&row_); }

  void send(std::size_t rank, std::size_t first, std::size_t count) noexcept {
    send_counts_[rank] = static_cast<int>(count);
    send_firsts_[rank] = static_cast<int>(first);
  }
  void receive(std::size_t rank, std::size_t first, std::size_t count) noexcept {
    receive_counts_[rank] = static_cast<int>(count);
    receive_firsts_[rank] = static_cast<int>(first);
  }

  /// Collective.
  void run(const void* from, void* to) noexcept {
    MPI_Alltoallv(from, send_counts_.data(), send_firsts_.data(), row_, to, receive_counts_.data(),
                  receive_firsts_.data(), row_, MPI_COMM_WORLD);
  }

 private:
  MPI_Datatype row_{};
  std::vector<int> send_counts_;
  std::vector<int> send_firsts_;
  std::vector<int> receive_counts_;
  std::vector<int> receive_firsts_;
};

/// Collective. Returns: what the first rank that has found something says, or nothing.
inline std::string first_of_all(const std::string& mine) {
  std::array<char, 256> text{};
  std::copy_n(mine.begin(), std::min(mine.size(), text.size() - 1), text.begin());
  std::vector<char> all(text.size() * session::ranks());
  MPI_Allgather(text.data(), text.size(), MPI_CHAR, all.data(), text.size(), MPI_CHAR,
                MPI_COMM_WORLD);
  for (std::size_t at = 0; at < all.size(); at += text.size())
    if (all[at] != '\0') return all.data() + at;  // Ends with a zero.
  return {};
}

/// Collective. Returns: element by element the largest of all ranks, on rank 0 only.
inline std::vector<double> slowest(const std::vector<double>& mine) {
  std::vector<double> result(mine.size());
  MPI_Reduce(mine.data(), result.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_MAX, 0,
             MPI_COMM_WORLD);
  return result;
}

}  // namespace mpi_ep
