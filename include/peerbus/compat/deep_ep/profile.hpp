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
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

/// Whether a call of DeepEP's API would work on another platform, said before anyone has one.
/// docs/profiles.md has the limits and where they come from.
namespace peerbus::deep_ep {

/// The platform whose limits hold.
enum class profile : std::uint8_t {
  unrestricted,  ///< peerbus, anywhere
  deepep_v1,     ///< DeepEP on NVIDIA GPUs, its `Buffer`
  ascend_a2,     ///< DeepEP-Ascend on Atlas A2
  ascend_a3      ///< DeepEP-Ascend on Atlas A3, of which CloudMatrix384 is built
};

inline constexpr std::array all_profiles{profile::unrestricted, profile::deepep_v1,
                                         profile::ascend_a2, profile::ascend_a3};

constexpr std::string_view to_string(profile platform) noexcept {
  switch (platform) {
    case profile::unrestricted: return "unrestricted";
    case profile::deepep_v1: return "deepep_v1";
    case profile::ascend_a2: return "ascend_a2";
    case profile::ascend_a3: return "ascend_a3";
  }
  return "unknown";
}

/// Calls `visit(const finding&)` for each thing that the platform does not do as asked, in a fixed
/// order. Allocates nothing and looks at nothing but the call: right for every call of a program.
template <class Visit>
constexpr void examine(profile platform, const call& c, Visit&& visit) {
  detail::checker check{visit};
  switch (platform) {
    case profile::unrestricted: return detail::check_unrestricted(c, check);
    case profile::deepep_v1: return detail::check_deepep_v1(c, check);
    case profile::ascend_a2: return detail::check_ascend(detail::ascend::a2, c, check);
    case profile::ascend_a3: return detail::check_ascend(detail::ascend::a3, c, check);
  }
}

/// Whether a program may not rely on what the finding is about. An argument that the platform
/// ignores counts: who passes it expects it to do something.
constexpr bool refuses(const finding& f) noexcept { return f.kind != finding_kind::differs; }

/// Whether the call works there, though results may look different.
constexpr bool fits(profile platform, const call& c) {
  bool all = true;
  examine(platform, c, [&all](const finding& f) { all = all && !refuses(f); });
  return all;
}

/// The platform's name, and the finding in words.
inline std::string describe(profile platform, const finding& f) {
  return peerbus::detail::concat(to_string(platform), ": ", describe(f));
}

/// Throws: `error` (`invalid_argument`) with all that the platform refuses of the call: each limit,
/// the value, and what to change.
inline void require(profile platform, const call& c) {
  if (fits(platform, c)) return;
  std::string text =
      peerbus::detail::concat(to_string(platform), " refuses ", to_string(c.what), ": ");
  bool first = true;
  examine(platform, c, [&](const finding& f) {
    if (!refuses(f)) return;
    text += peerbus::detail::concat(first ? "" : "; ", describe(f));
    first = false;
  });
  throw error{errc::invalid_argument, text};
}

/// HCCL_BUFFSIZE that the call needs there, in MB; 0 where no rule says.
constexpr std::size_t required_hccl_buffsize_mb(profile platform, const call& c) noexcept {
  if (platform == profile::ascend_a2) return detail::ascend_hccl_buffsize_mb(detail::ascend::a2, c);
  if (platform == profile::ascend_a3) return detail::ascend_hccl_buffsize_mb(detail::ascend::a3, c);
  return 0;
}

}  // namespace peerbus::deep_ep
