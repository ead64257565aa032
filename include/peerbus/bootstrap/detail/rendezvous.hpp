// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The arguments of one rank for a rendezvous, in which `size` ranks find each other before a
/// deadline.
struct rendezvous {
  std::size_t rank;
  std::size_t size;
  deadline until;
  /// The time from the start to the deadline, for messages.
  deadline::clock::duration span = until.remaining();
  /// The source that tells which of the expected ranks have ended. Empty if there is none.
  awaited_members members{};
  /// The name of the process that listens at the place, for messages.
  std::string_view host = "rank 0";

  /// Returns the longest time that a rank sleeps before it checks again whether expected ranks have
  /// ended.
  [[nodiscard]] std::chrono::milliseconds pause() const noexcept {
    return members.are_watched() ? poll_pause : std::chrono::milliseconds{1000};
  }
};

/// A place where ranks meet, such as a socket name or a port, with the rule for the processes that
/// may connect. Rank 0 opens the place and the other ranks call. `rendezvous_host` and
/// `rendezvous_joiner` do the rest, which is the same for all places.
///
/// A connection that a function takes or returns has not completed its handshake.
class rendezvous_place {
 public:
  rendezvous_place() = default;
  rendezvous_place(const rendezvous_place&) = delete;
  rendezvous_place& operator=(const rendezvous_place&) = delete;
  virtual ~rendezvous_place() = default;

  /// Returns text such as "node0:29500", for messages.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Returns the number of connections that each rank makes.
  [[nodiscard]] virtual std::size_t channels() const noexcept = 0;
  /// Sets the socket options of a connection for its channel, after the handshake.
  virtual void tune(const connection& /*link*/, std::size_t /*channel*/) const noexcept {}

  /// Returns listening sockets, or none if another process has the place.
  /// Throws: `error` system.
  [[nodiscard]] virtual std::vector<unique_fd> open() = 0;
  /// Returns the connection to a caller, or an empty one if the caller is refused.
  [[nodiscard]] virtual connection admit(unique_fd caller) = 0;
  /// Describes a caller. Null stands for the process that opened the place.
  [[nodiscard]] virtual std::string describe_caller(const connection* caller) const = 0;
  /// Describes the addresses at which rank 0 listens. Empty if `describe()` already names them.
  [[nodiscard]] virtual std::string describe_addresses() const { return {}; }

  /// Calls rank 0 once. Returns the connection, or an empty one with errno set if rank 0 does not
  /// answer yet.
  /// Throws: `error` system.
  [[nodiscard]] virtual connection call(deadline until) = 0;
  /// Describes why rank 0 may be out of reach, after `call` has set errno to `number`.
  [[nodiscard]] virtual std::string describe_silence(int number) const = 0;
  /// Describes the difference between the secrets of rank 0 and this rank. `how` is the result of
  /// the handshake.
  [[nodiscard]] virtual std::string describe_secrets(handshake /*how*/) const { return {}; }
};

}  // namespace peerbus::detail
