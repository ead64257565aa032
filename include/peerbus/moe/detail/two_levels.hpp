// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_subset.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane_team.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/group_grid.hpp>
#include <peerbus/moe/detail/hand_on.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/near_road.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// One level of a `two_levels`: an exchange among some ranks of a communicator.
template <transport Whole, class Tag, token_codec Codec, row_layout Layout>
struct exchange_level {
  using subset = peerbus::detail::rank_subset<Whole, Tag>;
  using exchange_type = exchange<subset, Codec, Layout>;

  /// Makes the level among `ranks`. Collective among all ranks of `whole`.
  exchange_level(std::string_view level_name, communicator<Whole>& whole,
                 std::vector<rank_id> ranks, const exchange_config& config, Codec codec,
                 Layout layout, deadline until)
      : name{level_name},
        boot{whole.bus().boot(), std::move(ranks)},
        comm{subset{whole.bus(), boot}, {.timeout = time_until(until)}},
        rows{comm, config, codec, layout, until},
        waited(comm.size()) {}

  /// Returns the time to a deadline. Only the communicator's own window is made with it.
  static std::chrono::milliseconds time_until(deadline until) noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(until.remaining());
  }

  std::string_view name;  ///< for messages
  peerbus::detail::subset_bootstrap boot;
  communicator<subset> comm;
  exchange_type rows;
  std::vector<std::int64_t> waited;  ///< [ranks of the level]
};

/// The exchange in two levels. First each token goes to the ranks that represent the groups of its
/// experts in the column of its home rank (`group_grid`). Each of these ranks hands the rows on to
/// the experts' ranks in its group, as they are encoded. Combine goes back the same way: the sum of
/// a group, rounded to bf16, crosses once.
///
/// Both levels are exchanges, whose dispatches have equal numbers. If there are several lanes, lane
/// 0 alone uses the state of batches, in `serial`, and all lanes call the operations of the levels.
template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
class two_levels {
  using far_level = exchange_level<Transport, column_tag, Codec, rank_major>;
  using near_level = exchange_level<Transport, near_ranks_tag, Codec, Layout>;
  using far_exchange = typename far_level::exchange_type;
  using near_exchange = typename near_level::exchange_type;

 public:
  using received_type = typename near_exchange::received_type;
  using token = token_of<Codec>;

  /// Makes both levels. Collective. `experts` is the map of the whole group. `config` has been
  /// agreed on, and `obstacle_to_relay` has found none.
  two_levels(communicator<Transport>& comm, const exchange_config& config,
             const expert_map& experts, const group_grid& grid, Codec codec, Layout layout,
             deadline until);

  [[nodiscard]] moe::ticket dispatch_send(std::span<const token> tokens, const routing& route,
                                          const dispatch_options& options, deadline until);
  [[nodiscard]] received_type dispatch_recv(moe::ticket ticket, const receive_options& options,
                                            deadline until);
  void combine(const received_type& rows, std::span<bf16> out, const combine_options& options,
               deadline until);
  void combine_send(const received_type& rows, const publish_options& options, deadline until);
  void combine_recv(const received_type& rows, std::span<bf16> out, const sum_options& options,
                    deadline until);

  [[nodiscard]] std::span<const std::byte> note(moe::ticket ticket, rank_id source);
  [[nodiscard]] row_traffic traffic(moe::ticket ticket);

  [[nodiscard]] std::uint64_t next_dispatch() const noexcept { return far_->rows.next_dispatch(); }
  [[nodiscard]] const memory_map& far_map() const noexcept { return far_->rows.map(); }
  [[nodiscard]] const memory_map& near_map() const noexcept { return near_->rows.map(); }

 private:
  /// The progress of a batch between its levels.
  enum class progress : std::uint8_t {
    none,      ///< never used, or refused by another rank
    refused,   ///< refused by this rank, which has told the ranks of both levels
    sent,      ///< on its way to the first level
    received,  ///< with its experts
  };
  struct batch_state {
    std::uint64_t number = 0;
    progress reached = progress::none;
    refusal why{};  ///< set if the first level has refused it, or this rank its last combine
    std::optional<typename far_exchange::received_type> rows{};  ///< on the first level
  };

  /// The place of a rank's note: in the note of its representative in this group.
  struct note_place {
    rank_id hands_on{0};      ///< number of the representative in the group
    std::size_t in_column{};  ///< number of the rank in its column
  };

