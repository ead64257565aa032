// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/balance/move_plan.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/replica_choice.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

/// The tensors of an expert, and the room to move experts. Equal on all ranks.
struct expert_tensors {
  std::vector<std::size_t> bytes;  ///< bytes of each tensor: weights, scales, optimiser states
  /// Experts that a rank can take in before it gives up others, at least 1. Each takes the memory
  /// of an expert. A larger number saves rounds of moves.
  std::size_t spare = 1;
  std::size_t slice = std::size_t{256} << 10U;  ///< largest number of bytes of one put
};

/// The weights of the experts of all ranks, in memory from which experts move to other ranks while
/// exchanges go on. All tensors of an expert move together, into memory that is not in use. The
/// experts that compute are not touched until all ranks change over.
///
///     peerbus::moe::expert_weights weights{comm, moe.placement(), {.bytes = {up, down, scales}}};
///     // fill weights.tensor(e, i); compute with it; then from time to time:
///     weights.begin(plan.physical_to_logical());
///     while (serving) {
///       // dispatch, experts, combine
///       weights.advance(1 << 20);
///       if (step % 8 == 0 && weights.is_moving()) weights.commit({}, moe);
///     }
///
/// A plan is carried out in rounds (moe/balance/move_plan.hpp). In a round each rank puts its
/// experts to other ranks with `advance`, as many bytes at a time as the caller wants, and computes
/// with the old experts. `commit` ends the round on all ranks at the same place, if all have
/// received all their experts, and gives the exchanges the new map. Until then the old map stays in
/// use, and `abandon` drops the moves.
///
/// An expert that no living rank holds any more cannot move, and no plan brings it back.
///
/// A canary travels with each expert and names it. `commit` refuses an expert whose canary names
/// another, or is damaged, on all ranks.
///
/// Cost: a window of (experts of a rank + `spare`) x the bytes of an expert, of the bulk class, and
/// a window of signals.
/// Threads: one call at a time.
class expert_weights {
 public:
  /// Makes the memory, for the experts of `placement`. Collective, with equal arguments. `comm`
  /// must outlive the object. The content is zero.
  /// Throws, on all ranks: `error` invalid_argument without tensors, if `spare` is 0 or more than
  /// `max_experts`, if `slice` is 0, for more than 2^44 bytes at a rank, or for a placement of
  /// other ranks; mismatch if ranks differ; as `communicator::make_window`.
  template <transport Transport>
  expert_weights(communicator<Transport>& comm, const expert_map& placement, expert_tensors shape,
                 std::optional<deadline> until = std::nullopt)
      : expert_weights{
            comm, placement, std::move(shape),
            [&](window_shape sizes, deadline limit) { return make_any_window(comm, sizes, limit); },
            until.value_or(comm.default_deadline())} {}

  expert_weights(const expert_weights&) = delete;
  expert_weights& operator=(const expert_weights&) = delete;
  ~expert_weights();

  /// Returns tensor `i` of local expert `e`, one of this rank's physical experts from 0 on: [bytes
  /// of the tensor], aligned to 64 bytes. Valid until `commit` has given another expert that place.
  /// Between `begin` and the end of the moves the caller must not write it. Zero until the caller
  /// or a move writes it.
  [[nodiscard]] std::span<std::byte> tensor(std::size_t e, std::size_t i) noexcept;
  /// Returns the map of the experts whose tensors this object holds. `begin` and `abandon` mark in
  /// it the ranks that are gone.
  [[nodiscard]] const expert_map& experts() const noexcept { return experts_; }

  /// Begins to move the experts to the places of `wanted`: [physical experts], as in
  /// `exchange_config::physical_to_logical`. Earlier moves must have ended. Collective. Ranks that
  /// are gone send and receive nothing.
  /// Returns: the number of rounds; 0 if each rank has its experts already.
  /// Cost: one agreement, and the plan.
  /// Throws, on all ranks, before anything has begun: `error` invalid_argument for an impossible
  /// table, one that leaves an expert to ranks that are gone, or moves under way; mismatch if
  /// tables differ; as `rank_group::agree`.
  std::size_t begin(std::span<const std::uint32_t> wanted,
                    std::optional<deadline> until = std::nullopt) {
    return begin_from({}, wanted, until);
  }
  /// Begins to move the experts as the overload for a table does, for a plan of `plan_incremental`.
  /// Throws, on all ranks: as that overload; `error` invalid_argument if the plan began with
  /// another map.
  std::size_t begin(const incremental_plan& wanted, std::optional<deadline> until = std::nullopt) {
    return begin_from(wanted.old_map, wanted.plan.physical_to_logical(), until);
  }

  /// Returns whether a round is under way.
  [[nodiscard]] bool is_moving() const noexcept { return !rounds_.empty(); }

  /// Sends up to `bytes` bytes of this round, in puts of at most `expert_tensors::slice`. Not
  /// collective.
  /// Returns: true if this rank has sent all its bytes of the round.
  /// Cost: the puts, which copy the bytes over transports by stores.
  /// Throws: `error` peer_dead, unreachable, timed_out (a peer took no bulk traffic); the group is
  /// then poisoned.
  bool advance(std::size_t bytes);

