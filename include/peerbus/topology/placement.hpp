// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/topology/bind.hpp>
#include <peerbus/topology/choose_cpus.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/machine.hpp>
#include <peerbus/topology/peer_order.hpp>
#include <peerbus/transport/memory_hook.hpp>

namespace peerbus::topology {

/// The parts of a placement that a program may turn off.
struct placement_options {
  /// Pins each rank's thread, unless a launcher has chosen the cpus of the ranks, the ranks are on
  /// several hosts, or there are more ranks than cpus.
  bool pin = true;
  /// Binds each rank's part of windows to the rank's NUMA node.
  bool bind = true;
  /// The time that the other ranks may take to arrive.
  std::chrono::milliseconds timeout{30'000};
};

/// The placement of a group of ranks on one host. Create it before the transport:
///
///     topology::placement here{boot};
///     communicator comm{unified_bus{boot, {}, here.on_memory()}};
///     comm.order_peers(here.peer_order());
///
/// The constructors and `report` are collective. A step that fails is left out and reported in
/// words, because a badly placed program is slow, not wrong.
/// Threads: the threads of a rank may share a placement.
class placement {
 public:
  /// Reads the machine and pins the calling thread of each rank. Collective. If all ranks may use
  /// the same cpus, each rank gets its cpu of `choose_cpus`. If their cpus differ, a launcher has
  /// chosen them, and the ranks are not pinned. `placement_options::pin` lists the other cases in
  /// which a rank is not pinned.
  /// Cost: two calls of `bootstrap::allgather`, and reading the machine.
  /// Throws: `error` as `bootstrap::allgather`.
  explicit placement(bootstrap& boot, placement_options options = {})
      : placement{boot, machine::here(), options} {}

  /// Places the ranks on `where`. Collective. If `where` is not the machine that this process runs
  /// on, nothing is pinned or bound. The choices and the order are then those that the ranks would
  /// have there.
  /// Cost: two calls of `bootstrap::allgather`.
  /// Throws: `error` as `bootstrap::allgather`.
  placement(bootstrap& boot, machine where, placement_options options = {})
      : rank_{boot.rank()}, state_{std::make_shared<state>(std::move(where), options.bind)} {
    const deadline until = deadline::after(options.timeout);
    const cpu_place own_place = settle(boot, options.pin, until);
    state_->place = own_place;
    const auto contributions =
        boot.allgather(as_contribution(std::span{&own_place, 1}), until, "places of ranks");
    for (const auto& received : contributions) {
      cpu_place place;
      if (received.bytes.size() == sizeof place)
        std::memcpy(&place, received.bytes.data(), sizeof place);
      places_.push_back(place);
    }
  }

  /// Returns the machine that the ranks are placed on.
  [[nodiscard]] const machine& where() const noexcept { return state_->where; }
  /// Returns the place of each rank, by rank. If a rank may use several cpus, the members that
  /// differ among these cpus are unknown.
  [[nodiscard]] const std::vector<cpu_place>& places() const noexcept { return places_; }
  /// Returns whether this rank's thread was pinned.
  [[nodiscard]] bool pinned() const noexcept { return is_pinned_; }

  /// Returns the order in which this rank should visit its peers, for `communicator::order_peers`.
  [[nodiscard]] std::vector<rank_id> peer_order() const {
    return order_peers(rank_, places_, where().distances());
  }

  /// Returns a hook for a transport that binds this rank's part of each window to the rank's node.
  /// Without it, the pages would lie on the nodes of the peers, which touch them first. The hook
  /// may outlive the placement, and several transports may use it.
  [[nodiscard]] memory_hook on_memory() const {
    return [shared = state_](std::span<std::byte> part) { shared->place_memory(part); };
  }

  /// Describes the memory of this rank's windows so far: its size, whether it is bound, and if not,
  /// the reason.
  [[nodiscard]] std::string memory() const { return state_->describe_memory(); }

  /// Describes this rank in words: where it runs, its memory, and the order of its peers.
  [[nodiscard]] std::string describe() const {
    using peerbus::detail::concat;
    std::string line = concat(rank_, ": ", to_string(places_[rank_.index()]), "; ", pin_text_, "; ",
                              memory(), "; visits");
    constexpr std::size_t max_listed = 16;  // Keeps the text on one line.
    const auto order = peer_order();
    for (std::size_t i = 0; i < std::min(order.size(), max_listed); ++i)
      line += concat(" ", order[i].index());
    if (order.empty()) line += " nobody";
    if (order.size() > max_listed) line += concat(" and ", order.size() - max_listed, " more");
    return line;
  }

  /// Returns a description of the machine, then one line for each rank with its `describe()`.
  /// Collective. The result is the same on all ranks that see the same machine.
  /// Cost: one call of `bootstrap::allgather`.
  /// Throws: `error` as `bootstrap::allgather`.
  [[nodiscard]] std::vector<std::string> report(bootstrap& boot, deadline until) const {
    std::vector<std::string> lines = where().describe();
    const std::string own_line = describe();
    for (const auto& received :
         boot.allgather(as_contribution(std::span{own_line}), until, "report of placement"))
      lines.emplace_back(reinterpret_cast<const char*>(received.bytes.data()),
                         received.bytes.size());
    return lines;
  }