  /// For the first turn of a call, of which lanes must agree on the name.
  template <class Turn>
  void serial(const char* call, lane as, deadline until, Turn&& turn) {
    team_.serial(
        as, until, turn, [this](errc code, const std::string& text) { comm_->fail(code, text); },
        call);
  }
  template <class Turn>
  void serial(lane as, deadline until, Turn&& turn) {
    serial(nullptr, as, until, turn);
  }
  /// Returns `waited` for the lane that measures.
  [[nodiscard]] static std::span<std::int64_t> of_lane_0(std::span<std::int64_t> waited,
                                                         lane as) noexcept {
    return as.index == 0 ? waited : std::span<std::int64_t>{};
  }
  void require(std::string_view doing, std::span<const std::int64_t> waited) const;
  /// Returns `call()`. A failure that leaves the ranks out of step poisons the whole communicator
  /// and names the ranks of `level`.
  template <class Level, class Call>
  decltype(auto) guarded(const Level& level, Call&& call);
  /// Calls `call(span)` with a place for the waits of `level`, and adds them to `waited`.
  template <class Level, class Call>
  decltype(auto) measured(Level& level, std::span<std::int64_t> waited, Call&& call);

  /// Uses up the numbers of the next dispatches of the second level that this rank has refused.
  void skip_refused() noexcept;
  /// Begins the dispatch of the first level.
  void begin(std::span<const token> tokens, const routing& route, const dispatch_options& options,
             deadline until);
  /// Returns the state of the batch of `ticket`, whose dispatch on the second level is the next.
  batch_state& next_to_receive(moe::ticket ticket);
  /// Begins to hand on the rows in `state`, or the refusal `refused` of its first level.
  void pass_on(batch_state& state, const std::optional<refusal_of>& refused, deadline until);
  /// Returns the notes that came with the rows in `state`, as they are handed on; empty if none.
  [[nodiscard]] std::span<const std::byte> notes_of(const batch_state& state);
  /// Returns the state of the received batch of `ticket`.
  batch_state& received_state(std::string_view doing, moe::ticket ticket);

  /// Returns the state of the batch that `rows` belong to.
  batch_state& state_of(std::string_view doing, const received_type& rows, stage expected);
  [[nodiscard]] refusal objection_to_sum(batch_state& state, const combine_sum& wanted);
  void finish(const received_type& rows, const combine_sum& wanted, lane as, deadline until,
              std::span<std::int64_t> waited);

  /// Returns the reason in `refused` with the number of the rank whose input is bad, or none.
  template <class Level>
  [[nodiscard]] static refusal named(const Level& level, const std::optional<refusal_of>& refused) {
    if (!refused) return {};
    refusal why = refused->why;
    if (why.relayed_for == 0)
      why.relayed_for = static_cast<std::uint32_t>(
          1 + level.boot.ranks_of_whole()[refused->rank.index()].index());
    return why;
  }
  [[nodiscard]] refusal own(refusal why) const noexcept {
    if (why) why.relayed_for = static_cast<std::uint32_t>(1 + comm_->rank().index());
    return why;
  }
  [[noreturn]] void refuse(std::string_view operation, std::uint64_t number,
                           const refusal& why) const;

  communicator<Transport>* comm_;
  std::size_t hidden_;
  std::size_t top_k_;
  std::array<std::size_t, max_attachments> attachments_;
  std::size_t note_bytes_;               ///< of one rank
  std::size_t handed_note_bytes_;        ///< of one rank in the note that is handed on
  std::vector<std::byte> notes_;         ///< the note that is handed on
  std::vector<note_place> note_places_;  ///< [ranks]
  std::unique_ptr<far_level> far_;
  std::unique_ptr<near_level> near_;
  per_batch<batch_state> states_;
  peerbus::detail::lane_team team_;
};

}  // namespace peerbus::moe::detail

#include <peerbus/moe/detail/two_levels.ipp>          // IWYU pragma: keep
#include <peerbus/moe/detail/two_levels_combine.ipp>  // IWYU pragma: keep
#include <peerbus/moe/detail/two_levels_queries.ipp>  // IWYU pragma: keep
#include <peerbus/moe/detail/two_levels_set_up.ipp>   // IWYU pragma: keep
