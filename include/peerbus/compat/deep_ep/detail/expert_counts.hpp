// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::deep_ep::detail {

/// How many tokens each rank has for each expert, where an exchange that routes by ranks does not
/// say. Posted before the exchange's dispatch, whose signals make it visible; kept in as many
/// generations as the exchange keeps counts, for the same reason (docs/memory_model.md).
template <transport Transport>
class expert_counts {
 public:
  /// Collective.
  expert_counts(communicator<Transport>& comm, std::size_t in_flight, std::size_t experts,
                deadline until)
      : comm_{comm},
        placement_{experts, comm.size()},
        generations_{2 * in_flight},
        message_bytes_{align_up(placement_.experts() * sizeof(std::int32_t), cache_line_bytes)},
        memory_{comm.make_window(generations_ * comm.size() * message_bytes_, 0, until)},
        sums_(placement_.count(comm.rank())) {}

  /// Tells every rank this one's counts for dispatch `number`. Returns: as `window::put`.
  [[nodiscard]] errc post(std::uint64_t number, std::span<const std::int32_t> counts) noexcept {
    const std::size_t at = place(number, comm_.rank());
    const auto mine = memory_.local().subspan(at, counts.size_bytes());
    std::memcpy(mine.data(), counts.data(), counts.size_bytes());
    for (const rank_id peer : comm_.peers())
      if (const errc code = memory_.put(peer, at, mine); code != errc::ok) return code;
    return errc::ok;
  }

  /// The sums over all ranks for this rank's experts, when dispatch `number` has been received.
  [[nodiscard]] std::span<const std::int32_t> sums(std::uint64_t number) noexcept {
    std::fill(sums_.begin(), sums_.end(), 0);
    for (const rank_id source : comm_.ranks())
      for (std::size_t e = 0; e < sums_.size(); ++e) {
        std::int32_t count = 0;
        const std::size_t expert = placement_.first(comm_.rank()) + e;
        std::memcpy(&count, memory_.local().data() + place(number, source) + expert * sizeof count,
                    sizeof count);
        sums_[e] += count;
      }
    return sums_;
  }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t number, rank_id source) const noexcept {
    return (number % generations_ * comm_.size() + source.index()) * message_bytes_;
  }

  communicator<Transport>& comm_;
  moe::expert_placement placement_;
  std::size_t generations_;
  std::size_t message_bytes_;
  window<Transport> memory_;
  std::vector<std::int32_t> sums_;
};

}  // namespace peerbus::deep_ep::detail
