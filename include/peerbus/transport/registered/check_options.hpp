// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail::registered {

/// Checks the options that all networks of requests have. `name` is the network's name, for the
/// error.
/// Throws: `error` invalid_argument if an option is outside its range.
template <class Options>
void check_options(std::string_view name, const Options& options) {
  const auto require = [name](bool ok, const auto&... text) {
    if (!ok) throw error{errc::invalid_argument, concat(name, ": ", text...)};
  };
  require(options.queue_depth >= 2 && options.queue_depth <= 16384, "queue_depth is ",
          options.queue_depth, ", expected 2 to 16384");
  require(options.bulk_slice >= 4096, "bulk_slice is ", options.bulk_slice,
          ", expected 4096 or more");
  require(options.bulk_in_flight >= options.bulk_slice, "bulk_in_flight is ",
          options.bulk_in_flight, ", expected at least bulk_slice, ", options.bulk_slice);
  require(options.stall_timeout.count() > 0, "stall_timeout is ", options.stall_timeout.count(),
          " ms, expected more");
}

}  // namespace peerbus::detail::registered
