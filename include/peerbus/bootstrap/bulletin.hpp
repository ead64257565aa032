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
/// `membership` takes in what has arrived whenever it is asked for a state. The messages of a rank
/// come in their order, and before the notice of its end. If it ends while it publishes, some of
/// the others may have the last message and some not.
///
/// In a child that the rank forked, nothing is published.
///
/// Threads: all functions may be called from any thread of the rank.
class bulletin {
 public:
  /// The most bytes of a message.
  static constexpr std::size_t most_bytes = std::size_t{1} << 12U;

  /// The reader of a channel. The functions are called by one thread at a time, must not call the
  /// bulletin, and may not throw.
  struct reader {
    /// Takes a message of rank `from`.
    std::function<void(rank_id from, std::span<const std::byte> message)> take;
    /// Returns the messages that this rank publishes when it learns that `ended` has ended and all
    /// that came of it has been taken. May be empty.
    std::function<std::vector<std::vector<std::byte>>(rank_id ended)> last_words = nullptr;
  };

  bulletin() = default;
  bulletin(const bulletin&) = delete;
  bulletin& operator=(const bulletin&) = delete;
  virtual ~bulletin() = default;

  /// Reads the next channel by `read` until `unsubscribe`. All ranks subscribe in the same order,
  /// and publish on a channel only once all of them have. What comes for a channel without a reader
  /// is dropped.
  /// Returns: the number of the channel.
  [[nodiscard]] virtual std::uint32_t subscribe(reader read) = 0;
  /// Returns once `read` of the channel is called no more.
  virtual void unsubscribe(std::uint32_t channel) noexcept = 0;
  /// Sends `message` to all other ranks that run. Does not wait for them: what a connection does
  /// not take now is sent when the membership is next asked.
  /// Cost: one system call for each rank. Allocates.
  /// Throws: `error` invalid_argument if there are too many bytes.
  virtual void publish(std::uint32_t channel, std::span<const std::byte> message) = 0;
};

}  // namespace peerbus
