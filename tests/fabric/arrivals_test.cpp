// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/transport/fabric/arrivals.hpp>
#include <peerbus/transport/fabric/notice.hpp>

namespace arrivals_test {

namespace {
using peerbus::detail::ofi::arrivals;
using peerbus::detail::ofi::notice_buffer;

constexpr std::size_t ranks = 3;
constexpr std::uint32_t buffers_count = 12;
constexpr std::uint32_t notices_each = 40;

struct sent {
  std::uint32_t source;
  std::uint32_t sequence;
};
}  // namespace

TEST_CASE("notices that are reported in any order are taken in the order of their sequence") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random{seed};
    std::vector<notice_buffer> buffers(buffers_count);
    arrivals coming{ranks, buffers};
    std::vector<std::uint32_t> free_buffers(buffers_count);
    for (std::uint32_t i = 0; i < buffers_count; ++i) free_buffers[i] = i;
    std::vector<std::vector<std::uint32_t>> taken(ranks);
    std::vector<std::uint32_t> next(ranks, 0);

    const auto take = [&](std::uint32_t buffer) {
      const auto& head = buffers[buffer].head;
      taken[head.source].push_back(head.sequence);
      free_buffers.push_back(buffer);
    };
    // A batch is as much as fits into the buffers that are free, in a random order.
    for (bool any = true; any;) {
      any = false;
      std::vector<sent> batch;
      for (std::uint32_t room = static_cast<std::uint32_t>(free_buffers.size()); room > 0; --room) {
        const auto source = static_cast<std::uint32_t>(random() % ranks);
        if (next[source] < notices_each) batch.push_back({source, next[source]++});
      }
      std::shuffle(batch.begin(), batch.end(), random);
      for (const sent& one : batch) {
        const std::uint32_t buffer = free_buffers.back();
        free_buffers.pop_back();
        buffers[buffer].head.source = one.source;
        buffers[buffer].head.sequence = one.sequence;
        coming.came(buffer, take);
      }
      for (const std::uint32_t count : next) any = any || count < notices_each;
    }
    for (const auto& sequences : taken) {
      REQUIRE(sequences.size() == notices_each);
      CHECK(std::is_sorted(sequences.begin(), sequences.end()));
    }
    CHECK(free_buffers.size() == buffers_count);
  }
}

TEST_CASE("notices of a peer that is given up leave their buffers, those of others wait") {
  std::vector<notice_buffer> buffers(buffers_count);
  arrivals coming{ranks, buffers};
  std::uint32_t buffer = 0;
  std::vector<std::uint32_t> taken;
  const auto come = [&](std::uint32_t source, std::uint32_t sequence) {
    buffers[buffer].head.source = source;
    buffers[buffer].head.sequence = sequence;
    coming.came(buffer++, [&](std::uint32_t next) { taken.push_back(next); });
  };
  come(0, 2);
  come(1, 1);
  come(0, 1);
  CHECK(taken.empty());
  CHECK(coming.any_held());
  CHECK(coming.held_of(0) == 2);
  CHECK(coming.held_of(1) == 1);
  std::vector<std::uint32_t> dropped;
  coming.give_up(0, [&](std::uint32_t next) { dropped.push_back(next); });
  CHECK(dropped == std::vector<std::uint32_t>{2, 0});
  CHECK(coming.is_given_up(0));
  CHECK(coming.held_of(0) == 0);
  CHECK(coming.any_held());
  come(1, 0);
  CHECK(taken == std::vector<std::uint32_t>{3, 1});
  CHECK_FALSE(coming.is_given_up(1));
  CHECK_FALSE(coming.any_held());
}

}  // namespace arrivals_test
