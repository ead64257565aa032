// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/compat/cann/attention_apart.hpp>
#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>

namespace deep_ep_check {

/// The part of DeepEP's API to which the calls belong, or CANN's operators between attention and
/// experts.
enum class call_mode { low_latency, normal, ep, a2e };

/// Returns the name of the mode on the command line.
constexpr std::string_view to_string(call_mode mode) noexcept {
  switch (mode) {
    case call_mode::low_latency: return "low-latency";
    case call_mode::normal: return "normal";
    case call_mode::ep: return "ep";
    case call_mode::a2e: return "a2e";
  }
  return "unknown";
}

struct options {
  call_mode mode = call_mode::low_latency;
  /// The call without its member `what`: dispatch and combine of the mode are both checked.
  peerbus::deep_ep::call call;
  /// With the mode a2e: the call on no rank in particular, instead of `call`.
  peerbus::cann::apart_call apart;
  std::size_t in_flight = 2;
  std::vector<peerbus::deep_ep::profile> profiles;  ///< the platforms to report
  bool has_named_profiles = false;                  ///< the user named the platforms
  bool wants_json = false;
  std::vector<std::string> arguments;  ///< the command line as it was given
};

/// Reads the command line. After --help, ends the process with status 0. If something is wrong,
/// prints an error and ends the process with status 2.
options parse(int argc, char** argv);

}  // namespace deep_ep_check
