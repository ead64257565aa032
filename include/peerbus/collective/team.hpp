// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/collective/detail/timed_calls.hpp>
#include <peerbus/collective/read_choice.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/shots_choice.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/lane_pool.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

/// Collective operations over contiguous ranges: broadcast, reductions, gathers. Each operation has
/// its own header and takes a `team`.
namespace peerbus::collective {

namespace detail {
class call_rounds;
struct team_access;
}  // namespace detail

/// Options of a team. Only `stream_bytes` may differ between ranks.
struct team_options {
  /// The value of `scratch_bytes` unless it is set.
  static constexpr std::size_t default_scratch_bytes = std::size_t{1} << 20U;

  /// The memory at each rank through which operands travel in slices, in bytes. More memory means
  /// fewer rounds for large operands.
  std::size_t scratch_bytes = default_scratch_bytes;
  /// The largest operand of `all_reduce`, in bytes, for which each rank gets the operands of all
  /// ranks. Larger operands are reduced in parts, one per rank. Empty: the costs decide. If then
  /// peers load pages, `costs` has no costs of loads, no `algorithm` is named and there are more
  /// than two ranks, each rank gets all operands of up to 512 bytes. From there to 512 KiB, both
  /// are tried if their assumed costs differ by less than a factor of 4: in calls 5 to 28 of each
  /// size and seldom later (`shots_for`). Operands in windows are not tried.
  std::optional<std::size_t> one_shot_bytes{};
  /// The least contribution of a rank to another rank, in bytes, that peers read directly in its
  /// window. Smaller contributions are staged, which takes one round instead of two. The variable
  /// forms always read in the window. Empty: 1 KiB, or 32 KiB where peers load pages and ranks
  /// share cores, because a round then takes longer.
  std::optional<std::size_t> window_bytes{};
  /// The least contribution of a rank to another rank, in bytes, that the peer copies once from
  /// private memory, instead of from a page. That takes two rounds and a system call. Operations
  /// that reduce are always staged, as is an `all_to_all` that is in place on a rank. If the kernel
  /// denies a read, that call and all later ones are staged. Empty: both ways are tried from 8 KiB
  /// on, for each operation and size, in calls 5 to 28 and seldom later (`reads_for`). Until then,
  /// contributions from 32 KiB on are read, except where ranks share cores and several read the
  /// same bytes. No effect over transports without loads.
  std::optional<std::size_t> private_bytes{};
  /// The least part of an operand, in bytes, that a rank writes to its page by streaming stores.
  /// Plain stores wait until the peer's cache has given up each line that it read last. Operations
  /// that reduce, calls of several lanes, and parts of 256 KiB and more (512 KiB in operations with
  /// a root) always use plain stores. May differ between ranks. Empty: 16 KiB for two ranks that
  /// load pages and do not share cores; otherwise no part is streamed.
  std::optional<std::size_t> stream_bytes{};
  /// The costs from which algorithms are chosen, with the names that `access_costs` gives. Costs
  /// that the table lacks are taken from `access_costs::assumed`. `coll_bench --costs-to FILE`
  /// measures costs. The hash must be the same on all ranks.
  cost_table costs{};
  /// The algorithm of operations that have several, if it is possible. If it is not, or is
  /// `automatic`, the costs decide.
  collective::algorithm algorithm = collective::algorithm::automatic;
  /// Allows `ring` and `two_levels`, which do not reduce in the order of ranks, where the result
  /// depends on that order: for floating point and for callables of the caller, which must then be
  /// associative. The bits are still the same on every rank and in every run. Naming such an
  /// algorithm in `algorithm` allows it too.
  bool may_reorder = false;
};

/// The members of a communicator's view with the memory that collective operations use. The
/// operations are functions that take a team: `all_gather`, `all_reduce` and so on, each in its own
/// header.
///
/// All ranks must call the same operations of a team in the same order, with equal counts and
/// types. A description of the call travels with the first bytes of each operation. Ranks whose
/// calls differ get `error` mismatch, which names the calls. If an argument is bad on a rank, this
/// rank gets invalid_argument and all others get `refused`, which says what was wrong. In both
/// cases all ranks throw, no output is written, and the team remains usable.
///
/// An operation proceeds in rounds. In a round each rank writes a slice to a page, tells all peers,
/// waits for their pages, and reads them. Some algorithms divide a round into steps, in which a
/// rank tells and awaits one peer. docs/proofs.md explains why a page is not written too early.
/// Nothing is left to do after an operation returns: operands may be reused at once. An operation
/// can also be done in halves, as `pending` says.
///
/// Waits end with `error` timed_out at the deadline, peer_dead, or unreachable. The communicator is
/// then poisoned, and outputs are undefined. If the communicator goes on without the dead, `resume`
/// makes the team usable.
///
/// Cost: over a direct transport each round costs a signal, and a cache line from each peer, which
/// also holds the first 32 bytes of the payload. Over others it costs a signal to each peer. No
/// operation allocates, unless it fails.
/// Memory: `map().total_bytes()` at each rank, and per process 20 KiB for lanes and 30 KiB for
/// trials.
/// Threads: one operation of a team at a time, by one thread or by several lanes
/// (`call_options::as`). Different teams, and the communicator itself, may be used at the same
/// time. A team is neither copied nor moved.
class team {
 public:
  /// The least size of a slice that a team accepts, in bytes.
  static constexpr std::size_t least_slice_bytes = 64;

