// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include <peerbus/core/text.hpp>

namespace peerbus::topology {

/// What `cpu_place` holds where the machine does not tell, or where a rank may be in several.
inline constexpr std::uint32_t unknown = 0xFFFF'FFFF;

/// Where one logical processor lies. Cores, caches and packages go by the lowest cpu in them and
/// nodes by the system's number, so that processes that may use different parts of one machine
/// mean the same by the same number.
struct cpu_place {
  std::uint32_t cpu = unknown;
  std::uint32_t core = unknown;
  std::uint32_t l3 = unknown;
  std::uint32_t node = unknown;
  std::uint32_t package = unknown;

  friend bool operator==(const cpu_place&, const cpu_place&) = default;
};
static_assert(std::is_trivially_copyable_v<cpu_place>);  // It travels as bytes.

/// The same number in both, and a known one.
[[nodiscard]] constexpr bool same_known(std::uint32_t a, std::uint32_t b) noexcept {
  return a == b && a != unknown;
}

/// "cpu 3, core 2, L3 0, node 1, package 0", what is unknown left out.
[[nodiscard]] inline std::string to_string(const cpu_place& place) {
  std::string text;
  const auto add = [&text](const char* name, std::uint32_t number) {
    if (number != unknown)
      text += peerbus::detail::concat(text.empty() ? "" : ", ", name, " ", number);
  };
  add("cpu", place.cpu);
  add("core", place.core);
  add("L3", place.l3);
  add("node", place.node);
  add("package", place.package);
  return text.empty() ? "nothing known" : text;
}

}  // namespace peerbus::topology
