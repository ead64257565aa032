// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "support/network_options.hpp"

namespace put_bench {

/// The bytes between two rows. They keep a transport that merges neighbours from making one message
/// of many.
inline constexpr std::size_t gap_of_rows = 512;

struct options : bench::network_options {
  std::string transport = "ub";
  std::vector<std::string> contenders{};  ///< groups of them; empty: all that this build has
  std::vector<std::string> parts{};       ///< empty: all that the transport has
  std::vector<std::size_t> latency_bytes{};
  std::vector<std::size_t> bandwidth_bytes{65'536, 1'048'576, 4'194'304};
  std::vector<std::size_t> order_bytes{200, 4096, 65'536, 1'048'576};
  std::size_t row_bytes = 7680;
  std::size_t rows = 1024;
  std::size_t rounds = 0;
  std::size_t blocks = 0;
  std::size_t order_rounds = 200;
  std::size_t volume = std::size_t{32} << 20U;
  std::vector<std::size_t> memory_ranks{2, 8};
  std::uint32_t queue_depth = 64;
  std::string ucx_transports = "posix";
  std::string bootstrap = "auto";
  std::string json;

  /// Returns whether the ranks load and store in each other's memory.
  [[nodiscard]] bool in_memory() const noexcept {
    return transport == "ub" || transport == "loopback";
  }
  /// Returns the most bytes of memory that a stream takes at either end.
  [[nodiscard]] std::size_t largest_stream() const;
  /// Returns whether the part was asked for, or is one of those that are measured anyway.
  [[nodiscard]] bool wants(const std::string& part) const;
  /// Returns whether the contenders of this name take part.
  [[nodiscard]] bool has(const std::string& group) const;
};

/// Returns the options, or the exit status of a program that is to end at once.
[[nodiscard]] std::variant<options, int> parse(int argc, char** argv);

}  // namespace put_bench