  /// Makes the team of all members of the present view of `comm`, which must outlive the team.
  /// Collective, with equal options. `until` is the deadline; without it, the default timeout of
  /// `comm` applies.
  /// Cost: two agreements and one window.
  /// Throws, on all ranks: `error` mismatch if the options differ, invalid_argument if the scratch
  /// memory is too small for the number of ranks, out_of_memory, timed_out, peer_dead, poisoned.
  template <transport Transport>
  explicit team(communicator<Transport>& comm, const team_options& options = {},
                std::optional<deadline> until = std::nullopt)
      : team{{comm, comm.bus().boot(), &comm.bus(), access_of(reach_of(comm.bus())),
              [&comm](window_shape shape, deadline end) {
                return make_any_window(comm, shape, end);
              }},
             options,
             until.value_or(comm.default_deadline())} {}
  team(const team&) = delete;
  team& operator=(const team&) = delete;
  ~team() = default;

  /// Moves the team to the present view of the communicator, in its memory. Each member of the view
  /// calls it after `continue_without_the_dead`. Ranks are renumbered in their order, which changes
  /// `rank()`, `size()`, roots and parts of operands. Operations under way, also between their
  /// halves, and results of trials are discarded. `until` is the deadline; without it, the default
  /// timeout applies.
  /// Cost: one `rank_group::gather_in_view`. Allocates before it communicates.
  /// Throws: `error` invalid_argument if the team is already in this view; poisoned if the
  /// communicator has not moved to a later view; peer_dead, on all living members, which continue
  /// without the dead and resume again; timed_out, perhaps on some members only; view_changed;
  /// out_of_memory.
  void resume(std::optional<deadline> until = std::nullopt);

  /// Returns the places and sizes of the memory of a team of `ranks` ranks over `Transport`,
  /// without making it. Give `reach` if it is known at run time only (`any_transport`).
  template <transport Transport>
  [[nodiscard]] static constexpr team_map map_for(
      std::size_t ranks, const team_options& options = {},
      peer_reach reach = reach_by_type<Transport>) noexcept {
    return map_over(access_of(reach), ranks, options);
  }

  /// Returns the rank of the caller.
  [[nodiscard]] rank_id rank() const noexcept { return pages_->group().rank(); }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return pages_->group().size(); }
  /// Returns the options with which the team was made. `window_bytes` and `stream_bytes`
  /// are not empty.
  [[nodiscard]] const team_options& options() const noexcept { return options_; }
  /// Returns the places and sizes of the team's memory.
  [[nodiscard]] const team_map& map() const noexcept { return pages_->map(); }

