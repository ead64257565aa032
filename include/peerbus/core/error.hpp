// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <peerbus/core/text.hpp>  // IWYU pragma: export

namespace peerbus {

/// What a data-path call returns, and what an `error` carries. The numbers cross process
/// boundaries (a refusing rank tells its peers why), so they are fixed.
enum class errc : std::uint32_t {
  ok = 0,
  invalid_argument = 1,  ///< a value outside what the function accepts
  out_of_range = 2,      ///< bytes outside a window, a rank outside the group
  mismatch = 3,          ///< ranks were configured differently
  out_of_memory = 4,     ///< the memory asked for is not there
  timed_out = 5,         ///< the deadline passed first
  peer_dead = 6,         ///< a peer died or left before it did its part
  poisoned = 7,          ///< an earlier failure left the ranks out of step; build a new one
  refused = 8,           ///< another rank refused its input, so the operation did not happen
  unsupported = 9,       ///< this transport or machine cannot do it
  system = 10,           ///< the operating system said no; the text has its reason
  unreachable = 11,      ///< the connection to a peer broke, though the peer may be alive
};

constexpr std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::ok: return "ok";
    case errc::invalid_argument: return "invalid argument";
    case errc::out_of_range: return "out of range";
    case errc::mismatch: return "ranks disagree";
    case errc::out_of_memory: return "out of memory";
    case errc::timed_out: return "timed out";
    case errc::peer_dead: return "peer dead";
    case errc::poisoned: return "poisoned";
    case errc::refused: return "refused by a peer";
    case errc::unsupported: return "unsupported";
    case errc::system: return "system error";
    case errc::unreachable: return "peer unreachable";
  }
  return "unknown error code";
}

/// The one exception type of the control path. `what()` says what was given and what was
/// expected; `code()` is for programs.
class error : public std::runtime_error {
 public:
  error(errc code, std::string_view text);

  [[nodiscard]] errc code() const noexcept { return code_; }
  /// `what()` without the library's name and the code: for errors that quote this one.
  [[nodiscard]] std::string_view text() const noexcept;

 private:
  errc code_;
  std::size_t text_bytes_;
};

/// Turns the code of a data-path call into an `error` that says what was being done.
/// Throws: `error` with `code` unless it is `errc::ok`.
inline void check(errc code, std::string_view doing) {
  if (code != errc::ok) throw error{code, doing};
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/error.hpp>  // IWYU pragma: keep
#endif
