// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/subset.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail {

/// The window of a subset of ranks: a window of all ranks that renumbers the subset. It uses the
/// connections and waits of the whole transport, so that every wait advances all planes and ends
/// when any rank of the whole group dies.
class subset_window final : public any_window {
 public:
  /// Takes the window `whole` of all ranks. `subset` must outlive it.
  subset_window(subset_group& subset, std::shared_ptr<any_window> whole)
      : any_window{subset, false}, subset_{&subset}, whole_{std::move(whole)} {
    for (const rank_id rank : subset.ranks()) set_part(rank, whole_->part(subset.in_whole(rank)));
  }

  [[nodiscard]] errc get(rank_id peer, std::size_t offset,
                         std::span<std::byte> target) noexcept override {
    return whole_->get(in_whole(peer), offset, target);
  }
  [[nodiscard]] errc get_private(rank_id peer, std::uint64_t address,
                                 std::span<std::byte> target) noexcept override {
    return whole_->get_private(in_whole(peer), address, target);
  }
  [[nodiscard]] errc put(rank_id peer, std::size_t offset,
                         std::span<const std::byte> source) noexcept override {
    return whole_->put(in_whole(peer), offset, source);
  }
  [[nodiscard]] errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept override {
    return whole_->put_run(in_whole(peer), pieces);
  }
  [[nodiscard]] errc put_signal(rank_id peer, std::size_t offset, std::span<const std::byte> source,
                                signal_id id, std::uint64_t value) noexcept override {
    return whole_->put_signal(in_whole(peer), offset, source, id, value);
  }
  [[nodiscard]] errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept override {
    return whole_->signal(in_whole(peer), id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, signal_id id,
                                 std::uint64_t value) noexcept override {
    std::array<rank_id, 64> numbers;
    for (std::size_t i = 0; i < peers.size(); i += numbers.size()) {
      const auto chosen = peers.subspan(i, std::min(numbers.size(), peers.size() - i));
      std::ranges::transform(chosen, numbers.begin(),
                             [this](rank_id peer) { return in_whole(peer); });
      if (const errc code = whole_->signal_each(std::span{numbers}.first(chosen.size()), id, value);
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }
  [[nodiscard]] errc wait_at(rank_id owner, signal_id id, std::uint64_t value, deadline until,
                             rank_id raiser) noexcept override {
    return whole_->wait_at(in_whole(owner), id, value, until, in_whole(raiser));
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, signal_id id) const noexcept override {
    return whole_->value_at(in_whole(owner), id);
  }
  /// Waits for the puts of this rank to all ranks, not only to those of the subset.
  [[nodiscard]] errc settle() noexcept override { return whole_->settle(); }

 private:
  [[nodiscard]] rank_id in_whole(rank_id rank) const noexcept { return subset_->in_whole(rank); }

  subset_group* subset_;
  std::shared_ptr<any_window> whole_;
};

}  // namespace peerbus::detail