  /// Returns the shape of the team, on which the costs of its operations depend.
  [[nodiscard]] const team_shape& shape() const noexcept { return shape_; }
  /// Returns the costs by which the team chooses algorithms.
  [[nodiscard]] access_costs costs() const noexcept {
    return detail::costs_from(options_.costs, shape_.access);
  }
  /// Returns whether peers read rows of `bytes` bytes from a rank to a peer in private memory, and
  /// why. Does not cover operands in windows.
  /// Cost: a look into a table.
  [[nodiscard]] read_choice reads_for(operation_kind what, std::size_t bytes) const noexcept {
    return private_.choice(what, bytes);
  }
  /// Returns whether an `all_reduce` or `all_reduce_add` of `bytes` bytes takes one shot or two
  /// where peers load pages, and why. Does not cover operands in windows.
  /// Cost: a look into a table.
  [[nodiscard]] shots_choice shots_for(std::size_t bytes) const noexcept;
  /// Returns the algorithm for an input of `bytes` bytes at each rank, or for such an output of
  /// `reduce_scatter`. Does not cover operands in windows. `may_reorder`: the result does not
  /// depend on the order of ranks, as with integers. If elements are too large for the algorithm's
  /// slices, operations use `one_shot`.
  /// Cost: a look into a table.
  [[nodiscard]] algorithm algorithm_of(choice_of operation, std::size_t bytes,
                                       bool may_reorder = false) const noexcept {
    using need = detail::algorithm_choice::order_need;
    const need of_result = may_reorder ? need::none : need::result;
    switch (operation) {
      case choice_of::all_gather: return choice_.of_all_gather(bytes);
      case choice_of::reduce_scatter: return choice_.of_reduce_scatter(bytes, of_result);
      case choice_of::broadcast: return choice_.of_broadcast(bytes);
      case choice_of::all_reduce: break;
    }
    return choice_.is_close(bytes) ? shots_for(bytes).by : choice_.of_all_reduce(bytes, of_result);
  }

 private:
  friend class detail::call_rounds;
  friend struct detail::team_access;

  /// The parts of a communicator that a team needs, without the type of its transport.
  struct origin {
    rank_group& group;
    bootstrap& boot;
    const void* bus;
    page_access access;
    window_source make_window;
  };
  team(const origin& comm, const team_options& options, deadline until);

  /// Returns the access to pages over a transport with `reach`.
  static constexpr page_access access_of(peer_reach reach) noexcept {
    return reach == peer_reach::all    ? page_access::loads
           : reach == peer_reach::near ? page_access::planes
                                       : page_access::puts;
  }

  /// Returns the places and sizes of the memory of a team whose pages get to peers by `access`.
  static constexpr team_map map_over(page_access access, std::size_t ranks,
                                     const team_options& options) noexcept {
    return {ranks, options.scratch_bytes, access != page_access::loads};
  }

  /// Returns `options` with defaults for empty members. `shares_cores` is whether ranks of this
  /// host share cores. It matters only where peers load pages: all ranks are then on this host and
  /// fill in equal values.
  static team_options filled_in(team_options options, page_access access, std::size_t ranks,
                                bool shares_cores) noexcept;

  /// Chooses algorithms for the present ranks.
  [[nodiscard]] detail::algorithm_choice choose() const noexcept;

  /// Fills in the options, compares them with those of the other ranks, and returns them.
  /// Collective.
  static team_options agreed_options(const origin& comm, const team_options& given, deadline until);

  team_options options_;
  const void* windows_from_;  // The transport of the windows in which operands may lie.
  std::unique_ptr<detail::page_exchange> pages_;
  std::uint64_t view_;  // Of the communicator.
  detail::timed_calls times_;
  detail::private_reads private_;
  team_shape shape_;
  detail::algorithm_choice choice_;
  std::uint64_t calls_ = 0;
  std::uint64_t round_ = 0;  // The latest round that this rank has published.
  std::string objection_;    // Of this rank to its arguments of the latest call.
  std::optional<detail::short_text<16>> pending_;  // The operation that lacks its second half.
  peerbus::detail::lane_pool pool_;
};

// Not `team_options{}.scratch_bytes`: in the debug mode of libstdc++ a vector, which the options
// hold, is no literal type.
static_assert(team_map{64, team_options::default_scratch_bytes, true}.total_bytes() <=
              std::size_t{2} << 20U);

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/team.ipp>  // IWYU pragma: keep
#endif
