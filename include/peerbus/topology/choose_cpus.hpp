// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include <peerbus/topology/cpu_place.hpp>

namespace peerbus::topology {
namespace detail {

/// Deals `total` among bins as evenly as their `room` allows, what does not divide to the first.
/// `total` is at most the sum of the room.
inline std::vector<std::size_t> deal(std::size_t total, std::span<const std::size_t> room) {
  std::vector<std::size_t> dealt(room.size(), 0);
  while (total != 0)
    for (std::size_t i = 0; i < room.size() && total != 0; ++i)
      if (dealt[i] < room[i]) {
        ++dealt[i];
        --total;
      }
  return dealt;
}

/// Splits a sorted range into the runs of equal `key`.
template <class Key>
std::vector<std::span<const cpu_place>> runs(std::span<const cpu_place> sorted, Key key) {
  std::vector<std::span<const cpu_place>> result;
  while (!sorted.empty()) {
    const auto end = std::find_if(sorted.begin(), sorted.end(), [&](const cpu_place& one) {
      return one.*key != sorted.front().*key;
    });
    const auto count = static_cast<std::size_t>(end - sorted.begin());
    result.push_back(sorted.first(count));
    sorted = sorted.subspan(count);
  }
  return result;
}

/// Takes `count` of `sorted`, dealt evenly among the runs of the first key, there among those of
/// the next.
template <class... Keys>
void take(std::span<const cpu_place> sorted, std::size_t count, std::vector<cpu_place>& taken) {
  taken.insert(taken.end(), sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
}
template <class Key, class... Keys>
void take(std::span<const cpu_place> sorted, std::size_t count, std::vector<cpu_place>& taken,
          Key key, Keys... rest) {
  const auto groups = runs(sorted, key);
  std::vector<std::size_t> room;
  room.reserve(groups.size());
  for (const auto& group : groups) room.push_back(group.size());
  const auto dealt = deal(count, room);
  for (std::size_t i = 0; i < groups.size(); ++i) take(groups[i], dealt[i], taken, rest...);
}

}  // namespace detail

/// A logical processor for each of `ranks` ranks, by rank; empty if there are fewer than ranks,
/// since ranks that take turns on a processor are better moved about by the system.
///
/// No two ranks share a core while a core is free; then second hardware threads are used, and so
/// on. The ranks are dealt evenly among NUMA nodes, and within a node among L3 caches, as each adds
/// memory and cache bandwidth, of which an exchange wants most. Neighbouring ranks are kept
/// together, since launchers and parallel plans group by neighbours. The result depends on the set
/// of `cpus` only, not on its order, so that ranks that know the set need no talk.
[[nodiscard]] inline std::vector<cpu_place> choose_cpus(std::vector<cpu_place> cpus,
                                                        std::size_t ranks) {
  if (ranks > cpus.size()) return {};
  const auto position = [](const cpu_place& one) {
    return std::tuple{one.package, one.node, one.l3, one.core, one.cpu};
  };
  const auto before = [&](const cpu_place& a, const cpu_place& b) {
    return position(a) < position(b);
  };
  std::sort(cpus.begin(), cpus.end(), before);

  // Layer k holds the k-th hardware thread of each core.
  std::vector<std::vector<cpu_place>> layers;
  std::size_t thread = 0;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    thread = i > 0 && same_known(cpus[i].core, cpus[i - 1].core) ? thread + 1 : 0;
    if (layers.size() <= thread) layers.resize(thread + 1);
    layers[thread].push_back(cpus[i]);
  }

  std::vector<cpu_place> chosen;
  for (const auto& layer : layers)
    detail::take(std::span{layer}, std::min(ranks - chosen.size(), layer.size()), chosen,
                 &cpu_place::node, &cpu_place::l3);
  std::sort(chosen.begin(), chosen.end(), before);
  return chosen;
}

}  // namespace peerbus::topology
