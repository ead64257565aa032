// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace ep_bench {

/// What the command line asks for, checked.
struct options {
  std::string transport = "ub";
  std::size_t ranks = 2;
  bool ranks_given = false;
  std::size_t tokens = 128;  ///< per rank
  std::size_t hidden = 7168;
  std::size_t top_k = 8;
  std::size_t experts = 256;
  std::string codec = "int8";
  std::string routing = "uniform";
  double zipf = 0;  ///< exponent of the experts' popularity; 0 is uniform
  std::size_t iterations = 200;
  std::size_t warmup = 20;
  std::uint64_t seed = 1;
  std::string json;         ///< empty: none
  std::optional<bool> pin;  ///< empty: if every rank can have a core of its own
};

inline constexpr int bad_command_line = 2;

/// Returns: the options, or the exit status after having printed the help (0) or what is wrong
/// with which option and what was expected (`bad_command_line`).
[[nodiscard]] std::variant<options, int> parse(int argc, char** argv);

/// The same words for what is found wrong only after the start.
void complain(const std::string& option, const std::string& text);

}  // namespace ep_bench
