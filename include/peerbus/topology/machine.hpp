// SPDX-License-Identifier: MIT
#pragma once

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/hwloc_handle.hpp>
#include <peerbus/topology/peer_order.hpp>

/// The cores, caches and NUMA nodes of the machine, by hwloc, and the placement of ranks on them.
namespace peerbus::topology {

/// A snapshot of the parts of a machine that matter for placing ranks, read by hwloc.
class machine {
 public:
  /// Reads this machine, without the parts that cgroups deny to this process. If hwloc finds
  /// nothing, the machine counts as one node of separate cores, and `describe` reports that. hwloc
  /// obeys its environment variables HWLOC_XMLFILE and HWLOC_SYNTHETIC. The result then describes
  /// another machine, unless HWLOC_THISSYSTEM=1 is set.
  /// Cost: milliseconds.
  [[nodiscard]] static machine here() {
    try {
      machine found{load_topology("this machine", [](hwloc_topology_t) { return 0; })};
      if (found.is_this_one()) {
        found.note_what_is_hidden();
        found.take_in(usable_core_numbers());
      }
      return found;
    } catch (const error& problem) {
      machine bare;
      bare.notes_.emplace_back(problem.text());
      bare.take_in(usable_core_numbers());
      return bare;
    }
  }

  /// Makes a fictitious machine from hwloc's notation, such as "package:2 numa:2 l3:1 core:4 pu:2".
  /// Throws: `error` invalid_argument.
  [[nodiscard]] static machine synthetic(const std::string& description) {
    return machine{
        load_topology("the synthetic topology '" + description + "'", [&](hwloc_topology_t made) {
          return hwloc_topology_set_synthetic(made, description.c_str());
        })};
  }

  /// Makes the machine that the output of `lstopo --of xml` describes.
  /// Throws: `error` invalid_argument, system.
  [[nodiscard]] static machine from_xml(const std::string& text) {
    return machine{load_topology("the XML text of a topology", [&](hwloc_topology_t made) {
      return hwloc_topology_set_xmlbuffer(made, text.c_str(), static_cast<int>(text.size() + 1));
    })};
  }

  /// Returns whether this object describes the machine that the process runs on. Only then can
  /// threads and memory be bound to its parts.
  [[nodiscard]] bool is_this_one() const noexcept {
    return topology_ == nullptr || hwloc_topology_is_thissystem(topology_.get()) != 0;
  }
  /// Returns hwloc's topology, or null if hwloc found nothing.
  [[nodiscard]] hwloc_topology_t handle() const noexcept { return topology_.get(); }

  /// Returns the places of all logical processors, in hwloc's order, which keeps neighbours
  /// together.
  [[nodiscard]] const std::vector<cpu_place>& cpus() const noexcept { return cpus_; }

  /// Returns the places of the logical processors `numbers`, such as those of an affinity mask.
  /// Processors that hwloc does not know count as separate cores without a NUMA node.
  [[nodiscard]] std::vector<cpu_place> cpus_of(const std::vector<std::uint32_t>& numbers) const {
    std::vector<cpu_place> result;
    for (const std::uint32_t number : numbers) {
      const auto known = std::find_if(cpus_.begin(), cpus_.end(),
                                      [&](const cpu_place& place) { return place.cpu == number; });
      result.push_back(known != cpus_.end() ? *known : cpu_place{.cpu = number, .core = number});
    }
    return result;
  }

  /// Returns the number of NUMA nodes from which this process may take memory, or 1 if the machine
  /// does not report them.
  [[nodiscard]] std::size_t nodes() const noexcept {
    return std::max<std::size_t>(count(HWLOC_OBJ_NUMANODE), 1);
  }
  /// Returns the distances between the NUMA nodes. They are empty if the firmware does not report
  /// them.
  [[nodiscard]] const node_distances& distances() const noexcept { return distances_; }

  /// Describes the machine in words, one line per fact.
  [[nodiscard]] std::vector<std::string> describe() const {
    using peerbus::detail::concat;
    std::set<std::uint32_t> cores;
    for (const cpu_place& place : cpus_) cores.insert(place.core);
    std::vector<std::string> lines = notes_;
    lines.push_back(
        concat(is_this_one() ? "machine: " : "machine (not this one: hwloc was given another): ",
               several(count(HWLOC_OBJ_PACKAGE), "package"), ", ",
               several(count(HWLOC_OBJ_NUMANODE), "NUMA node"), ", ",
               several(count(HWLOC_OBJ_L3CACHE), "L3 cache"), ", ", several(cores.size(), "core"),
               ", ", several(cpus_.size(), "cpu")));
    if (denied_ != 0)
      lines.push_back(concat(several(denied_, "more cpu"), " that this process may not use"));
    if (nodes() == 1 && count(HWLOC_OBJ_L3CACHE) <= 1)
      lines.emplace_back(
          count(HWLOC_OBJ_L3CACHE) == 0
              ? "flat: no caches are shown, as where a container or a virtual machine hides them; "
                "every cpu counts as equally near"
              : "flat: one node and one L3 cache, so that all cpus are equally near");
    for (std::size_t i = 0; i < distances_.nodes.size(); ++i) {
      std::string line = concat("distance from node ", distances_.nodes[i], ":");
      for (const std::uint32_t destination : distances_.nodes)
        line += concat(" ", distances_.between(distances_.nodes[i], destination));
      lines.push_back(std::move(line));
    }
    return lines;
  }

