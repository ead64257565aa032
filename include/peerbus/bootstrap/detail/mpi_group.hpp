// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Checks the result of an MPI function.
/// Throws: `error` system with MPI's text.
inline void require_mpi(int code, std::string_view doing) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  (void)::MPI_Error_string(code, text.data(), &length);
  throw error{errc::system, concat("MPI failed at ", doing, ": ", text.data())};
}

/// True if MPI has sessions. Open MPI 5 has them although it says that it is MPI 3.1.
#if MPI_VERSION >= 4 || defined(MPI_ERR_SESSION)
inline constexpr bool has_mpi_sessions = true;
#else
inline constexpr bool has_mpi_sessions = false;
#endif

/// A communicator that returns its errors to the caller while this object lives.
class mpi_group {
 public:
  /// Checks that MPI is running and that `group` can be used.
  /// Throws: `error` invalid_argument, system.
  explicit mpi_group(MPI_Comm group) : group_{group} {
    int answer = 0;
    require_mpi(::MPI_Initialized(&answer), "asking whether it is initialised");
    if (answer == 0) {
      // With sessions MPI counts as not initialised, although communicators of theirs work.
      // Nothing else tells whether there is a session, and MPI_COMM_WORLD is in none.
      if constexpr (!has_mpi_sessions)
        throw bad("MPI is not initialised, expected a call after MPI_Init; it has no sessions");
      if (group == MPI_COMM_WORLD || group == MPI_COMM_SELF || group == MPI_COMM_NULL)
        throw bad(
            "MPI is not initialised, expected a call after MPI_Init, or a communicator of a "
            "session");
    }
    require_mpi(::MPI_Finalized(&answer), "asking whether it is finalised");
    if (answer != 0) throw bad("MPI is finalised, expected a call before MPI_Finalize");
    if (group == MPI_COMM_NULL)
      throw bad("MPI_COMM_NULL was given, expected a communicator that this process belongs to");
    require_mpi(::MPI_Comm_test_inter(group, &answer), "asking for the kind of communicator");
    if (answer != 0) throw bad("an intercommunicator was given, expected an intracommunicator");
    require_mpi(::MPI_Comm_get_errhandler(group, &handler_before_), "asking for the error handler");
    (void)::MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
  }
  mpi_group(const mpi_group&) = delete;
  mpi_group& operator=(const mpi_group&) = delete;
  ~mpi_group() {
    (void)::MPI_Comm_set_errhandler(group_, handler_before_);
    (void)::MPI_Errhandler_free(&handler_before_);
  }

  [[nodiscard]] std::size_t rank() const { return ask(::MPI_Comm_rank, "asking for the rank"); }
  [[nodiscard]] std::size_t size() const { return ask(::MPI_Comm_size, "asking for the size"); }

  /// Collective: gives `bytes` of each rank to all ranks. All ranks give the same number of bytes.
  [[nodiscard]] std::vector<std::byte> allgather(std::vector<std::byte> bytes,
                                                 deadline until) const {
    struct memory {
      std::vector<std::byte> given;
      std::vector<std::byte> taken;
    };
    auto used = std::make_unique<memory>();
    used->taken.resize(bytes.size() * size());
    used->given = std::move(bytes);
    const int count = static_cast<int>(used->given.size());
    return finish(std::move(used), until, "gathering hosts and the meeting place",
                  [&](memory& buffers, MPI_Request* started) {
                    return ::MPI_Iallgather(buffers.given.data(), count, MPI_BYTE,
                                            buffers.taken.data(), count, MPI_BYTE, group_, started);
                  })
        ->taken;
  }

 private:
  [[nodiscard]] static error bad(std::string_view text) {
    return error{errc::invalid_argument, concat("mpi_bootstrap: ", text)};
  }

  [[nodiscard]] std::size_t ask(int (*question)(MPI_Comm, int*), std::string_view doing) const {
    int answer = 0;
    require_mpi(question(group_, &answer), doing);
    return static_cast<std::size_t>(answer);
  }

  /// Starts an operation on `memory` and waits for it. MPI cannot cancel a collective, so after a
  /// time-out `memory` stays allocated forever.
  /// Returns: `memory`.
  template <class T, class Start>
  [[nodiscard]] static std::unique_ptr<T> finish(std::unique_ptr<T> memory, deadline until,
                                                 std::string_view doing, Start start) {
    const auto span = until.remaining();
    MPI_Request request = MPI_REQUEST_NULL;
    require_mpi(start(*memory, &request), doing);
    for (std::vector<pollfd> nothing;; poll_for(nothing, until, std::chrono::milliseconds{1})) {
      int done = 0;
      const int code = ::MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (code == MPI_SUCCESS && done != 0) return memory;
      if (code == MPI_SUCCESS && !until.expired()) continue;
      (void)memory.release();
      require_mpi(code, doing);
      throw error{errc::timed_out,
                  concat("MPI was not done with ", doing, " within ", describe_span(span),
                         ": expected all ranks of the communicator to call mpi_bootstrap")};
    }
  }

  MPI_Comm group_;
  MPI_Errhandler handler_before_ = MPI_ERRHANDLER_NULL;
};

}  // namespace peerbus::detail
