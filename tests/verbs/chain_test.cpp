// SPDX-License-Identifier: MIT
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/transport/verbs/request_chain.hpp>

// Which writes become one request.

namespace {
using peerbus::detail::rdma::request_chain;

void write(request_chain& chain, std::uint64_t from, std::uint32_t length, std::uint64_t to,
           std::uint32_t remote_key = 9) {
  if (!chain.extend_write({from, length, 1}, {to, remote_key}))
    chain.append(IBV_WR_RDMA_WRITE, {from, length, 1}, {to, remote_key});
}
}  // namespace

TEST_CASE("writes that continue each other at both ends are one piece") {
  request_chain chain;
  write(chain, 1000, 8, 5000);
  write(chain, 1008, 24, 5008);
  REQUIRE(chain.count() == 1);
  CHECK(chain.first()->num_sge == 1);
  CHECK(chain.first()->sg_list[0].length == 32);
  CHECK(chain.first()->wr.rdma.remote_addr == 5000);
  CHECK(chain.bytes() == 32);
}

TEST_CASE("writes that continue each other at the target gather pieces, up to a limit") {
  request_chain chain;
  constexpr std::size_t most = request_chain::most_pieces;
  for (std::uint64_t i = 0; i < most + 1; ++i) write(chain, 1000 + 100 * i, 8, 5000 + 8 * i);
  REQUIRE(chain.count() == 2);
  CHECK(chain.first()->num_sge == static_cast<int>(most));
  CHECK(chain.first()->sg_list[1].addr == 1100);
  CHECK(chain.first()->next == &chain.last());
  CHECK(chain.last().wr.rdma.remote_addr == 5000 + 8 * most);
}

TEST_CASE("a device that gathers fewer pieces gets fewer") {
  request_chain chain;
  chain.limit_pieces(2);
  for (std::uint64_t i = 0; i < 4; ++i) write(chain, 1000 + 100 * i, 8, 5000 + 8 * i);
  CHECK(chain.count() == 2);
  CHECK(chain.last().num_sge == 2);
}

TEST_CASE("other writes stay apart") {
  request_chain chain;
  write(chain, 1000, 8, 5000);
  write(chain, 1008, 8, 5009);     // A gap.
  write(chain, 1016, 8, 5017, 8);  // Another window.
  CHECK(chain.count() == 3);
  chain.append(IBV_WR_RDMA_READ, {2000, 8, 1}, {6000, 9});
  write(chain, 2008, 8, 6008);  // Not part of a read.
  CHECK(chain.count() == 5);
  chain.last().opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  CHECK(chain.last_plain_write() == nullptr);
  write(chain, 2016, 8, 6016);  // Nor of what is a signal already.
  CHECK(chain.count() == 6);
}

TEST_CASE("nothing is written by a request without bytes, and nothing joins it") {
  request_chain chain;
  chain.append(IBV_WR_RDMA_WRITE, {}, {});
  CHECK(chain.first()->num_sge == 0);
  write(chain, 1000, 8, 0, 0);
  CHECK(chain.count() == 2);
}

TEST_CASE("requests do not grow without end") {
  request_chain chain;
  constexpr std::uint32_t half = request_chain::most_merged_bytes / 2;
  write(chain, 0, half, 0);
  write(chain, half, half, half);
  CHECK(chain.count() == 1);
  write(chain, 2 * half, 1, 2 * half);
  CHECK(chain.count() == 2);
  // Nor does one that is long to begin with wrap around.
  constexpr std::uint64_t far = std::uint64_t{1} << 40U;
  write(chain, far, 0xffff'ff00U, far);
  write(chain, far + 0xffff'ff00U, 0x1000, far + 0xffff'ff00U);
  CHECK(chain.count() == 4);
}

TEST_CASE("a full chain says so, and is as new when cleared") {
  request_chain chain;
  for (std::uint64_t i = 0; i < request_chain::most_requests; ++i) {
    CHECK_FALSE(chain.full());
    write(chain, 100 * i, 8, 200 * i);
  }
  CHECK(chain.full());
  chain.clear();
  CHECK(chain.empty());
  CHECK(chain.bytes() == 0);
  CHECK_FALSE(chain.extend_write({800, 8, 1}, {0, 9}));
}
