// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <peerbus/collective/algorithm.hpp>

namespace peerbus::collective::detail {

/// A member of `access_costs` with its name in tables.
struct named_cost {
  std::string_view name;
  double access_costs::* member;
};
inline constexpr std::array<named_cost, 6> named_costs{
    {{"round_us", &access_costs::round_us},
     {"message_us", &access_costs::message_us},
     {"byte_ns", &access_costs::byte_ns},
     {"ring_byte_ns", &access_costs::ring_byte_ns},
     {"near_byte_ns", &access_costs::near_byte_ns},
     {"reduce_byte_ns", &access_costs::reduce_byte_ns}}};

/// The name of a cost in a table, such as "collective.puts.round_us".
class cost_name {
 public:
  constexpr cost_name(page_access access, const named_cost& cost) noexcept {
    for (const std::string_view part :
         {std::string_view{"collective."}, name_of(access), std::string_view{"."}, cost.name}) {
      std::copy(part.begin(), part.end(), text_.begin() + size_);
      size_ += static_cast<std::ptrdiff_t>(part.size());
    }
  }
  /// Returns the name, which lies in this object.
  [[nodiscard]] constexpr std::string_view view() const noexcept {
    return {text_.data(), static_cast<std::size_t>(size_)};
  }

 private:
  std::array<char, 48> text_{};
  std::ptrdiff_t size_ = 0;
};

}  // namespace peerbus::collective::detail
