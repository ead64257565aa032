// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The part of one rank in a meeting: `size` ranks find each other until a deadline.
struct meeting {
  std::size_t rank;
  std::size_t size;
  deadline until;
  /// The whole time that the ranks have, for messages.
  deadline::clock::duration span = until.remaining();
};

/// Where ranks meet, and who may call there. Rank 0 opens the place and the others call. Everything
/// else about a meeting is the same for all places (`meeting_host`, `meeting_joiner`).
///
/// A connection that a function takes or returns has not shaken hands yet.
class meeting_place {
 public:
  meeting_place() = default;
  meeting_place(const meeting_place&) = delete;
  meeting_place& operator=(const meeting_place&) = delete;
  virtual ~meeting_place() = default;

  /// "node0:29500", for messages.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// How many connections each rank makes.
  [[nodiscard]] virtual std::size_t channels() const noexcept = 0;
  /// Prepares a connection that has shaken hands for its channel.
  virtual void tune(const connection& /*link*/, std::size_t /*channel*/) const noexcept {}

  /// Returns listening sockets, or none if another process has the place. Throws: `error` system.
  [[nodiscard]] virtual std::vector<unique_fd> open() = 0;
  /// Returns the connection to a caller, or an empty one if it may not come here.
  [[nodiscard]] virtual connection admit(unique_fd caller) = 0;
  /// Says who the caller is. Null is the process that opened the place.
  [[nodiscard]] virtual std::string describe_caller(const connection* caller) const = 0;
  /// Says where rank 0 listens, if that is more than `describe()`; else empty.
  [[nodiscard]] virtual std::string describe_addresses() const { return {}; }

  /// Calls rank 0 once. Returns the connection, or an empty one with errno set if nobody answers
  /// yet. Throws: `error` system.
  [[nodiscard]] virtual connection call(deadline until) = 0;
  /// Says why rank 0 may be out of reach, after `call` has set errno to `number`.
  [[nodiscard]] virtual std::string describe_silence(int number) const = 0;
  /// Says what differs between rank 0 and this rank after a handshake ended as `how`.
  [[nodiscard]] virtual std::string describe_secrets(handshake /*how*/) const { return {}; }
};

}  // namespace peerbus::detail