 private:
  machine() = default;
  explicit machine(hwloc_handle topology) : topology_{std::move(topology)} {
    read_cpus();
    read_distances();
  }

  [[nodiscard]] static std::string several(std::size_t number, const char* thing) {
    return peerbus::detail::concat(number, " ", thing, number == 1 ? "" : "s");
  }

  [[nodiscard]] std::size_t count(hwloc_obj_type_t type) const noexcept {
    if (topology_ == nullptr) return 0;
    const int found = hwloc_get_nbobjs_by_type(topology_.get(), type);
    return found > 0 ? static_cast<std::size_t>(found) : 0;
  }

  /// Returns the lowest cpu of `object`, as a number for it that is the same in every process,
  /// regardless of the affinity mask.
  [[nodiscard]] static std::uint32_t lowest_cpu(const hwloc_obj* object) noexcept {
    return object == nullptr
               ? unknown
               : static_cast<std::uint32_t>(hwloc_bitmap_first(object->complete_cpuset));
  }

  /// Returns the NUMA node next to `cpu`. If several nodes contain it, because there are several
  /// kinds of memory, returns the node with the fewest cpus. Among equal nodes, returns the first,
  /// because hwloc lists plain memory first.
  [[nodiscard]] std::uint32_t node_of(unsigned cpu) const noexcept {
    const hwloc_obj* nearest = nullptr;
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;)
      if (hwloc_bitmap_isset(node->cpuset, cpu) != 0 &&
          (nearest == nullptr ||
           hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(nearest->cpuset)))
        nearest = node;
    return nearest == nullptr ? unknown : nearest->os_index;
  }

  void read_cpus() {
    for (hwloc_obj_t pu = nullptr;
         (pu = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_PU, pu)) != nullptr;) {
      const auto enclosing = [&](hwloc_obj_type_t type) {
        return lowest_cpu(hwloc_get_ancestor_obj_by_type(topology_.get(), type, pu));
      };
      const std::uint32_t core = enclosing(HWLOC_OBJ_CORE);
      cpus_.push_back({.cpu = pu->os_index,
                       .core = core == unknown ? pu->os_index : core,
                       .l3 = enclosing(HWLOC_OBJ_L3CACHE),
                       .node = node_of(pu->os_index),
                       .package = enclosing(HWLOC_OBJ_PACKAGE)});
    }
    const int existing = hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(topology_.get()));
    if (existing > 0 && static_cast<std::size_t>(existing) > cpus_.size())
      denied_ = static_cast<std::size_t>(existing) - cpus_.size();
  }

  void read_distances() {
    unsigned number = 1;
    hwloc_distances_s* found = nullptr;
    if (hwloc_distances_get_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, &number, &found,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
        number == 0)
      return;
    for (unsigned i = 0; i < found->nbobjs; ++i)
      distances_.nodes.push_back(found->objs[i]->os_index);
    distances_.values.assign(found->values,
                             found->values + std::size_t{found->nbobjs} * found->nbobjs);
    hwloc_distances_release(topology_.get(), found);
  }

  /// Adds a note for each folder of the system that is hidden. If a folder is hidden, hwloc asks
  /// the processor, which does not know about NUMA nodes.
  void note_what_is_hidden() {
    for (const char* path : {"/sys/devices/system/cpu", "/sys/devices/system/node"})
      if (::access(path, F_OK) != 0)
        notes_.push_back(peerbus::detail::concat(
            "hidden: ", path,
            " is not there, as in some containers; caches or NUMA nodes may exist "
            "that are not seen"));
  }

  /// Adds the cpus in `usable` that hwloc does not show. They exist, because this process may use
  /// them.
  void take_in(const std::vector<std::uint32_t>& usable) {
    const std::size_t seen = cpus_.size();
    for (const cpu_place& place : cpus_of(usable))
      if (std::find(cpus_.begin(), cpus_.end(), place) == cpus_.end()) cpus_.push_back(place);
    if (cpus_.size() != seen)
      notes_.push_back(peerbus::detail::concat(
          "hwloc does not show ", several(cpus_.size() - seen, "cpu"),
          " that this process may use; each counts as a core of no known node"));
  }

  hwloc_handle topology_;
  std::vector<cpu_place> cpus_;
  node_distances distances_;
  std::size_t denied_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace peerbus::topology
