// SPDX-License-Identifier: MIT
#include "results.hpp"

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_result_wait(peerbus_result* result) {
  return guarded([&] {
    std::visit(
        [](const auto& left) {
          if constexpr (requires { left.hook; })
            if (left.hook) return left.hook();
          left.event.current_stream_wait();
        },
        usable(result, "buffer of the result").value);
  });
}

void peerbus_result_destroy(peerbus_result** result) { destroy(result); }
