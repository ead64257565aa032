// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>

namespace peerbus::detail::ofi {

/// Returns the error of a call that returned `result`, below 0, in libfabric's words.
inline error fabric_failure(std::string_view doing, long result) {
  const int reason = static_cast<int>(-result);
  return error{reason == FI_ENOMEM ? errc::out_of_memory : errc::system,
               concat("fabric: ", doing, ": ", fi_strerror(reason), " (libfabric error ", reason,
                      ")", reason == FI_EMFILE ? "; see `ulimit -n`" : "")};
}

/// Throws: `fabric_failure` unless `result` is 0.
inline void require(int result, std::string_view doing) {
  if (result != 0) throw fabric_failure(doing, result);
}

}  // namespace peerbus::detail::ofi
