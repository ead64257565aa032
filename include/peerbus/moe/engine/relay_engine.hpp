// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/subset.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/lane_barrier.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/engine/exchange_engine.hpp>
#include <peerbus/moe/engine/exchange_parts.hpp>
#include <peerbus/moe/engine/new_experts.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/plan/level_configs.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/relay_plan.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/wait_watch.hpp>

namespace peerbus::moe::detail {

/// The exchange that relays. First each token goes to the ranks that represent the groups of its
/// experts in the column of its home rank (`near_groups`): the far level. Each of these ranks hands
/// the rows on to the experts' ranks in its group, as they are encoded: the near level. Combine
/// goes back the same way: the sum of a group crosses once, as bf16 or as `relay_sums` says. The
/// home rank chooses among the replicas of an expert, and the near level gets physical experts.
///
/// Both levels are exchanges, whose dispatches have equal numbers. If there are several lanes, lane
/// 0 alone uses the state of batches, in `serial`, and all lanes call the operations of the levels.
///
/// A refusal that one level passes to the other names the rank whose input is bad in `relayed_for`.
class relay_engine final : public exchange_engine {
 public:
  /// One of the two levels.
  struct level {
    /// Takes the parts of the level, which must outlive it.
    level(peerbus::detail::subset_group& members, exchange_parts& own_parts,
          std::span<const std::uint32_t> own_experts)
        : group{&members}, parts{&own_parts}, experts{own_experts}, waited(members.size()) {}

    [[nodiscard]] exchange_core& core() const noexcept { return parts->core; }

    peerbus::detail::subset_group* group;
    exchange_parts* parts;
    std::span<const std::uint32_t> experts;  ///< the physical expert of each of the level's, or
                                             ///< `vacant` for a place without one
    std::vector<std::int64_t> waited;        ///< [ranks of the level] nanoseconds
  };

  /// Drives `far_level` and `near_level`, exchanges among some ranks of `whole` with tickets of
  /// `exchange`. `config` is that of all ranks, and `members` outlives the engine.
  relay_engine(const void* exchange, rank_group& whole, const exchange_config& config,
               const near_groups& groups, relay_ranks& members, const level& far_level,
               const level& near_level);

  [[nodiscard]] std::uint64_t next_dispatch() const noexcept override {
    return far_.parts->batches.latest() + 1;
  }
  void watch(wait_watch* watch) noexcept override {
    far_.core().watch(watch);
    near_.core().watch(watch);
  }
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> dispatch_send(
      const batch_input& input, const routing& route, const dispatch_options& options,
      deadline until) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> dispatch_recv(
      ticket named, const receive_options& options, deadline until,
      peerbus::detail::function_ref<void(const batch&)> arrived) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> combine(ticket rows,
                                                                 const combine_sum& wanted,
                                                                 const combine_options& options,
                                                                 deadline until) override;
  PEERBUS_INLINE void combine_send(ticket rows, const publish_options& options,
                                   deadline until) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> combine_recv(ticket rows,
                                                                      const combine_sum& wanted,
                                                                      const sum_options& options,
                                                                      deadline until) override;
  PEERBUS_INLINE void reopen(ticket rows, const receive_options& options, deadline until) override;
  [[nodiscard]] PEERBUS_INLINE bool awaits_combine(ticket rows) noexcept override;
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const replica_choice& replicas, deadline until);

  [[nodiscard]] PEERBUS_INLINE row_keepers& keepers(ticket rows) override;
  [[nodiscard]] PEERBUS_INLINE set_view columns(ticket named) override;
  [[nodiscard]] PEERBUS_INLINE std::span<const std::byte> note(ticket named,
                                                               rank_id source) override;
  [[nodiscard]] PEERBUS_INLINE row_traffic traffic(ticket named) override;
  [[nodiscard]] PEERBUS_INLINE std::span<const std::uint32_t> rows_of_blocks(ticket named) override;
  [[nodiscard]] PEERBUS_INLINE bool attached_by(ticket named, rank_id rank) override;
  [[nodiscard]] PEERBUS_INLINE std::byte* returned_attachment(ticket named, std::size_t t,
                                                              std::size_t copy) override;

 private:
  /// The progress of a batch between its levels.
  enum class progress : std::uint8_t {
    none,      ///< never used, or refused by another rank
    refused,   ///< refused by this rank, which has told the ranks of both levels
    sent,      ///< sent to the ranks of the first level
    received,  ///< received by the ranks of its experts
  };
  struct batch_state {
    std::uint64_t number = 0;
    progress reached = progress::none;
    std::size_t bound = 0;  ///< `dispatch_options::bound`
    refusal why{};          ///< set if the far level has refused it, or this rank its last combine
  };

  /// The place of a rank in the levels.
  struct rank_place {
    rank_id hands_on{0};      ///< its representative in this group, by number in the group
    std::size_t in_column{};  ///< its number in its column
    rank_id group_sums{0};    ///< the representative of its group, by number in the column
    std::size_t in_group{};   ///< its number in its group
  };

  /// The waits of one operation of a level. The destructor adds them to those of all ranks, also if
  /// the operation fails.
  class level_waits {
   public:
    /// Measures nothing if `all_ranks` is empty.
    level_waits(level& measured, std::span<std::int64_t> all_ranks) noexcept;
    level_waits(const level_waits&) = delete;
    level_waits& operator=(const level_waits&) = delete;
    ~level_waits();
    /// Returns the waits: [ranks of the level], or empty.
    [[nodiscard]] std::span<std::int64_t> own() const noexcept {
      return {level_->waited.data(), all_.empty() ? 0 : level_->waited.size()};
    }

