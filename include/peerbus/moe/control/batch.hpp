// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/peer_checks.hpp>
#include <peerbus/moe/control/store_trials.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/put_order.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// The progress of a batch. In `counted`, `sent` and `returning` this rank has begun an operation
/// and must still call its second half.
enum class stage : std::uint8_t {
  idle,       ///< never used
  counted,    ///< counts are posted; rows leave when they have their places
  sent,       ///< this rank's rows have left
  received,   ///< all rows for this rank have arrived
  released,   ///< not combined; its memory is given up to a later dispatch
  returning,  ///< outputs are announced
  returned    ///< combined
};

/// Returns whether a batch is not between its dispatch and its combine.
constexpr bool is_over(stage reached) noexcept {
  return reached == stage::idle || reached == stage::released || reached == stage::returned;
}

/// A batch that is between its dispatch and its combine.
struct unfinished_batch {
  std::uint64_t number;
  stage reached;
};

/// Returns the state of a batch in words, for error messages.
inline std::string_view describe(stage reached) noexcept {
  switch (reached) {
    case stage::idle: return "not dispatched";
    case stage::counted:
    case stage::sent: return "not received yet";
    case stage::received: return "received";
    case stage::released: return "given up to a later dispatch";
    case stage::returning: return "on its way home";
    case stage::returned: return "combined already";
  }
  return "unknown";
}

/// The part of a batch set in ordinary memory: the state of the dispatch that uses the set. Only
/// the constructor allocates.
class batch {
 public:
  /// Allocates the plans of one set. `path` has the needs of the exchange's path.
  batch(const exchange_config& config, const block_geometry& geometry,
        const std::shared_ptr<const expert_router>& router, rank_id rank, std::size_t rank_count,
        const row_path_memory& path)
      : leaving{config, geometry, router, rank, rank_count},
        arriving{geometry, rank, rank_count},
        order{path.stages ? std::make_unique<put_order>(config, geometry, rank_count) : nullptr},
        checks{config.distrust_peers
                   ? std::make_unique<peer_checks>(config, geometry, router, rank, rank_count)
                   : nullptr} {}

  send_plan leaving;
  recv_plan arriving;
  std::unique_ptr<put_order> order;     ///< null unless the path stages
  std::unique_ptr<peer_checks> checks;  ///< null unless ranks distrust their peers
  batch_input input;
  stage reached = stage::idle;
  std::uint64_t number = 0;    ///< number of the dispatch
  std::uint64_t combines = 0;  ///< attempts to combine, over all dispatches that used the set
  refusal refused;             ///< set if the dispatch or combine under way is refused
  rank_id refused_by{0};
  batch_stores stores;
  bool attached = false;            ///< true if this rank sends output attachments home
  std::uint64_t brings = 0;         ///< record of the attachments, for the other ranks
  std::uint64_t dispatched_as = 0;  ///< once received: `number` less the numbers that views skip
  std::uint64_t received_as = 0;    ///< position among the received batches, from 1 on
  std::uint64_t combined_as = 0;    ///< position among the combined batches; 0 if not combined
  std::uint64_t reopened_as = 0;    ///< position of its last `reopen` among those of all batches
  refusal lost;                     ///< reason why it cannot be combined, after ranks were lost
  std::size_t most_tokens = 0;      ///< the most tokens of a rank in the dispatch

  /// Sets the largest number of tokens of a rank in the next dispatch of the set.
  void bound(std::size_t tokens) noexcept {
    most_tokens = tokens;
    leaving.bound(tokens);
    arriving.bound(tokens);
  }
  /// Starts to use the set for dispatch `new_number`.
  void begin(std::uint64_t new_number, const batch_input& new_input,
             const batch_stores& new_stores) noexcept {
    previous_ = {reached, number, stores, received_as, combined_as, reopened_as, lost};
    reached = stage::counted;
    received_as = combined_as = reopened_as = 0;
    lost = {};
    number = new_number;
    input = new_input;
    stores = new_stores;
    refused = {};
  }
  /// Records the refusal in `peer_refusal`, if there is one. Returns whether there is one.
  [[nodiscard]] bool refuse(const std::optional<refusal_of>& peer_refusal) noexcept {
    if (!peer_refusal) return false;
    refused = peer_refusal->why;
    refused_by = peer_refusal->rank;
    return true;
  }
  /// Returns the set to the previous dispatch, after a dispatch that was refused.
  void undo() noexcept {
    reached = previous_.reached;
    number = previous_.number;
    stores = previous_.stores;
    received_as = previous_.received_as;
    combined_as = previous_.combined_as;
    reopened_as = previous_.reopened_as;
    lost = previous_.lost;
  }

  /// Forgets the dispatch that the set holds.
  void forget() noexcept {
    reached = stage::idle;
    number = received_as = combined_as = reopened_as = 0;
    stores = {};
  }

  /// Returns the origins of the rows that arrived, from row 0. `set` is the set of the batch at
  /// this rank.
  [[nodiscard]] const wire_origin* origins(const set_view& set) const noexcept {
    return checks ? checks->origins() : set.origin(0);
  }
  /// Returns the local expert ids of the slots of the rows that arrived, from row 0. Layouts by
  /// rank only.
  [[nodiscard]] std::int32_t* experts(const set_view& set) const noexcept {
    return checks ? checks->experts() : peerbus::detail::placed<std::int32_t>(set.experts(0));
  }

  /// Returns the batch as its path sees it. `set` is the set of the batch at this rank,
  /// `set_number` its number, and lanes make rows in `buffers`.
  [[nodiscard]] row_path_batch on_path(const set_view& set, std::size_t set_number,
                                       const row_buffers& buffers) const noexcept {
    return {input,      leaving,  arriving,           origins(set), order.get(),
            set_number, attached, stores.stream_from, buffers};
  }

 private:
  struct use_of_set {
    stage reached = stage::idle;
    std::uint64_t number = 0;
    batch_stores stores;
    std::uint64_t received_as = 0;
    std::uint64_t combined_as = 0;
    std::uint64_t reopened_as = 0;
    refusal lost;
  };

  use_of_set previous_;
};

}  // namespace peerbus::moe::detail
