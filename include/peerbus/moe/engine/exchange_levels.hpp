// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/exchange_parts.hpp>
#include <peerbus/moe/engine/received_views.hpp>
#include <peerbus/moe/engine/relay_engine.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/row_path_over.hpp>
#include <peerbus/moe/plan/relay_plan.hpp>
#include <peerbus/moe/replica_choice.hpp>
#include <peerbus/moe/stores.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe::detail {

/// The levels of an exchange, as its constructor makes them together with the other ranks: one
/// over all ranks, or with relay a far and a near one.
template <transport Transport, token_codec Codec, row_layout Layout>
class exchange_levels {
 public:
  template <peer_reach Reach>
  using path_over = typename row_path_over<Reach, Codec>::type;
  static constexpr peer_reach reach_by_type = peerbus::reach_by_type<Transport>;
  using views = received_views<Codec, Layout>;

  /// Makes the levels of the exchange at `exchange`, the address that tickets have. Collective. If
  /// `finds_groups`, the choice tells groups also with `relay::never`. Throws as the constructor
  /// of `exchange`.
  exchange_levels(const void* exchange, communicator<Transport>& comm, const exchange_config& given,
                  const Codec& codec, const Layout& layout, deadline until, bool finds_groups);
  exchange_levels(const exchange_levels&) = delete;
  exchange_levels& operator=(const exchange_levels&) = delete;
  ~exchange_levels() = default;

  /// Returns the map of an exchange among `ranks` ranks whose path has `needs`.
  static constexpr memory_map map_of(const exchange_config& config, const block_geometry& geometry,
                                     std::size_t ranks, row_path_memory needs) noexcept {
    return {config, geometry, ranks, codec_facts::of<Codec>(config.hidden).format, needs};
  }

  /// Returns the choices in one level. Contract as `exchange::choices_for`.
  [[nodiscard]] static exchange_choices choices_for(communicator<Transport>& comm,
                                                    const exchange_config& given,
                                                    const Layout& layout);

  /// Returns the agreed configuration, without the memory that the caller may free.
  [[nodiscard]] const exchange_config& config() const noexcept { return config_; }
  [[nodiscard]] const Codec& codec() const noexcept { return codec_; }
  [[nodiscard]] const exchange_choices& choices() const noexcept { return choices_; }
  /// Returns the parts in which rows arrive. With relay, they are those of the near level.
  [[nodiscard]] exchange_parts& parts() const noexcept { return *parts_; }
  /// Returns the parts of the far level, or null without relay.
  [[nodiscard]] exchange_parts* far() const noexcept { return far_.get(); }
  /// Returns the engine of both levels, or null without relay.
  [[nodiscard]] relay_engine* relay() const noexcept { return relay_.get(); }
  [[nodiscard]] exchange_engine& engine() const noexcept {
    return relay_ ? static_cast<exchange_engine&>(*relay_) : parts_->core;
  }
  [[nodiscard]] any_window_over<Transport>& window() const noexcept { return *window_; }
  [[nodiscard]] const expert_map& placement() const noexcept {
    return ranks_ ? ranks_->router.map() : parts_->batches.experts();
  }
  /// Returns the views of the rows of batch set `set`.
  [[nodiscard]] views& rows(std::size_t set) noexcept { return rows_[set]; }
  /// Installs other experts. Contract as `exchange::install_experts`.
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const replica_choice& replicas, deadline until);

 private:
  /// Agrees on the configuration and chooses the levels. Returns the groups, if they are found.
  near_groups agree(const exchange_config& given, const Layout& layout, deadline until,
                    bool finds_groups);
  std::unique_ptr<any_window_over<Transport>> make_window(std::size_t bytes, std::size_t signals,
                                                          deadline until);
  /// Makes all parts except the window, and calls `also(parts)`. Collective, as `make_window`.
  template <class Path, class Also>
  std::unique_ptr<exchange_parts> make_parts(const exchange_config& config,
                                             const block_geometry& geometry, const memory_map& map,
                                             std::unique_ptr<any_window> window,
                                             store_reason stores_by, deadline until, Also&& also);
  void make_views(const exchange_config& config, const block_geometry& geometry,
                  const exchange_parts& parts);
  /// Makes the level of an exchange that does not relay, with a path for `Reach`. Collective.
  template <peer_reach Reach>
  void make_one_level(const exchange_config& given, const Layout& layout, deadline until);
  /// Makes the two levels of an exchange that relays. Collective.
  void make_two_levels(const exchange_config& given, const Layout& layout,
                       const near_groups& groups, deadline until)
    requires partly_direct_transport<Transport>;

  const void* exchange_;
  communicator<Transport>& comm_;
  std::vector<std::uint32_t> experts_of_rank_;  ///< [ranks]; empty if divided equally
  exchange_config config_;
  [[no_unique_address]] Codec codec_;
  exchange_choices choices_;  ///< the choices with which the exchange began
  // Shared pointers destroy by a function that `make_two_levels` gives them, so that no program
  // over a transport without far ranks contains the relay: it would be reached from the destructor.
  std::shared_ptr<relay_ranks> ranks_;
  any_window_over<Transport>* window_ = nullptr;  ///< window of `parts_`, of all ranks
  std::unique_ptr<exchange_parts> parts_;
  std::unique_ptr<exchange_parts> far_;
  std::shared_ptr<relay_engine> relay_;
  std::vector<views> rows_;  ///< [batch sets]
};

}  // namespace peerbus::moe::detail

#include <peerbus/moe/engine/exchange_levels.ipp>  // IWYU pragma: keep
#include <peerbus/moe/engine/relay_levels.ipp>     // IWYU pragma: keep
