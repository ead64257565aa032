// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

#include "choose_bus.hpp"

namespace peerbus::c_library {

/// Memory of a window through which bytes of the program's own memory go to far ranks and come from
/// them, where the transport takes none but memory of windows.
///
/// Cost: a copy more than a call with memory of a window, and a wait for earlier puts whenever they
/// have filled the stage.
/// Threads: any number; they take turns.
class stage {
 public:
  static constexpr std::size_t bytes = std::size_t{1} << 20;

  /// Collective. `comm` outlives the stage.
  stage(communicator<bus>& comm, deadline until)
      : memory_{comm.make_window(bytes, 0, until)}, has_puts_to_(comm.size(), 0) {}

  ///@{
  /// Does as the function of `window`, whose place has been checked. `source` may change on return,
  /// and `target` is filled.
  [[nodiscard]] errc put(window<bus>& to, rank_id peer, std::size_t offset,
                         std::span<const std::byte> source) noexcept;
  [[nodiscard]] errc get(window<bus>& from, rank_id peer, std::size_t offset,
                         std::span<std::byte> target) noexcept;
  ///@}

 private:
  /// Returns room for some of `wanted` bytes, empty if earlier puts do not end.
  [[nodiscard]] std::span<std::byte> room(std::size_t wanted, errc& code) noexcept;

  std::mutex turn_;
  window<bus> memory_;
  std::size_t used_ = 0;
  std::vector<unsigned char> has_puts_to_;  ///< by rank: whether puts may still read the stage
};

}  // namespace peerbus::c_library
