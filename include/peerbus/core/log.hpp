// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>

/// @file
/// Logs of the choices of the library. Functions named `log_choices` give a sink one line for each
/// choice, with its reason and the setting that changes it. The library itself logs nothing.
namespace peerbus {

/// The level of a line. A log of a level also contains the lines of the levels listed before it.
enum class log_level : std::uint8_t {
  info,  ///< a choice that changes speed or memory
  debug  ///< the numbers behind choices
};

/// Returns the name of `level`: "info" or "debug".
constexpr std::string_view describe(log_level level) noexcept {
  return level == log_level::info ? "info" : "debug";
}

/// A reference to a callable that takes the lines of a log, each without an end of line. A function
/// that is given a sink calls it on the calling thread, before it returns.
using log_sink = detail::function_ref<void(log_level level, std::string_view line)>;

/// A sink that writes to the standard error stream, such as `peerbus[3] info: relay never: ...` for
/// rank 3. Each line is one system call, so that lines of several ranks do not mix.
class stderr_log {
 public:
  /// Makes a sink that writes nothing.
  stderr_log() = default;
  /// Makes the sink of `rank` that writes lines of the levels up to `most`.
  stderr_log(rank_id rank, log_level most) noexcept : rank_{rank}, most_{most}, is_on_{true} {}
  /// Makes the sink of `rank` that the environment variable PEERBUS_LOG asks for: "info" or
  /// "debug". Without the variable, or if it is empty, the sink writes nothing.
  /// Throws: `error` invalid_argument for another value.
  static stderr_log from_environment(rank_id rank);

  /// Returns whether the sink writes any lines.
  [[nodiscard]] explicit operator bool() const noexcept { return is_on_; }
  /// Writes `line` if the sink writes lines of `level`. A line that cannot be written is lost.
  void operator()(log_level level, std::string_view line) const;

 private:
  rank_id rank_{};
  log_level most_ = log_level::info;
  bool is_on_ = false;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/log.ipp>  // IWYU pragma: keep
#endif
