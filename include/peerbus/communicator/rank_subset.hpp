// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail {

/// The bootstrap of a `rank_subset`. It has no connections of its own: its allgather is one of the
/// whole group, of which it returns the contributions of the subset. So all ranks of the whole
/// group call it together, each for its own subset.
class subset_bootstrap final : public bootstrap {
 public:
  /// Makes the bootstrap of `members`, ranks of `whole` that include the caller. Does not
  /// communicate.
  subset_bootstrap(bootstrap& whole, std::vector<rank_id> members)
      : whole_{&whole}, ranks_{std::move(members)} {
    const auto own =
        static_cast<std::size_t>(std::ranges::find(ranks_, whole.rank()) - ranks_.begin());
    // The words never change. Deaths are seen by the transport of the whole group.
    const auto states = std::make_shared<std::vector<membership::state_word>>(ranks_.size());
    set_members(std::make_shared<membership>(rank_id{own}, ranks_.size(), states->data(), states,
                                             std::vector<unique_fd>(ranks_.size())));
    std::vector<rank_id> near;
    for (const rank_id member : all_ranks{ranks_.size()})
      if (whole.is_near(ranks_[member.index()])) near.push_back(member);
    set_neighbours(std::move(near), whole.ranks_here(), whole.cores_here());
    set_meeting_address(whole.meeting_address());
  }

  /// Returns the ranks of the subset in the whole group, by their number in the subset.
  [[nodiscard]] std::span<const rank_id> ranks_of_whole() const noexcept { return ranks_; }

  [[nodiscard]] bool passes_descriptors() const noexcept override {
    return whole_->passes_descriptors();
  }
  [[nodiscard]] address_space addresses() const noexcept override { return whole_->addresses(); }
  [[nodiscard]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing) override {
    std::vector<contribution> all = whole_->allgather(std::move(mine), until, doing);
    std::vector<contribution> chosen;
    chosen.reserve(ranks_.size());
    for (const rank_id rank : ranks_) chosen.push_back(std::move(all[rank.index()]));
    return chosen;
  }

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& /*ranks*/,
                                                         rank_id /*member*/,
                                                         deadline /*until*/) override {
    throw error{errc::unsupported, "a subset of ranks makes no subgroups"};
  }

  bootstrap* whole_;
  std::vector<rank_id> ranks_;
};

/// Some ranks of a transport, numbered anew, as a transport of their own. It uses the connections,
/// windows and waits of the whole transport, so that it costs no device queue, and every wait
/// advances all planes and ends when any rank of the whole group dies.
///
/// Every rank belongs to one subset, and the ranks of all subsets make windows together. A window
/// is as large as the largest that any of them asks for. `Tag` only makes the type a type of its
/// own.
template <partly_direct_transport Whole, class Tag>
class rank_subset {
 public:
  /// The window of the whole transport.
  using window = typename Whole::window;
  /// The refinements of the whole transport that a subset keeps, and an account of its trouble.
  static constexpr transport_refinements refines{
      .find_peer_memory = true, .put_run = true, .signal_each = true, .describe_trouble = true};

  /// Makes the subset that `boot` names. Both outlive it. Does not communicate.
  rank_subset(Whole& whole, subset_bootstrap& boot) : whole_{&whole}, boot_{&boot} {}

  ///@{
  /// A member of the concept `transport`, which states its contract.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return whole_->capabilities();
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return whole_->make_window(largest(shape, until), until);
  }
  [[nodiscard]] std::span<std::byte> local(const window& at) const noexcept {
    return whole_->local(at);
  }
  [[nodiscard]] errc put(rank_id peer, const window& at, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return has(peer) ? whole_->put(in_whole(peer), at, offset, source) : errc::out_of_range;
  }
  [[nodiscard]] errc put_run(rank_id peer, const window& at,
                             std::span<const put_piece> pieces) noexcept {
    return has(peer) ? detail::put_run(*whole_, in_whole(peer), at, pieces) : errc::out_of_range;
  }
  [[nodiscard]] errc signal(rank_id peer, const window& at, signal_id id,
                            std::uint64_t value) noexcept {
    return has(peer) ? whole_->signal(in_whole(peer), at, id, value) : errc::out_of_range;
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& at, signal_id id,
                                 std::uint64_t value) noexcept {
    if (!std::ranges::all_of(peers, [this](rank_id peer) { return has(peer); }))
      return errc::out_of_range;
    std::array<rank_id, 64> numbers;
    for (std::size_t i = 0; i < peers.size(); i += numbers.size()) {
      const auto batch = peers.subspan(i, std::min(numbers.size(), peers.size() - i));
      std::ranges::transform(batch, numbers.begin(),
                             [this](rank_id peer) { return in_whole(peer); });
      const std::span<const rank_id> chosen{numbers.data(), batch.size()};
      if (const errc code = detail::signal_each(*whole_, chosen, at, id, value); code != errc::ok)
        return code;
    }
    return errc::ok;
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& at, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return has(peer) ? whole_->put_signal(in_whole(peer), at, offset, source, id, value)
                     : errc::out_of_range;
  }
  [[nodiscard]] errc get(rank_id peer, const window& at, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return has(peer) ? whole_->get(in_whole(peer), at, offset, target) : errc::out_of_range;
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& at, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    return has(peer) ? whole_->fetch_add(in_whole(peer), at, offset, addend, before)
                     : errc::out_of_range;
  }
  [[nodiscard]] errc wait(const window& at, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    if (awaited) {
      if (!has(*awaited)) return errc::out_of_range;
      awaited = in_whole(*awaited);
    }
    return whole_->wait(at, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& at, signal_id id) const noexcept {
    return whole_->value(at, id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept {
    return has(peer) ? whole_->flush(in_whole(peer)) : errc::out_of_range;
  }
  [[nodiscard]] errc quiet() noexcept { return whole_->quiet(); }
  [[nodiscard]] errc progress() noexcept { return whole_->progress(); }
  [[nodiscard]] std::byte* find_peer_memory(const window& at, rank_id peer) const noexcept {
    return whole_->find_peer_memory(at, in_whole(peer));
  }
  [[nodiscard]] std::string describe_trouble() const { return describe_absence(*whole_); }
  ///@}

 private:
  [[nodiscard]] bool has(rank_id peer) const noexcept {
    return peer.index() < boot_->ranks_of_whole().size();
  }
  [[nodiscard]] rank_id in_whole(rank_id peer) const noexcept {
    return boot_->ranks_of_whole()[peer.index()];
  }
  /// Returns `shape` with the largest sizes of all ranks of the whole group. Collective among
  /// these.
  [[nodiscard]] window_shape largest(window_shape shape, deadline until) {
    const std::array<std::size_t, 2> own{shape.bytes, shape.signals};
    bootstrap::contribution mine;
    mine.bytes.resize(sizeof own);
    std::memcpy(mine.bytes.data(), own.data(), sizeof own);
    for (const auto& given :
         whole_->boot().allgather(std::move(mine), until, "the window of a subset of ranks")) {
      std::array<std::size_t, 2> other{};
      std::memcpy(other.data(), given.bytes.data(), sizeof other);
      shape.bytes = std::max(shape.bytes, other[0]);
      shape.signals = std::max(shape.signals, other[1]);
    }
    return shape;
  }

  Whole* whole_;
  subset_bootstrap* boot_;
};

}  // namespace peerbus::detail
