// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string_view>

#include "support/ranks.hpp"

/// Ranks that are started through C's interface.
namespace embed_c {

enum class kind { threads, processes };

inline constexpr std::int64_t second = 1'000'000'000;  ///< in the unit of C's time limits

/// Calls `body(comm)` on `ranks` ranks. Returns the greatest status: 1 for a rank whose body threw.
template <class Body>
int run(std::uint64_t ranks, kind how, Body body, const peerbus_comm_options* options = nullptr) {
  const auto rank = [](peerbus_comm* comm, void* context) -> std::int32_t {
    try {
      (*static_cast<Body*>(context))(comm);
      return 0;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(peerbus_comm_rank(comm)),
                   problem.what());
      return 1;
    }
  };
  std::int32_t status = -1;
  const auto start = how == kind::threads ? peerbus_run_threads : peerbus_run_processes;
  if (start(ranks, rank, &body, options, &status) != PEERBUS_OK) return -1;
  return status;
}

/// Requires that a call succeeded.
inline void ok(peerbus_code code, std::string_view call) {
  if (code != PEERBUS_OK) test::fail(call, ": ", peerbus_last_error());
}

/// Requires that a call failed with `expected` and a text that has `fragment`.
inline void fails(peerbus_code code, peerbus_code expected, std::string_view fragment) {
  const std::string_view text = peerbus_last_error();
  if (code != expected)
    test::fail("returned '", peerbus_code_text(code), "' (", text, "), expected '",
               peerbus_code_text(expected), "' about '", fragment, "'");
  if (text.find(fragment) == std::string_view::npos)
    test::fail("said '", text, "', expected it to say '", fragment, "'");
}

}  // namespace embed_c
