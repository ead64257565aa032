// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include <peerbus/core/text.hpp>

namespace peerbus::topology {

/// The value of a member of `cpu_place` that the machine does not report, or that differs among the
/// cpus that a rank may use.
inline constexpr std::uint32_t unknown = 0xFFFF'FFFF;

/// The location of a logical processor. A core, cache or package has the number of the lowest cpu
/// in it, and a node has the system's number. So processes that may use different parts of one
/// machine agree about the numbers.
struct cpu_place {
  std::uint32_t cpu = unknown;      ///< the logical processor, by the system's number
  std::uint32_t core = unknown;     ///< the core that contains this hardware thread
  std::uint32_t l3 = unknown;       ///< the third-level cache that it uses
  std::uint32_t node = unknown;     ///< the NUMA node next to it
  std::uint32_t package = unknown;  ///< the package, or socket, that contains it

  friend bool operator==(const cpu_place&, const cpu_place&) = default;
};
static_assert(std::is_trivially_copyable_v<cpu_place>);  // It travels as bytes.

/// Returns whether `a` and `b` are equal and not `unknown`.
[[nodiscard]] constexpr bool same_known(std::uint32_t a, std::uint32_t b) noexcept {
  return a == b && a != unknown;
}

/// Returns text such as "cpu 3, core 2, L3 0, node 1, package 0", without the unknown members.
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
