// SPDX-License-Identifier: MIT
#include "sampled_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

namespace ep_predict {

sampled_ranks::sampled_ranks(std::size_t ranks, std::size_t count, std::size_t group)
    : ranks_(count), by_place_(count), places_(std::min(group, ranks)), are_all_{count == ranks} {
  const std::size_t places = places_.size();
  const std::size_t groups = ranks / places;
  std::iota(ranks_.begin(), ranks_.end(), std::size_t{0});
  if (!are_all_)
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t own_place = count < places ? i * places / count : i % places;
      ranks_[i] = i * groups / count * places + own_place;
    }
  const auto place_of = [&](std::uint32_t sample) { return ranks_[sample] % places; };
  std::iota(by_place_.begin(), by_place_.end(), 0U);
  std::ranges::stable_sort(by_place_, {}, place_of);
  const auto samples_at = [&](std::size_t at) {
    const auto first = std::ranges::lower_bound(by_place_, at, {}, place_of);
    const auto last = std::ranges::upper_bound(first, by_place_.end(), at, {}, place_of);
    return place{static_cast<std::uint32_t>(first - by_place_.begin()),
                 static_cast<std::uint32_t>(last - first)};
  };
  place nearest{};
  for (std::size_t at = 0; at < places; ++at) {
    if (const place found = samples_at(at); found.count != 0) nearest = found;
    places_[at] = nearest;  // Place 0 has a sample, the first.
  }
}

std::size_t sampled_ranks::stand_in(std::size_t rank, std::size_t peer) const noexcept {
  if (are_all_) return rank;
  const place& here = places_[rank % places_.size()];
  // The finaliser of SplitMix64, a hash of both ranks.
  std::uint64_t hash = (std::uint64_t{rank} << 32U) + peer + 0x9e3779b97f4a7c15U;
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
  hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebU;
  hash ^= hash >> 31U;
  return by_place_[here.first + hash % here.count];
}

}  // namespace ep_predict
