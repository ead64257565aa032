// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/channel_memory.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::collective {

namespace detail {
class batch;
}

/// Options of channels, which must be the same on all ranks.
struct channel_options {
  /// The memory at each rank through which messages travel in slices, in bytes. More memory means
  /// fewer and longer slices.
  std::size_t scratch_bytes = std::size_t{1} << 20U;
  /// The least message, in bytes, that its receiver reads in the private memory of the sender, in
  /// one copy. Loads and stores must reach the sender's memory, and the kernel must permit the
  /// read. Messages of up to two slices always travel in slices, so that their senders do not wait
  /// until they are received. If a receiver finds that it cannot read, the message is sent in
  /// slices.
  std::size_t private_bytes = std::size_t{64} << 10U;
};

/// The memory through which the ranks of a communicator send each other messages by `send`, `recv`
/// and `batch_send_recv`. Only the two ends of a message take part in it. Therefore channels have
/// memory and signals for each pair of ranks, apart from those of a `team`.
///
/// Messages from one rank to another are matched in the order in which both ends name them. Each
/// end gives the number and the type of the elements. A message is moved if both ends agree.
/// Otherwise both ends get `error` mismatch, which names the message and what each end said; its
/// output is not written, and the channels remain usable. They also remain usable after a message
/// that is not all mapped memory at its sender; `batch_send_recv` says which errors both ends get.
///
/// Cost: a message takes ceil(bytes / `map().slot_bytes`) slices, at least one. Each byte is
/// written once by the sender, put if stores do not reach the receiver's memory, and copied once
/// by the receiver. A message that is read in private memory takes one slice, which is empty
/// if the receiver came first. All bytes outside this slice are copied once. The sender raises a
/// signal for each slice; the receiver raises one for each slice and one for each message. No
/// operation allocates, unless it fails.
/// Memory: `map().total_bytes()` at each rank.
/// Threads: one operation at a time, whole or in halves (`pending_messages`), by one lane.
/// Different channels, teams, and the communicator itself, may be used at the same time. Channels
/// are neither copied nor moved.
class channels {
 public:
  /// The least size of a slice, in bytes.
  static constexpr std::size_t least_slot_bytes = 64;

  /// Makes the channels between all ranks of `comm`, which must outlive them. Collective, with
  /// equal options. `until` is the deadline; without it, the default timeout of `comm` applies.
  /// Cost: two agreements and one window.
  /// Throws, on all ranks: `error` mismatch if the options differ, invalid_argument if the scratch
  /// memory is too small for the number of ranks, out_of_memory, timed_out, peer_dead, poisoned.
  template <transport Transport>
  explicit channels(communicator<Transport>& comm, const channel_options& options = {},
                    std::optional<deadline> until = std::nullopt)
      : channels{
            comm,
            [&comm](window_shape shape, deadline end) { return make_any_window(comm, shape, end); },
            options, map_for<Transport>(comm.size(), options, reach_of(comm.bus())),
            until.value_or(comm.default_deadline())} {}
  channels(const channels&) = delete;
  channels& operator=(const channels&) = delete;
  ~channels() = default;

  /// Moves the channels to the present view of the communicator, in their memory. Each member of
  /// the view calls it after `continue_without_the_dead`. Ranks keep their numbers, and messages
  /// with ranks that are gone are refused. Messages under way are discarded, also between their
  /// halves. `until` is the deadline; without it, the default timeout applies.
  /// Cost: one `rank_group::gather_in_view`, and three signals to each peer.
  /// Throws: `error` invalid_argument if the channels are already in this view; poisoned if the
  /// communicator has not moved to a later view; peer_dead, on all living members, which continue
  /// without the dead and resume again; timed_out, perhaps on some members only; view_changed.
  void resume(std::optional<deadline> until = std::nullopt);

  /// Returns the places and sizes of the memory of channels between `ranks` ranks over `Transport`,
  /// without making them. Give `reach` if it is known at run time only (`any_transport`).
  template <transport Transport>
  [[nodiscard]] static constexpr channel_map map_for(
      std::size_t ranks, const channel_options& options = {},
      peer_reach reach = reach_by_type<Transport>) noexcept {
    return {ranks, options.scratch_bytes, reach != peer_reach::all};
  }

  /// Returns the rank of the caller.
  [[nodiscard]] rank_id rank() const noexcept { return memory_->group().rank(); }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return memory_->group().size(); }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const channel_map& map() const noexcept { return memory_->map(); }

 private:
  friend class detail::batch;

  channels(rank_group& group, window_source make_window, const channel_options& options,
           const channel_map& map, deadline until);

  /// Compares the options with those of the other ranks. Collective.
  static void agree_on(rank_group& group, const channel_options& options, const channel_map& map,
                       deadline until);

  std::unique_ptr<detail::channel_memory> memory_;
  channel_options options_;
  std::uint64_t view_;  // Of the communicator.
  std::uint64_t calls_ = 0;
  bool is_pending_ = false;  // Whether the latest call lacks its second half.
};

static_assert(channel_map{64, channel_options{}.scratch_bytes, true}.total_bytes() <= std::size_t{2}
                                                                                          << 20U);

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/channels.ipp>  // IWYU pragma: keep
#endif
