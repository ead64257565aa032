// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace moe_text {

enum class wire_codec { int8, bf16 };
enum class transport { ub, verbs };

struct options {
  std::string file;
  std::size_t ranks = 8;
  std::size_t experts = 64;
  std::size_t top_k = 8;
  std::size_t hidden = 256;
  std::size_t balance = 0;  ///< places for replicas at each rank; 0: experts stay where they are
  wire_codec codec = wire_codec::int8;
  transport bus = transport::ub;

  /// Returns the places for experts of each rank: those of the experts, and `balance` more.
  [[nodiscard]] std::size_t places_per_rank() const {
    return (experts + ranks - 1) / ranks + balance;
  }
};

/// Returns the options that the command line asks for. If it asks for help only, prints the help
/// and returns nothing.
/// Throws: `std::invalid_argument` with the given and the expected value.
std::optional<options> parse(int argc, const char* const* argv);

}  // namespace moe_text
