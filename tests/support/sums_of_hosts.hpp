// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

namespace test {

/// Returns the ranks in the order in which rows of a block lie where hosts relay: by the place of
/// the rank that handed on, then by host. `host_of` has the host of each rank.
inline std::vector<std::size_t> source_order(const std::vector<std::size_t>& host_of) {
  std::vector<std::size_t> order(host_of.size());
  std::vector<std::size_t> place(host_of.size());
  std::size_t smallest = host_of.size();
  for (std::size_t r = 0; r < host_of.size(); ++r) {
    order[r] = r;
    const auto own = host_of.begin() + static_cast<std::ptrdiff_t>(r);
    place[r] = static_cast<std::size_t>(std::count(host_of.begin(), own, *own));
    smallest = std::min(smallest, static_cast<std::size_t>(std::ranges::count(host_of, *own)));
  }
  std::ranges::sort(order, {}, [&](std::size_t rank) {
    return std::tuple{place[rank] % smallest, host_of[rank], rank};
  });
  return order;
}

/// What combine must give to the rank that put `mine` in if it adds up sums of hosts, each rounded.
/// By rank, the sum of a host is that of the rounded sums of its ranks. Slots of expert e of token
/// t are at rank `owner(t, e)`, and that at host `host_of(rank)`.
template <class Owner, class HostOf>
std::vector<peerbus::bf16> sums_of_hosts(const oracle::shape& of, const oracle::input& mine,
                                         oracle::encode_function encode, bool by_rank,
                                         Owner&& owner, HostOf&& host_of) {
  std::vector<peerbus::bf16> result;
  const auto add_rounded = [&](const std::vector<float>& part, std::vector<float>& sums) {
    std::vector<peerbus::bf16> rounded(of.hidden);
    oracle::round(part, rounded);
    for (std::size_t h = 0; h < of.hidden; ++h) sums[h] += oracle::widen(rounded[h]);
  };
  std::size_t hosts = 0;
  for (std::size_t r = 0; r < of.ranks; ++r) hosts = std::max(hosts, host_of(r) + 1);
  for (std::size_t t = 0; t < mine.count; ++t) {
    const oracle::row received = encode(oracle::token_of(of, mine, t));
    // The sum over the token's experts for which `is_in(rank)`, and whether there are any.
    const auto weighted = [&](std::vector<float>& sums, auto&& is_in) {
      bool any = false;
      for (std::size_t k = 0; k < of.top_k; ++k) {
        const std::int64_t e = mine.experts[t * of.top_k + k];
        if (e == -1 || !is_in(owner(t, static_cast<std::size_t>(e)))) continue;
        any = true;
        oracle::add_outputs(static_cast<std::size_t>(e), mine.weights[t * of.top_k + k],
                            received.values, sums);
      }
      return any;
    };
    std::vector<float> sums(of.hidden);
    for (std::size_t host = 0; host < hosts; ++host) {
      bool any = false;
      std::vector<float> of_host(of.hidden);
      if (by_rank) {
        for (std::size_t r = 0; r < of.ranks; ++r) {
          std::vector<float> of_rank(of.hidden);
          if (host_of(r) != host || !weighted(of_rank, [&](std::size_t rank) { return rank == r; }))
            continue;
          any = true;
          add_rounded(of_rank, of_host);
        }
      } else {
        any = weighted(of_host, [&](std::size_t rank) { return host_of(rank) == host; });
      }
      if (any) add_rounded(of_host, sums);
    }
    result.resize(result.size() + of.hidden);
    oracle::round(sums, std::span{result}.last(of.hidden));
  }
  return result;
}

}  // namespace test
