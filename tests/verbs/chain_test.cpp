// SPDX-License-Identifier: MIT
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/request_id.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

// Which writes become one request, and what becomes of a chain that the device takes in parts.

namespace {
using peerbus::detail::rdma::byte_count;
using peerbus::detail::rdma::rail_load;
using peerbus::detail::rdma::request_chain;
using peerbus::detail::rdma::request_id;
using peerbus::detail::rdma::send_queue;
using peerbus::detail::registered::request_count;

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

namespace {
/// A queue on a device that holds `room` requests, fewer than the queue was promised. What the
/// device has taken stays in `taken`.
class narrow_device {
 public:
  static constexpr std::uint32_t number = 3;
  static constexpr std::uint32_t most_inline = 48;

  explicit narrow_device(std::size_t holds) : room{holds} {
    context_.ops.post_send = &post_send;
    pair_.context = &context_;
    pair_.qp_context = this;
    ibv_qp_cap granted{};
    granted.max_send_sge = request_chain::most_pieces;
    granted.max_inline_data = most_inline;
    bytes.open(load, 32);
    queue.open(pair_, {count, bytes}, number, 31, granted);
  }
  narrow_device(const narrow_device&) = delete;
  narrow_device& operator=(const narrow_device&) = delete;

  /// Completes what has been taken. As on a real device, places become free up to the last request
  /// that asked for a completion, and stay taken behind it.
  void complete_and_free() {
    const std::uint32_t before = count.completed();
    complete(room);
    room += count.completed() - before;
  }
  /// Completes what has been taken, and has room for `next`.
  void complete(std::size_t next) {
    for (const ibv_send_wr& one : taken)
      if ((one.send_flags & IBV_SEND_SIGNALED) != 0) {
        bytes.complete(request_id::decode(one.wr_id).number);
        count.complete(request_id::decode(one.wr_id).number);
      }
    room = next;
  }

  std::size_t room;
  std::vector<ibv_send_wr> taken;
  request_count count;
  rail_load load;
  byte_count bytes;
  send_queue queue;

 private:
  static int post_send(ibv_qp* pair, ibv_send_wr* chain, ibv_send_wr** refused) {
    auto& self = *static_cast<narrow_device*>(pair->qp_context);
    for (; chain != nullptr; chain = chain->next) {
      if (self.room == 0) {
        *refused = chain;
        return ENOMEM;
      }
      --self.room;
      self.taken.push_back(*chain);
    }
    return 0;
  }

