// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_limits.hpp>
#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/detail/deepep_v1_limits.hpp>
#include <peerbus/compat/deep_ep/detail/ep_limits.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

/// @file
/// Checks whether a call of DeepEP's API would work on another platform, without needing that
/// platform. docs/profiles.md lists the limits and their sources.
namespace peerbus::deep_ep {

/// A platform whose limits a call is checked against.
enum class profile : std::uint8_t {
  unrestricted,  ///< peerbus itself, on any machine
  deepep_v1,     ///< the `Buffer` of DeepEP, on NVIDIA GPUs
  ascend_a2,     ///< DeepEP-Ascend on Atlas A2
  ascend_a3,     ///< DeepEP-Ascend on Atlas A3, the servers of CloudMatrix384
  deepep_v2_5,   ///< the `EPBuffer` of DeepEP, on NVIDIA GPUs
  ascend_950     ///< the `EPBuffer` of DeepSeek's DeepEP-Ascend, on Ascend 950DT
};

/// Every profile, for programs that examine a call for each.
inline constexpr std::array all_profiles{profile::unrestricted, profile::deepep_v1,
                                         profile::ascend_a2,    profile::ascend_a3,
                                         profile::deepep_v2_5,  profile::ascend_950};

/// Returns the name of the enumerator, or "unknown".
constexpr std::string_view to_string(profile platform) noexcept {
  switch (platform) {
    case profile::unrestricted: return "unrestricted";
    case profile::deepep_v1: return "deepep_v1";
    case profile::ascend_a2: return "ascend_a2";
    case profile::ascend_a3: return "ascend_a3";
    case profile::deepep_v2_5: return "deepep_v2_5";
    case profile::ascend_950: return "ascend_950";
  }
  return "unknown";
}

/// Calls `visit(const finding&)` for each thing that the platform does not do as the call asks, in
/// a fixed order. Reads only the call and allocates nothing, so that a program can examine each of
/// its calls.
template <class Visit>
constexpr void examine(profile platform, const call& c, Visit&& visit) {
  detail::checker check{visit};
  switch (platform) {
    case profile::unrestricted: return detail::check_unrestricted(c, check);
    case profile::deepep_v1: return detail::check_deepep_v1(c, check);
    case profile::ascend_a2: return detail::check_ascend(detail::ascend::a2, c, check);
    case profile::ascend_a3: return detail::check_ascend(detail::ascend::a3, c, check);
    case profile::deepep_v2_5: return detail::check_deepep_v2_5(c, check);
    case profile::ascend_950: return detail::check_ascend_950(c, check);
  }
}

/// Returns whether the finding means that a program cannot rely on the call. An argument that the
/// platform ignores counts, because a caller who passes it expects an effect.
constexpr bool refuses(const finding& f) noexcept { return f.kind != finding_kind::differs; }

/// Returns whether the call works on the platform. Its results may look different there.
constexpr bool fits(profile platform, const call& c) {
  bool all = true;
  examine(platform, c, [&all](const finding& f) { all = all && !refuses(f); });
  return all;
}

/// Returns the name of the platform and the finding in words.
inline std::string describe(profile platform, const finding& f) {
  return peerbus::detail::concat(to_string(platform), ": ", describe(f));
}

namespace detail {

/// Requires that a call of any type that has an `examine` works on the platform.
/// Throws: as `require`.
template <class Call>
void require_of(profile platform, const Call& c) {
  std::string text;
  examine(platform, c, [&](const finding& f) {
    if (refuses(f)) text += concat(text.empty() ? "" : "; ", describe(f));
  });
  if (!text.empty())
    throw error{errc::invalid_argument,
                concat(to_string(platform), " refuses ", to_string(c.what), ": ", text)};
}

}  // namespace detail

/// Requires that the call works on the platform.
/// Throws: `error` (`invalid_argument`) that lists everything that the platform refuses of the
/// call: each limit, the value, and the change to make.
inline void require(profile platform, const call& c) { detail::require_of(platform, c); }

/// Returns the HCCL_BUFFSIZE that the call needs on the platform, in MB, or 0 if no rule is
/// published.
constexpr std::size_t required_hccl_buffsize_mb(profile platform, const call& c) noexcept {
  if (platform == profile::ascend_a2) return detail::ascend_hccl_buffsize_mb(detail::ascend::a2, c);
  if (platform == profile::ascend_a3) return detail::ascend_hccl_buffsize_mb(detail::ascend::a3, c);
  return 0;
}

}  // namespace peerbus::deep_ep
