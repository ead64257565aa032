// SPDX-License-Identifier: MIT
// ctest: tsan
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/detail/expert_counts.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace {

/// What `rank` counts for expert `e` in dispatch `number`.
std::int32_t count_of(std::size_t rank, std::uint64_t number, std::size_t e) {
  return static_cast<std::int32_t>(rank * 1000 + number * 10 + e);
}

/// A rank may run ahead by as many dispatches as an exchange keeps counts: none may be overwritten.
template <class Transport>
void check_counts(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = test::threads_over<Transport>::run(ranks, [](auto& comm) {
    constexpr std::size_t in_flight = 3;
    constexpr std::size_t experts = 5;
    peerbus::deep_ep::detail::expert_counts counts{comm, in_flight, experts,
                                                   comm.default_deadline()};
    std::size_t first = 0;  // Of the experts of this rank.
    for (std::size_t r = 0; r < comm.rank().index(); ++r)
      first += experts / comm.size() + (r < experts % comm.size() ? 1 : 0);
    for (std::uint64_t round = 0; round < 3; ++round) {
      const std::uint64_t begin = round * 2 * in_flight;
      for (std::uint64_t n = begin; n < begin + 2 * in_flight; ++n) {
        std::vector<std::int32_t> mine;
        for (std::size_t e = 0; e < experts; ++e)
          mine.push_back(count_of(comm.rank().index(), n, e));
        test::expect_ok(counts.post(n, mine), "post");
      }
      comm.barrier();
      for (std::uint64_t n = begin; n < begin + 2 * in_flight; ++n) {
        const auto sums = counts.sums(n);
        test::expect_equal(
            sums.size(),
            experts / comm.size() + (comm.rank().index() < experts % comm.size() ? 1 : 0),
            "experts of this rank");
        for (std::size_t e = 0; e < sums.size(); ++e) {
          std::int32_t expected = 0;
          for (std::size_t r = 0; r < comm.size(); ++r) expected += count_of(r, n, first + e);
          test::expect_equal(sums[e], expected, "dispatch ", n, ", expert ", first + e);
        }
      }
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("deep_ep normal: counts of as many dispatches as may be ahead") {
  for (const std::size_t n : {1U, 2U, 3U, 7U}) {
    check_counts<peerbus::loopback>(n);
    check_counts<test::indirect<peerbus::loopback>>(n);
  }
}
