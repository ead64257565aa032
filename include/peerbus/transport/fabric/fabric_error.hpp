// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/descriptors.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>

namespace peerbus::detail::ofi {

/// Returns libfabric's error for `result`, below 0. Its texts seldom name a lack of descriptors
/// (for an endpoint, "input/output error"), so this function checks for one.
inline error fabric_failure(std::string_view doing, long result) {
  const int reason = static_cast<int>(-result);
  const bool lacks_memory = reason == FI_ENOMEM;
  const std::string lack = lacks_memory ? std::string{} : describe_lack_of_descriptors(few);
  return error{lacks_memory ? errc::out_of_memory : errc::system,
               concat("fabric: ", doing, ": ", fi_strerror(reason), " (libfabric error ", reason,
                      ")", lack.empty() ? "" : "; ", lack)};
}

/// Checks that `result` is 0.
/// Throws: the error of `fabric_failure` if it is not.
inline void require(int result, std::string_view doing) {
  if (result != 0) throw fabric_failure(doing, result);
}

}  // namespace peerbus::detail::ofi
