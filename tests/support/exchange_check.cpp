// SPDX-License-Identifier: MIT
#include "support/exchange_check.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>

#include "support/bytes.hpp"
#include "support/layout_oracle.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace test {

std::uint64_t hash(std::uint64_t before, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), taken);
    before = (before ^ word) * 0x100000001b3U;
    before ^= before >> 32U;  // The product only carries upwards.
    bytes = bytes.subspan(taken);
  }
  return before;
}

namespace detail {

void compare_bytes(std::span<const std::byte> given, std::span<const std::byte> expected,
                   const std::string& what) {
  expect_equal(given.size(), expected.size(), what, ", number of bytes");
  for (std::size_t i = 0; i < given.size(); ++i)
    expect_equal(static_cast<int>(given[i]), static_cast<int>(expected[i]), what, ", byte ", i,
                 " of ", given.size());
}

void compare_values(std::span<const float> given, std::span<const float> expected,
                    const std::string& what) {
  expect_equal(given.size(), expected.size(), what, ", number of values");
  for (std::size_t h = 0; h < given.size(); ++h)
    expect(oracle::round(given[h]) == oracle::round(expected[h]) &&
               (given[h] == expected[h] || given[h] != given[h]),
           what, ", channel ", h, " to decode to ", expected[h], ", not ", given[h]);
}

void compare_gap(std::span<const std::byte> gap, std::byte expected, const std::string& what) {
  for (std::size_t i = 0; i < gap.size(); ++i)
    expect_equal(static_cast<int>(gap[i]), static_cast<int>(expected), what, ", byte ", i,
                 " of the gap");
}

}  // namespace detail

std::uint64_t check_combined(std::span<const peerbus::bf16> out,
                             std::span<const peerbus::bf16> expected, std::size_t hidden,
                             std::uint64_t hashed) {
  expect_equal(out.size(), expected.size(), "values that combine gave");
  const bool is_same = equal_bytes(std::as_bytes(out), std::as_bytes(expected));
  for (std::size_t i = 0; i < out.size() && !is_same; ++i)
    expect_equal(out[i].bits, expected[i].bits, "combined token ", i / hidden, ", channel ",
                 i % hidden);
  return hash(hashed, std::as_bytes(out));
}

std::array<std::vector<std::byte>, peerbus::moe::max_attachments> attached_by(const scenario& from,
                                                                              std::size_t rank) {
  std::array<std::vector<std::byte>, peerbus::moe::max_attachments> made;
  for (std::size_t a = 0; a < made.size(); ++a)
    for (std::size_t t = 0; t < from.inputs[rank].count && from.attachments[a] != 0; ++t) {
      const auto one = oracle::attachment_of(rank, t, a, from.attachments[a], from.seed);
      made[a].insert(made[a].end(), one.begin(), one.end());
    }
  return made;
}

std::vector<std::byte> note_of(const scenario& from, std::size_t rank) {
  if ((rank + from.seed) % 3 == 2) return {};
  return oracle::attachment_of(rank, 0, peerbus::moe::max_attachments, from.note_bytes, from.seed);
}

bool attaches(const scenario& from, std::size_t rank) {
  return from.output_attachment != 0 && (rank + from.seed) % 4 != 1;
}

std::vector<std::byte> output_attachment_of(const scenario& from, std::size_t home,
                                            std::size_t token, std::size_t slot) {
  return oracle::attachment_of(home, token, peerbus::moe::max_attachments + 1 + slot,
                               from.output_attachment, from.seed);
}

std::vector<std::size_t> ranks_of_copies(const scenario& from, const oracle::input& mine,
                                         std::size_t token, bool by_rank) {
  const auto owners = oracle::owners(from.shape);
  std::vector<std::size_t> ranks;
  for (std::size_t k = 0; k < from.shape.top_k; ++k) {
    const auto expert = mine.experts[token * from.shape.top_k + k];
    if (expert != -1)
      ranks.push_back(owners[static_cast<std::size_t>(expert)]);
    else if (!by_rank)
      ranks.push_back(from.shape.ranks);
  }
  if (!by_rank) return ranks;
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace test