  ibv_context context_{};
  ibv_qp pair_{};
};

/// Every request was taken once and in order, and the last one asked for a completion.
void check_taken(const narrow_device& device, std::uint32_t count) {
  REQUIRE(device.taken.size() == count);
  for (std::uint32_t i = 0; i < count; ++i) {
    CHECK(device.taken[i].wr.rdma.remote_addr == 200 * i);
    CHECK(device.taken[i].wr_id == request_id{narrow_device::number, i + 1}.encode());
  }
  CHECK((device.taken.back().send_flags & IBV_SEND_SIGNALED) != 0);
  CHECK(device.count.posted() == count);
}
}  // namespace

TEST_CASE("requests may be added to a chain of which the device took the beginning only") {
  narrow_device device{4};
  send_queue& queue = device.queue;
  const std::uint32_t place = queue.next_place();
  for (std::uint64_t i = 0; i < 6; ++i) write(queue.chain(), 100 * i, 8, 200 * i);
  CHECK(queue.post() == EAGAIN);
  CHECK(device.load.outstanding() == 4 * 8);  // The rest is not on its way.
  CHECK(device.count.posted() == 4);
  CHECK(queue.chain().count() == 2);
  CHECK(queue.chain().bytes() == 16);
  CHECK(queue.next_place() == place + 6);
  for (std::uint64_t i = 6; i < 9; ++i) write(queue.chain(), 100 * i, 8, 200 * i);
  device.complete(3);
  CHECK(queue.post() == EAGAIN);
  device.complete(100);
  CHECK(queue.post() == 0);
  CHECK(queue.chain().empty());
  check_taken(device, 9);
  CHECK_FALSE(queue.is_idle());
  CHECK(device.load.sent() == 9 * 8);
  CHECK(device.load.outstanding() != 0);
  device.complete(0);
  CHECK(device.load.outstanding() == 0);
  CHECK(queue.is_idle());
}

TEST_CASE("a device that holds fewer requests than a chain has takes them in turn") {
  narrow_device device{4};
  send_queue& queue = device.queue;
  for (std::uint64_t i = 0; i < 6; ++i) write(queue.chain(), 100 * i, 8, 200 * i);
  CHECK(queue.post() == EAGAIN);
  CHECK(queue.post() == EAGAIN);  // Nothing but the chain's own beginning is on its way.
  device.room = 4;
  CHECK(queue.post() == 0);
  check_taken(device, 6);
}

TEST_CASE("a request that was refused may still grow beyond what is sent inline") {
  narrow_device device{1};
  send_queue& queue = device.queue;
  write(queue.chain(), 0, 8, 0);
  write(queue.chain(), 100, narrow_device::most_inline, 200);
  CHECK(queue.post() == EAGAIN);
  write(queue.chain(), 100 + narrow_device::most_inline, 8, 200 + narrow_device::most_inline);
  device.room = 1;
  CHECK(queue.post() == 0);
  check_taken(device, 2);
  CHECK((device.taken[0].send_flags & IBV_SEND_INLINE) != 0);
  CHECK((device.taken[1].send_flags & IBV_SEND_INLINE) == 0);
}

TEST_CASE("a chain that was taken in parts has room again when all of it was") {
  narrow_device device{request_chain::most_requests - 1};
  send_queue& queue = device.queue;
  for (std::uint64_t i = 0; i < request_chain::most_requests; ++i)
    write(queue.chain(), 100 * i, 8, 200 * i);
  CHECK(queue.post() == EAGAIN);
  CHECK_FALSE(queue.has_room());
  device.room = 1;
  CHECK(queue.post() == 0);
  CHECK(queue.has_room());
  check_taken(device, request_chain::most_requests);
}

TEST_CASE("a device that holds few requests never waits for a completion that none asked for") {
  for (std::uint32_t holds = 1; holds <= request_chain::most_requests; ++holds)
    for (std::uint32_t length = 1; length <= request_chain::most_requests; ++length) {
      CAPTURE(holds);
      CAPTURE(length);
      narrow_device device{holds};
      send_queue& queue = device.queue;
      // A chain that the device takes at once, then twice one that it may have to take in parts.
      const std::uint32_t total = 1 + 2 * length;
      std::uint32_t noted = 0;
      for (const std::uint32_t chain : {1U, length, length}) {
        for (std::uint32_t i = 0; i < chain; ++i, ++noted)
          write(queue.chain(), 100 * noted, 8, 200 * noted);
        for (std::uint32_t tries = 0; queue.post() == EAGAIN; ++tries) {
          REQUIRE(tries < 2 * length);
          device.complete_and_free();
        }
      }
      check_taken(device, total);
      device.complete_and_free();
      CHECK(queue.is_idle());
    }
}

TEST_CASE("once a device has taken a long chain, only the last of a chain asks for a completion") {
  narrow_device device{100};
  send_queue& queue = device.queue;
  for (std::uint64_t i = 0; i < 8; ++i) {
    write(queue.chain(), 100 * i, 8, 200 * i);
    if (i % 4 == 3) CHECK(queue.post() == 0);
  }
  check_taken(device, 8);
  for (std::uint32_t i = 0; i < 8; ++i)
    CHECK(((device.taken[i].send_flags & IBV_SEND_SIGNALED) != 0) == (i == 0 || i % 4 == 3));
}

TEST_CASE("a device that takes nothing though nothing is on its way is broken") {
  narrow_device device{0};
  write(device.queue.chain(), 0, 8, 0);
  CHECK(device.queue.post() == ENOMEM);
  CHECK_FALSE(device.queue.is_idle());
}
