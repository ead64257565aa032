// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>

namespace peerbus::detail {

/// Sends to `caller` the reason for which it is refused. The socket has room for it, because almost
/// nothing was sent before.
inline void refuse(connection& caller, const failure& why) {
  const auto bytes = encode_failure(why);
  frame_writer writer{bytes, {}};
  (void)writer.step(caller);
}

/// The answer to callers at a rendezvous place that have become ranks of the group. It holds
/// references to `body` and `files`, which must outlive it.
class welcome {
 public:
  welcome(std::span<const std::byte> body, std::span<const int> files) : files_{files} {
    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::welcome);
    header.fds = static_cast<std::uint32_t>(files.size());
    bytes_ = encode_frame(header, {}, body);
  }

  /// Sends the answer to `caller`. If the caller dies meanwhile, the first collective notices it.
  /// Throws: `error` system, also if the caller has not taken the answer by `patience`.
  void send(connection& caller, deadline patience) const {
    frame_writer writer{bytes_, files_};
    for (;;) {
      const auto progress = writer.step(caller);
      if (progress == frame_writer::status::done || progress == frame_writer::status::closed)
        return;
      if (progress == frame_writer::status::failed || patience.expired())
        throw system_failure("welcoming the ranks", errno);
      poll_for({}, patience, throttle_pause);
    }
  }

 private:
  std::vector<std::byte> bytes_;
  std::span<const int> files_;
};

}  // namespace peerbus::detail
