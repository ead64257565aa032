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

struct placement_options {
  /// Pin each rank's thread, unless somebody has done so already or there are more ranks than cpus.
  bool pin = true;
  /// Bind each rank's part of windows to the rank's NUMA node.
  bool bind = true;
  /// How long the other ranks may take to come.
  std::chrono::milliseconds timeout{30'000};
};

/// Places a group of ranks on one host. Make it first of all, before the transport:
///
///     topology::placement here{boot};
///     communicator comm{unified_bus{boot, {}, here.on_memory()}};
///     comm.order_peers(here.peer_order());
///
/// Its constructor and `report` are collective. Whatever cannot be done is left out and told in
/// words: a badly placed program is slow, not wrong. Threads: those of one rank may share it.
class placement {
 public:
  /// Collective: reads the machine and pins the calling thread of each rank. If the ranks may all
  /// use the same cpus, they get those of `choose_cpus`; if not, a launcher has chosen, and they
  /// stay. Throws: `error` as `bootstrap::allgather`.
  explicit placement(bootstrap& boot, placement_options options = {})
      : placement{boot, machine::here(), options} {}

  /// The same on `where`. If that is another machine, nothing is pinned or bound; the choices and
  /// the order are those that the ranks would have there.
  placement(bootstrap& boot, machine where, placement_options options = {})
      : rank_{boot.rank()}, state_{std::make_shared<state>(std::move(where), options.bind)} {
    const deadline until = deadline::after(options.timeout);
    const cpu_place mine = settle(boot, options.pin, until);
    state_->mine = mine;
    const auto all = boot.allgather(as_contribution(std::span{&mine, 1}), until, "places of ranks");
    for (const auto& from : all) {
      cpu_place place;
      if (from.bytes.size() == sizeof place) std::memcpy(&place, from.bytes.data(), sizeof place);
      places_.push_back(place);
    }
  }

  [[nodiscard]] const machine& where() const noexcept { return state_->where; }
  /// Where each rank runs, by rank. Unknown is what differs among the cpus that it may use.
  [[nodiscard]] const std::vector<cpu_place>& places() const noexcept { return places_; }
  [[nodiscard]] bool pinned() const noexcept { return pinned_; }

  /// For `communicator::order_peers`: see `topology::order_peers`.
  [[nodiscard]] std::vector<rank_id> peer_order() const {
    return order_peers(rank_, places_, where().distances());
  }

  /// For a transport: binds this rank's part of each window to the rank's node, as its first touch
  /// comes from peers, on theirs. May outlive the placement, and be used by several transports.
  [[nodiscard]] memory_hook on_memory() const {
    return [shared = state_](std::span<std::byte> part) { shared->place_memory(part); };
  }

  /// What became of the memory of this rank's windows so far, in words.
  [[nodiscard]] std::string memory() const { return state_->describe_memory(); }

  /// This rank in words: where it runs, its memory, the order of its peers.
  [[nodiscard]] std::string describe() const {
    using peerbus::detail::concat;
    std::string line = concat(rank_, ": ", to_string(places_[rank_.index()]), "; ", pin_text_, "; ",
                              memory(), "; visits");
    constexpr std::size_t most = 16;  // A line should stay a line.
    const auto order = peer_order();
    for (std::size_t i = 0; i < std::min(order.size(), most); ++i)
      line += concat(" ", order[i].index());
    if (order.empty()) line += " nobody";
    if (order.size() > most) line += concat(" and ", order.size() - most, " more");
    return line;
  }

  /// Collective: the machine, then every rank's `describe()`, a line each, alike on all ranks that
  /// see the same machine. Throws: `error` as `bootstrap::allgather`.
  [[nodiscard]] std::vector<std::string> report(bootstrap& boot, deadline until) const {
    std::vector<std::string> lines = where().describe();
    const std::string mine = describe();
    for (const auto& from :
         boot.allgather(as_contribution(std::span{mine}), until, "report of placement"))
      lines.emplace_back(reinterpret_cast<const char*>(from.bytes.data()), from.bytes.size());
    return lines;
  }

 private:
  /// What the hooks share with the placement.
  struct state {
    state(machine read, bool may_bind) : where{std::move(read)}, bind{may_bind} {}

    void place_memory(std::span<std::byte> part) {
      auto obstacle = obstacle_to_binding();
      if (!obstacle)
        if (const auto problem = bind_memory(where, part, mine.node))
          obstacle = "not bound: " + *problem;
      const std::lock_guard lock{mutex};
      ++parts;
      bytes += part.size();
      if (obstacle && !left_out) left_out = std::move(obstacle);
    }

    [[nodiscard]] std::optional<std::string> obstacle_to_binding() const {
      if (!bind) return "not bound, as the program wants it";
      if (where.nodes() == 1) return "not bound: only one NUMA node is seen";
      if (mine.node == unknown) return "not bound: the rank may run on several NUMA nodes";
      return std::nullopt;
    }

    [[nodiscard]] std::string describe_memory() {
      using peerbus::detail::concat;
      const std::lock_guard lock{mutex};
      if (parts == 0) return "no window's memory was seen";
      return concat("memory of ", parts, parts == 1 ? " window, " : " windows, ", bytes >> 10U,
                    " KiB: ", left_out ? *left_out : concat("bound to node ", mine.node));
    }

    const machine where;
    const bool bind;
    cpu_place mine;

    std::mutex mutex;
    std::size_t parts = 0;
    std::size_t bytes = 0;
    std::optional<std::string> left_out;  ///< the first reason
  };

  template <class T, std::size_t Extent>
  [[nodiscard]] static bootstrap::contribution as_contribution(std::span<T, Extent> values) {
    const auto bytes = std::as_bytes(values);
    bootstrap::contribution made;
    made.bytes.assign(bytes.begin(), bytes.end());
    return made;
  }

  /// What all `cpus` have in common.
  [[nodiscard]] static cpu_place common(const std::vector<cpu_place>& cpus) {
    if (cpus.empty()) return {};
    cpu_place shared = cpus.front();
    for (const cpu_place& one : cpus)
      for (const auto member : {&cpu_place::cpu, &cpu_place::core, &cpu_place::l3, &cpu_place::node,
                                &cpu_place::package})
        if (one.*member != shared.*member) shared.*member = unknown;
    return shared;
  }

  /// Collective: pins this rank if that is to be. Returns: where it runs.
  cpu_place settle(bootstrap& boot, bool pin, deadline until) {
    using peerbus::detail::concat;
    // Of another machine the ranks may use all.
    std::vector<std::uint32_t> usable;
    if (where().is_this_one())
      usable = usable_core_numbers();
    else
      for (const cpu_place& one : where().cpus()) usable.push_back(one.cpu);
    const auto cpus = where().cpus_of(usable);
    const std::span<const std::uint32_t> list{usable};
    const auto all = boot.allgather(as_contribution(list), until, "cpus that ranks may use");

    if (!pin) {
      pin_text_ = "not pinned, as the program wants it";
    } else if (std::any_of(all.begin(), all.end(),
                           [&](const auto& from) { return from.bytes != all.front().bytes; })) {
      pin_text_ = "left on the cpus that its launcher chose";
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
    pinned_ = !problem;
    pin_text_ = problem ? "not pinned: " + *problem : "pinned";
    return problem && where().is_this_one() ? common(cpus) : target;
  }

  rank_id rank_;
  std::shared_ptr<state> state_;
  std::vector<cpu_place> places_;
  bool pinned_ = false;
  std::string pin_text_;
};

}  // namespace peerbus::topology
