// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE rank_group::rank_group(bootstrap& boot, communicator_options options)
    : boot_{&boot}, options_{options}, view_{boot.size()} {
  for (std::size_t step = 1; step < size(); ++step)
    peers_.emplace_back((rank().index() + step) % size());
  // The ranks of the bootstrap may have gone on in another group.
  std::vector<bool> gone(size());
  for (const rank_id peer : ranks()) gone[peer.index()] = boot.members()->is_excluded(peer);
  if (std::find(gone.begin(), gone.end(), true) != gone.end()) enter({1, size(), std::move(gone)});
}

PEERBUS_INLINE void rank_group::order_peers(std::vector<rank_id> order) {
  std::vector<bool> named(size());
  for (const rank_id peer : order) {
    if (peer.index() >= size() || peer == rank() || named[peer.index()])
      throw error{errc::invalid_argument,
                  detail::concat("order_peers: ", peer, " given, expected each of the ", size(),
                                 " ranks but ", rank(), " once")};
    named[peer.index()] = true;
  }
  if (order.size() + 1 != size())
    throw error{errc::invalid_argument, detail::concat("order_peers: ", order.size(),
                                                       " ranks given, expected ", size() - 1)};
  std::erase_if(order, [&](rank_id peer) { return !view_.contains(peer); });
  peers_ = std::move(order);
}

PEERBUS_INLINE void rank_group::spread_peers(std::span<const rank_id> near) {
  if (near.size() <= 1 || near.size() == size()) return;
  const auto is_far = [&](rank_id peer) {
    return !std::binary_search(near.begin(), near.end(), peer);
  };
  std::vector<rank_id> far;
  std::copy_if(peers_.begin(), peers_.end(), std::back_inserter(far), is_far);
  if (far.empty()) return;
  // The near ranks directly below this one begin with the same far rank, each one further on.
  std::size_t below = 0;
  for (std::size_t i = rank().index(); !is_far(rank_id{(i + size() - 1) % size()}); ++below)
    i = (i + size() - 1) % size();
  std::rotate(far.begin(), far.begin() + static_cast<std::ptrdiff_t>(below % far.size()),
              far.end());
  std::erase_if(peers_, is_far);
  peers_.insert(peers_.end(), far.begin(), far.end());
}

PEERBUS_INLINE void rank_group::agree(std::string_view doing, std::span<const declared> values,
                                      const std::optional<error>& objection) {
  agree(doing, values, default_deadline(), objection);
}

PEERBUS_INLINE void rank_group::agree(std::string_view doing, std::span<const declared> values,
                                      deadline until, const std::optional<error>& objection) {
  require_healthy(doing, view_.number());
  guarded([&] { peerbus::agree(*boot_, doing, values, until, objection); });
}

PEERBUS_INLINE std::vector<bootstrap::contribution> rank_group::gather(std::string_view doing,
                                                                       bootstrap::contribution own,
                                                                       deadline until) {
  require_healthy(doing, view_.number());
  return guarded(
      [&] { return gather_or_refuse(*boot_, doing, std::move(own), std::nullopt, until); });
}

PEERBUS_ERROR_PATH void rank_group::fail(errc code, std::string_view reason) {
  throw error{code, fail_text(reason)};
}

PEERBUS_ERROR_PATH void rank_group::fail_waiting(errc code, std::string text,
                                                 std::span<const rank_id> awaited,
                                                 detail::function_ref<std::string(rank_id)> what,
                                                 std::string_view text_end) {
  text += members()->describe_awaited(awaited, what);
  if (const auto gone = missing(); !gone.empty()) text += "; " + gone;
  fail(code, text.append(text_end));
}

PEERBUS_ERROR_PATH std::string rank_group::fail_text(std::string_view reason) {
  poison(reason);
  return std::string{reason};
}

PEERBUS_INLINE std::vector<std::byte> rank_group::gather_in_view(std::string_view /*doing*/,
                                                                 std::span<const std::byte> /*own*/,
                                                                 deadline /*until*/) {
  throw error{errc::unsupported, "this group does not go on in a later view"};
}

PEERBUS_INLINE void rank_group::enter(group_view view) {
  view_ = std::move(view);
  exclusions_ = boot_->members()->exclusions();
  std::erase_if(peers_, [&](rank_id peer) { return !view_.contains(peer); });
  const std::lock_guard lock{poisoning_};
  poison_.clear();
  // order: release; pairs with `require_healthy`.
  poisoned_.store(false, std::memory_order_release);
}

PEERBUS_INLINE void rank_group::require_others(std::string_view doing,
                                               std::span<const rank_id> named) const {
  for (const rank_id peer : named)
    if (peer.index() >= size() || peer == rank())
      throw error{errc::invalid_argument, detail::concat(doing, ": ", peer, " given on ", rank(),
                                                         ", expected other ranks below ", size())};
}

PEERBUS_INLINE void rank_group::require_healthy(std::string_view doing, std::uint64_t view) const {
  // order: acquire; pairs with the release in `poison`, so that `poison_` is complete.
  if (poisoned_.load(std::memory_order_acquire))
    throw error{errc::poisoned, detail::concat(doing, ": unusable since: ", poison_)};
  if (boot_->members()->exclusions() != exclusions_)
    throw error{errc::view_changed,
                detail::concat(doing,
                               ": the ranks have gone on without others in another "
                               "communicator, expected this one to go on too")};
  if (view_.number() != view)
    throw error{
        errc::view_changed,
        detail::concat(
            doing, ": the communicator is in view ", view_.number(), " of ", view_.members().size(),
            " ranks, and this was made in view ", view,
            ": resume it, if it can be, or make it anew on a communicator over `survivors`")};
}

PEERBUS_INLINE void rank_group::poison(std::string_view reason) {
  const std::lock_guard lock{poisoning_};
  // order: relaxed; the flag is only written under this lock.
  if (poisoned_.load(std::memory_order_relaxed)) return;
  poison_ = reason;
  poisoned_.store(true,
                  std::memory_order_release);  // order: release; pairs with `require_healthy`.
}

}  // namespace peerbus