  /// Ends the round if all ranks have received their experts. Then gives each of `exchanges` the
  /// new map with `choice` (`exchange::install_experts`), and lets `tensor` return the new experts.
  /// All batches of these exchanges must be combined. Collective.
  /// Returns: true if all rounds have ended, false if `advance` must go on; the same on all ranks.
  /// Cost: a signal to each peer, and a wait for each; if the round ends, that of
  /// `install_experts`. Nothing if no round is under way.
  /// Throws, on all ranks: `error` mismatch if the canary of an expert is wrong, with the rank that
  /// has it; as `install_experts`. The old map then stands, and after mismatch `abandon` must
  /// follow. If an exchange already has the new map, give it the map of `experts()` again. On ranks
  /// that are out of step: peer_dead, timed_out, poisoned.
  template <class... Exchange>
  bool commit(const replica_choice& choice, Exchange&... exchanges) {
    static_assert(sizeof...(Exchange) > 0,
                  "commit: expected an exchange, which decides for all ranks");
    if (!is_moving()) return true;
    const deadline until = group_->default_deadline();
    if (!have_all_arrived(until)) return false;
    (exchanges.install_experts(rounds_.front().physical_to_logical, choice, until), ...);
    return finish_round();
  }

  /// Drops the round that is under way and the rounds after it. The experts stay where they were
  /// before the round. Collective among the ranks of the view, also after
  /// `continue_without_the_dead` (communicator/communicator.hpp). All ranks call it, also ranks
  /// without a round under way.
  /// Cost: one `rank_group::gather`.
  /// Throws: as `rank_group::gather`.
  void abandon(std::optional<deadline> until = std::nullopt);

 private:
  /// The answer of a rank in `commit`.
  enum class state : std::uint64_t { waits = 0, has_all = 1, has_wrong = 2 };
  struct canary;
  struct outgoing {
    rank_id peer;
    std::size_t source;  ///< offsets of the places in the window
    std::size_t target;
    std::uint64_t number;  ///< the number of the move among all, raised as its signal
  };
  struct incoming {
    rank_id peer;
    std::size_t target;
    std::uint32_t expert;
    std::uint64_t number;
  };

  expert_weights(rank_group& group, const expert_map& placement, expert_tensors shape,
                 window_source make_window, deadline until);

  [[nodiscard]] std::size_t offset_of(std::uint32_t physical) const noexcept {
    return places_[physical] * place_bytes_;
  }
  void label(std::size_t place_offset, std::uint32_t expert) noexcept;
  /// Checks the arguments of the constructor.
  /// Throws: `error` invalid_argument if they are impossible.
  void require_possible() const;
  /// Numbers the places of the physical experts at each rank. Free places have the highest numbers.
  void number_places();
  /// Returns the configuration of an exchange whose experts have these places.
  [[nodiscard]] exchange_config config_of(std::span<const std::uint32_t> table) const noexcept;
  /// Begins to move, from the map `planned_for` unless that is empty.
  std::size_t begin_from(std::span<const std::uint32_t> planned_for,
                         std::span<const std::uint32_t> wanted, std::optional<deadline> until);
  /// Checks that `planned_for` is empty or the map here.
  /// Throws: `error` invalid_argument if not.
  void require_planned_here(std::span<const std::uint32_t> planned_for) const;
  /// Marks as gone the ranks that are gone from the view.
  void note_the_gone();
  /// Forgets the moves that this rank sends and awaits.
  void forget_round() noexcept;
  /// Computes the moves that this rank sends and awaits in the first of `rounds_`.
  void set_up_round();
  [[nodiscard]] state arrivals(deadline until) noexcept;
  [[nodiscard]] bool have_all_arrived(deadline until);
  bool finish_round();

  rank_group* group_;
  expert_tensors shape_;
  expert_map experts_;
  std::vector<std::uint32_t> experts_of_rank_;
  std::vector<std::size_t> tensor_at_;  ///< offset of each tensor within a place
  std::size_t place_bytes_ = 0;
  std::vector<std::uint32_t> places_;             ///< place of each physical expert at its rank
  std::vector<std::vector<std::uint32_t>> free_;  ///< places of each rank without an expert
  std::vector<move_round> rounds_;
  std::vector<outgoing> leaving_;   ///< moves of this round from this rank
  std::vector<incoming> arriving_;  ///< moves of this round to this rank
  std::size_t sent_ = 0;            ///< moves of `leaving_` that are complete
  std::size_t sent_bytes_ = 0;      ///< bytes of the next move that are sent
  std::uint64_t moves_ = 0;         ///< moves of all ranks in all rounds, also dropped ones
  std::uint64_t commits_ = 0;
  std::unique_ptr<any_window> memory_;  ///< signal r: the latest move of rank r that is complete
  std::unique_ptr<any_window>
      control_;  ///< signals r and ranks + r: state of r in every second commit
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/expert_weights.ipp>  // IWYU pragma: keep
#endif