   private:
    level* level_;
    std::span<std::int64_t> all_;
  };

  /// Runs the first turn of a call, of which lanes must agree on the name, in lane 0.
  void serial(const char* call, lane caller, deadline until,
              peerbus::detail::function_ref<void()> turn) {
    team_.serial(
        caller, until, turn,
        [this](errc code, const std::string& text) { whole_->fail(code, text); }, call);
  }
  void serial(lane caller, deadline until, peerbus::detail::function_ref<void()> turn) {
    serial(nullptr, caller, until, turn);
  }
  /// Returns `waited` for lane 0, which measures, and an empty span for other lanes.
  [[nodiscard]] static std::span<std::int64_t> of_lane_0(std::span<std::int64_t> waited,
                                                         lane caller) noexcept {
    return caller.index == 0 ? waited : std::span<std::int64_t>{};
  }
  void require(std::string_view doing, std::span<const std::int64_t> waited) const;

  /// Uses up the numbers of the next dispatches of the near level that this rank has refused.
  void skip_refused() noexcept;
  /// Begins the dispatch of the far level. Returns the refusal of this rank.
  [[nodiscard]] refusal begin(const batch_input& input, const routing& route,
                              const dispatch_options& options, deadline until);
  /// Returns the state of the batch of `named`, whose dispatch on the near level is the next.
  batch_state& next_to_receive(ticket named);
  /// Begins to hand on the rows of a batch, or the refusal `crossed` of its far level.
  void pass_on(batch_state& state, const std::optional<refusal_of>& crossed, deadline until);
  /// Returns the notes that came with the rows of a batch, as they are handed on; empty if none.
  [[nodiscard]] std::span<const std::byte> notes_of(const batch_state& state);
  /// Returns the state of the received batch of `named`.
  batch_state& received_state(std::string_view doing, ticket named);

  /// Returns the unfinished batch with the lowest number, if any.
  [[nodiscard]] std::optional<unfinished_batch> unfinished() noexcept;

  /// Returns the state of the batch that `rows` belong to.
  batch_state& state_of(std::string_view doing, ticket rows, stage expected);
  [[nodiscard]] refusal objection_to_sum(const batch_state& state, const combine_sum& wanted);
  /// Returns whether output attachments go home.
  [[nodiscard]] bool attachments_return() const noexcept {
    return config_.output_attachment != 0 && !config_.logfmt_outputs;
  }
  /// Returns a bit for each rank of the group that attached something in the combine of `rows`.
  [[nodiscard]] std::uint64_t attached_in_group(ticket rows);
  /// Copies this lane's share of the attachments from ranks of the group to the place from which
  /// the attachments of their sums go home.
  void hand_attachments(ticket rows, std::uint64_t attached, lane caller) noexcept;
  /// Publishes the outputs on the near level, or the refusal in `state`.
  void publish(const char* doing, const batch_state& state, const publish_options& options,
               deadline until);
  [[nodiscard]] std::optional<refusal_of> finish(ticket rows, const combine_sum& wanted,
                                                 lane caller, deadline until,
                                                 std::span<std::int64_t> waited);

  /// Returns the ticket of a batch on both levels.
  [[nodiscard]] ticket named(const batch_state& state) const noexcept {
    return {state.number, exchange_};
  }
  /// Returns the set of batch `number` on a level, at this rank.
  [[nodiscard]] static set_view set_of(const level& this_level, std::uint64_t number) noexcept {
    std::byte* const own = this_level.parts->window->local();
    if (own == nullptr) __builtin_unreachable();  // It is there, unlike those of far ranks.
    return {this_level.parts->map, own, number % this_level.parts->config.in_flight};
  }
  /// Returns the reason in `refused` with the number of the rank whose input is bad, or none.
  [[nodiscard]] static refusal relayed(const level& by,
                                       const std::optional<refusal_of>& refused) noexcept;
  /// Returns `why` with this rank as the one whose input is bad, if it is a refusal.
  [[nodiscard]] refusal own(refusal why) const noexcept {
    if (why) why.relayed_for = static_cast<std::uint32_t>(1 + whole_->rank().index());
    return why;
  }
  /// Returns `why` with the rank that it names, if it is a refusal.
  [[nodiscard]] static std::optional<refusal_of> answer(const refusal& why) noexcept {
    if (!why) return std::nullopt;
    return refusal_of{rank_id{std::size_t{why.relayed_for} - 1}, why};
  }

  const void* exchange_;
  rank_group* whole_;
  exchange_config config_;
  std::size_t column_;                   ///< ranks of the largest column
  std::size_t handed_note_bytes_;        ///< bytes of one rank in the note that is handed on
  std::vector<std::byte> notes_;         ///< the note that is handed on
  std::vector<rank_place> rank_places_;  ///< [ranks]
  relay_ranks* ranks_;
  level far_;
  level near_;
  per_batch<batch_state> states_;
  peerbus::detail::lane_barrier team_;
  refusal refused_;  ///< refusal of the call under way; lane 0 writes it inside `serial`
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/relay_attachments.ipp>  // IWYU pragma: keep
#include <peerbus/moe/engine/relay_combine.ipp>      // IWYU pragma: keep
#include <peerbus/moe/engine/relay_engine.ipp>       // IWYU pragma: keep
#include <peerbus/moe/engine/relay_experts.ipp>      // IWYU pragma: keep
#endif
