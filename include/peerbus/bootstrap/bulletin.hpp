// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Short messages from each rank of a group to all others, for ranks that share no memory.
/// `membership` takes in arrived messages whenever it is asked for a state. The messages of a rank
/// arrive in order, and before the notice of its end. If a rank ends while it publishes, its last
/// message may reach only some of the other ranks.
///
/// In a child that the rank forked, nothing is published.
///
/// Threads: all functions may be called from any thread of the rank.
class bulletin {
 public:
  /// The largest size of a message in bytes.
  static constexpr std::size_t most_bytes = std::size_t{1} << 12U;

  /// The reader of a channel. The functions are called by one thread at a time, must not call the
  /// bulletin, and may not throw.
  struct reader {
    /// Takes a message from rank `from`.
    std::function<void(rank_id from, std::span<const std::byte> message)> take;
    /// Returns the messages that this rank publishes when it learns that `ended` has ended. All
    /// messages that arrived from `ended` have been taken before. May be empty.
    std::function<std::vector<std::vector<std::byte>>(rank_id ended)> last_words = nullptr;
  };

  bulletin() = default;
  bulletin(const bulletin&) = delete;
  bulletin& operator=(const bulletin&) = delete;
  virtual ~bulletin() = default;

  /// Reads the next channel by `read` until `unsubscribe`. All ranks subscribe in the same order.
  /// They publish on a channel only once all ranks have subscribed to it. Messages for a channel
  /// without a reader are dropped.
  /// Returns: the number of the channel.
  [[nodiscard]] virtual std::uint32_t subscribe(reader read) = 0;
  /// Ends the reading of `channel`. After the return, its reader is not called any more.
  virtual void unsubscribe(std::uint32_t channel) noexcept = 0;
  /// Sends `message` to all other ranks that run. Does not wait for them: bytes that a connection
  /// does not take now are sent when the membership is next asked.
  /// Cost: one system call for each rank. Allocates.
  /// Throws: `error` invalid_argument if `message` has more than `most_bytes` bytes.
  virtual void publish(std::uint32_t channel, std::span<const std::byte> message) = 0;
};

}  // namespace peerbus
