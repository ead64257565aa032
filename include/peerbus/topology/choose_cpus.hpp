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

/// Deals `total` among bins as evenly as their `room` allows. A remainder goes to the first bins.
/// `total` is at most the sum of `room`.
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

/// Splits a sorted range into runs of places with the same value of the member `key`.
template <class Key>
std::vector<std::span<const cpu_place>> runs(std::span<const cpu_place> sorted, Key key) {
  std::vector<std::span<const cpu_place>> result;
  while (!sorted.empty()) {
    const auto end = std::find_if(sorted.begin(), sorted.end(), [&](const cpu_place& place) {
      return place.*key != sorted.front().*key;
    });
    const auto count = static_cast<std::size_t>(end - sorted.begin());
    result.push_back(sorted.first(count));
    sorted = sorted.subspan(count);
  }
  return result;
}

/// Appends `count` places of `sorted` to `taken`. They are dealt evenly among the runs of the first
/// key, and within a run among the runs of the next key.
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

/// Returns a logical processor for each of `ranks` ranks, by rank. If there are fewer processors
/// than ranks, the result is empty, because the system places ranks better that take turns on a
/// processor.
///
/// No two ranks share a core while a core is free. After that, second hardware threads are used,
/// then third ones. The ranks are dealt evenly among NUMA nodes, and within a node among L3 caches,
/// because each adds memory and cache bandwidth, which limits an exchange most. Neighbouring ranks
/// are kept together, because launchers and parallel plans group neighbours.
///
/// The result depends only on the set of `cpus`, not on their order. Ranks that know the set
/// therefore need no communication.
/// Cost: sorts the cpus.
[[nodiscard]] inline std::vector<cpu_place> choose_cpus(std::vector<cpu_place> cpus,
                                                        std::size_t ranks) {
  if (ranks > cpus.size()) return {};
  const auto position_of = [](const cpu_place& place) {
    return std::tuple{place.package, place.node, place.l3, place.core, place.cpu};
  };
  const auto is_before = [&](const cpu_place& a, const cpu_place& b) {
    return position_of(a) < position_of(b);
  };
  std::sort(cpus.begin(), cpus.end(), is_before);

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
  std::sort(chosen.begin(), chosen.end(), is_before);
  return chosen;
}

}  // namespace peerbus::topology
