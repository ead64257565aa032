// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <peerbus/core/text.hpp>  // IWYU pragma: export

namespace peerbus {

/// The result of a data-path call, and the reason that an `error` carries. The numbers never
/// change, because processes exchange them: a rank that refuses its input sends the reason to its
/// peers.
enum class errc : std::uint32_t {
  ok = 0,                ///< the call has done what was asked
  invalid_argument = 1,  ///< a value outside what the function accepts
  out_of_range = 2,      ///< bytes outside a window, a rank outside the group
  mismatch = 3,          ///< ranks were configured differently
  out_of_memory = 4,     ///< the requested memory is not available
  timed_out = 5,         ///< the deadline passed first
  peer_dead = 6,         ///< a peer died, left or was given up before it had done its part
  poisoned = 7,          ///< an earlier failure left the ranks out of step; build a new one
  refused = 8,           ///< another rank refused its input, so the operation did not happen
  unsupported = 9,       ///< this transport or machine cannot do it
  system = 10,           ///< a system call failed; the text has the reason
  unreachable = 11,      ///< the connection to a peer broke, though the peer may be alive
  view_changed = 12,     ///< ranks went on without others; resume the objects that were made before
};

/// Returns the meaning of `code` in a few words, for messages.
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
    case errc::view_changed: return "view changed";
  }
  return "unknown error code";
}

/// The only exception type of the control path. `what()` states the given and the expected values,
/// for people. `code()` is for programs.
class error : public std::runtime_error {
 public:
  /// Makes an error whose `what()` is "peerbus: ", then `text`, then the code in brackets.
  error(errc code, std::string_view text);

  /// Returns the kind of failure, which is how a program tells failures apart.
  [[nodiscard]] errc code() const noexcept { return code_; }
  /// Returns `what()` without the library's name and the code, for errors that quote this one.
  /// The view is valid as long as the error.
  [[nodiscard]] std::string_view text() const noexcept;

 private:
  errc code_;
  std::size_t text_bytes_;
};

/// Throws an `error` with `code` unless it is `errc::ok`. `doing` names the activity that failed,
/// such as "sending the letter".
/// Throws: `error` with `code`.
inline void(check)(errc code, std::string_view doing) {
  if (code != errc::ok) throw error{code, doing};
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/error.ipp>  // IWYU pragma: keep
#endif