 private:
  /// The state that the memory hooks share with the placement.
  struct state {
    state(machine chosen, bool may_bind) : where{std::move(chosen)}, is_binding{may_bind} {}

    void place_memory(std::span<std::byte> part) {
      auto obstacle = obstacle_to_binding();
      if (!obstacle)
        if (const auto problem = bind_memory(where, part, place.node))
          obstacle = "not bound: " + *problem;
      const std::lock_guard lock{mutex};
      ++parts;
      bytes += part.size();
      if (obstacle && !first_obstacle) first_obstacle = std::move(obstacle);
    }

    [[nodiscard]] std::optional<std::string> obstacle_to_binding() const {
      if (!is_binding) return "not bound, as the program wants it";
      if (where.nodes() == 1) return "not bound: only one NUMA node is seen";
      if (place.node == unknown) return "not bound: the rank may run on several NUMA nodes";
      return std::nullopt;
    }

    [[nodiscard]] std::string describe_memory() {
      using peerbus::detail::concat;
      const std::lock_guard lock{mutex};
      if (parts == 0) return "no window's memory was seen";
      return concat(
          "memory of ", parts, parts == 1 ? " window, " : " windows, ", bytes >> 10U,
          " KiB: ", first_obstacle ? *first_obstacle : concat("bound to node ", place.node));
    }

    const machine where;
    const bool is_binding;
    cpu_place place;

    std::mutex mutex;
    std::size_t parts = 0;
    std::size_t bytes = 0;
    std::optional<std::string> first_obstacle;  ///< why a part was not bound
  };

  template <class T, std::size_t Extent>
  [[nodiscard]] static bootstrap::contribution as_contribution(std::span<T, Extent> values) {
    const auto bytes = std::as_bytes(values);
    bootstrap::contribution result;
    result.bytes.assign(bytes.begin(), bytes.end());
    return result;
  }

  /// Returns the place with the members that are equal for all `cpus`. The other members are
  /// unknown.
  [[nodiscard]] static cpu_place common(const std::vector<cpu_place>& cpus) {
    if (cpus.empty()) return {};
    cpu_place shared = cpus.front();
    for (const cpu_place& place : cpus)
      for (const auto member : {&cpu_place::cpu, &cpu_place::core, &cpu_place::l3, &cpu_place::node,
                                &cpu_place::package})
        if (place.*member != shared.*member) shared.*member = unknown;
    return shared;
  }

  /// Pins this rank if it should be pinned. Collective.
  /// Returns: the place where the rank runs.
  cpu_place settle(bootstrap& boot, bool should_pin, deadline until) {
    using peerbus::detail::concat;
    // On another machine the ranks may use every cpu.
    std::vector<std::uint32_t> usable;
    if (where().is_this_one())
      usable = usable_core_numbers();
    else
      for (const cpu_place& place : where().cpus()) usable.push_back(place.cpu);
    const auto cpus = where().cpus_of(usable);
    const std::span<const std::uint32_t> list{usable};
    const auto cpus_of_ranks =
        boot.allgather(as_contribution(list), until, "cpus that ranks may use");

    if (!should_pin) {
      pin_text_ = "not pinned, as the program wants it";
    } else if (std::any_of(cpus_of_ranks.begin(), cpus_of_ranks.end(), [&](const auto& received) {
                 return received.bytes != cpus_of_ranks.front().bytes;
               })) {
      pin_text_ = "left on the cpus that its launcher chose";
    } else if (boot.ranks_here() > boot.size()) {
      pin_text_ =
          concat("not pinned: ", boot.ranks_here(), " ranks share this host, expected only ",
                 "the ", boot.size(), " of the subgroup");
    } else if (boot.ranks_here() != boot.size()) {
      pin_text_ = concat("not pinned: only ", boot.ranks_here(), " of ", boot.size(),
                         " ranks are on this host");
    } else {
      const auto chosen = choose_cpus(cpus, boot.ranks_here());
      if (!chosen.empty()) return move_to(chosen[rank_.index()], cpus);
      pin_text_ = concat("not pinned: ", boot.ranks_here(), " ranks share ", cpus.size(), " cpus");
    }
    return common(cpus);
  }

  cpu_place move_to(const cpu_place& target, const std::vector<cpu_place>& cpus) {
    const auto problem = pin_this_thread(where(), target.cpu);
    is_pinned_ = !problem;
    pin_text_ = problem ? "not pinned: " + *problem : "pinned";
    return problem && where().is_this_one() ? common(cpus) : target;
  }

  rank_id rank_;
  std::shared_ptr<state> state_;
  std::vector<cpu_place> places_;
  bool is_pinned_ = false;
  std::string pin_text_;
};

}  // namespace peerbus::topology
