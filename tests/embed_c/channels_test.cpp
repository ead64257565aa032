// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "embed_c/ranks_of_c.hpp"

namespace channels_test {

using embed_c::fails;
using embed_c::kind;
using embed_c::ok;
using embed_c::second;
using test::expect;
using test::expect_equal;

namespace {

/// Channels of a test, with the numbers of their ranks.
class group {
 public:
  explicit group(peerbus_comm* comm, const peerbus_channel_options* options = nullptr)
      : rank{peerbus_comm_rank(comm)}, size{peerbus_comm_size(comm)} {
    ok(peerbus_channels_create(comm, options, 0, &channels), "channels_create");
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() { peerbus_channels_destroy(&channels); }

  std::uint64_t rank;
  std::uint64_t size;
  peerbus_channels* channels = nullptr;
};

using values = std::vector<std::int32_t>;

/// Returns message number `number` from `from` to `to`. Messages differ in length; some are empty.
values message(std::uint64_t from, std::uint64_t to, std::uint64_t number, std::uint64_t unit) {
  values made(unit * ((from + 2 * to + number) % 4));
  std::iota(made.begin(), made.end(), static_cast<std::int32_t>(100 * from + 10 * to + number));
  return made;
}

peerbus_transfer send_to(std::uint64_t peer, const values& given) {
  return {1, PEERBUS_DTYPE_I32, peer, given.size(), given.data(), nullptr};
}
peerbus_transfer recv_from(std::uint64_t peer, values& out) {
  return {0, PEERBUS_DTYPE_I32, peer, out.size(), nullptr, out.data()};
}

/// Sends two messages from every rank to every rank, itself included, in one batch. Odd ranks do it
/// in halves if `has_halves`.
void check_batch(const group& on, std::uint64_t unit, bool has_halves = false) {
  constexpr std::uint64_t each = 2;
  const auto place = [](std::uint64_t peer, std::uint64_t i) { return peer * each + i; };
  std::vector<values> sent(on.size * each), expected(sent.size()), received(sent.size());
  std::vector<peerbus_transfer> batch;
  for (std::uint64_t peer = 0; peer < on.size; ++peer)
    for (std::uint64_t i = 0; i < each; ++i) {
      sent[place(peer, i)] = message(on.rank, peer, i, unit);
      expected[place(peer, i)] = message(peer, on.rank, i, unit);
      received[place(peer, i)].assign(expected[place(peer, i)].size(), -1);
      batch.push_back(send_to(peer, sent[place(peer, i)]));
      batch.push_back(recv_from(peer, received[place(peer, i)]));
    }
  const auto batch_by = [&](peerbus_channels* by) {
    return peerbus_batch_send_recv(by, batch.data(), batch.size(), 0);
  };
  if (has_halves && on.rank % 2 == 1) {
    peerbus_channels* halves = nullptr;
    ok(peerbus_channels_in_halves(on.channels, &halves), "channels_in_halves");
    fails(peerbus_channels_finish(halves, 0), PEERBUS_INVALID_ARGUMENT,
          "a handle without messages");
    ok(batch_by(halves), "the first half");
    constexpr auto open = "batch_send_recv was called while batch_send_recv (call ";
    fails(batch_by(on.channels), PEERBUS_INVALID_ARGUMENT, open);
    fails(batch_by(halves), PEERBUS_INVALID_ARGUMENT, open);
    batch.clear();  // Used by the first half only.
    ok(peerbus_channels_finish(halves, 0), "the second half");
    peerbus_channels_destroy(&halves);
  } else {
    ok(batch_by(on.channels), "batch_send_recv");
  }
  expect(received == expected, "the messages of a batch");
}

/// Sends a message around all ranks, each of which adds 1.
void check_ring(const group& on, std::uint64_t count) {
  if (on.size == 1) return;
  const std::uint64_t next = (on.rank + 1) % on.size;
  const std::uint64_t previous = (on.rank + on.size - 1) % on.size;
  values data(count, -1);
  constexpr peerbus_dtype i32 = PEERBUS_DTYPE_I32;
  if (on.rank == 0)
    data.assign(count, 7);
  else
    ok(peerbus_recv(on.channels, data.data(), count, i32, previous, 0), "recv");
  for (std::int32_t& value : data) ++value;
  ok(peerbus_send(on.channels, data.data(), count, i32, next, 0), "send");
  if (on.rank != 0) return;
  ok(peerbus_recv(on.channels, data.data(), count, i32, previous, 0), "recv");
  expect(data == values(count, static_cast<std::int32_t>(7 + on.size)), "what came around");
}

void check_messages(peerbus_comm* comm) {
  const group on{comm};
  for (const std::uint64_t unit : {0U, 1U, 500U}) {
    check_batch(on, unit);
    check_batch(on, unit, true);
  }
  for (const std::uint64_t count : {0U, 1U, 1000U}) check_ring(on, count);
  ok(peerbus_batch_send_recv(on.channels, nullptr, 0, 0), "no messages");
  // In several slices.
  peerbus_channel_options options{};
  options.struct_bytes = sizeof options;
  options.scratch_bytes = 8192;
  const group narrow{comm, &options};
  check_batch(narrow, 3000);
  check_batch(narrow, 3000, true);
  check_ring(narrow, 3000);
}

/// Checks bad arguments, which end a call of this rank alone and leave its output alone.
void check_refusals(peerbus_comm* comm) {
  const group on{comm};
  values in(4, 1);
  values out(4, -1);
  constexpr auto bad = PEERBUS_INVALID_ARGUMENT;
  constexpr peerbus_dtype i32 = PEERBUS_DTYPE_I32;
  const std::uint64_t peer = (on.rank + 1) % on.size;
  const auto send = [&](const void* input, std::uint64_t count, peerbus_dtype dtype,
                        std::uint64_t to) {
    return peerbus_send(on.channels, input, count, dtype, to, 0);
  };
  fails(send(nullptr, 4, i32, peer), bad, "that is null but 4 elements long");
  fails(send(in.data(), UINT64_MAX / 4, i32, peer), bad, "more elements than memory can have");
  fails(send(in.data(), 4, PEERBUS_DTYPE_REFUSED, peer), bad, "a dtype of 0, expected");
  fails(send(in.data(), 4, i32, on.size), bad, "expected a rank below");
  fails(send(in.data(), 4, i32, UINT64_MAX), bad, "expected a rank below");
  fails(send(in.data(), 4, i32, on.rank), bad, "which has no other end in the batch");
  fails(peerbus_recv(on.channels, nullptr, 4, i32, peer, 0), bad, "that is null");
  fails(peerbus_recv(on.channels, out.data(), 4, i32, on.size, 0), bad, "expected a rank below");
  const auto batch = [&](const std::vector<peerbus_transfer>& messages) {
    return peerbus_batch_send_recv(on.channels, messages.data(), messages.size(), 0);
  };
  fails(peerbus_batch_send_recv(on.channels, nullptr, 1, 0), bad, "messages are NULL");
  peerbus_transfer wrong = send_to(peer, in);
  fails(peerbus_batch_send_recv(on.channels, &wrong, UINT64_MAX, 0), bad,
        "messages are more than memory can have");
  wrong.sends = 2;
  fails(batch({send_to(peer, in), wrong}), bad, "message 1 with sends 2, expected 0 or 1");
  wrong = recv_from(peer, out);
  wrong.dtype = -1;
  fails(batch({send_to(peer, in), wrong}), bad, "message 1 with a dtype of -1");
  fails(batch({recv_from(peer, out), recv_from(peer, out)}), bad, "overlaps message 1");
  values three(3, -1);
  fails(batch({send_to(on.rank, in), recv_from(on.rank, three)}), bad,
        "a message to its own rank of 4 elements, message 0, which message 1 expects to be 3");
  expect(out == values(4, -1) && three == values(3, -1), "a refused batch wrote output");

  // What the two ends alone can see.
  const std::uint64_t previous = (on.rank + on.size - 1) % on.size;
  const auto pass_on = [&](std::uint64_t count, peerbus_dtype dtype) {
    peerbus_transfer receiving = recv_from(previous, out);
    receiving.count = count;
    receiving.dtype = dtype;
    return batch({send_to(peer, in), receiving});
  };
  fails(pass_on(3, i32), PEERBUS_MISMATCH, "sends 4 x i32, rank");
  fails(pass_on(4, PEERBUS_DTYPE_F32), PEERBUS_MISMATCH, "receives 4 x f32");
  expect(out == values(4, -1), "a message that does not match was written");
  ok(pass_on(4, i32), "after that");
  expect(out == in, "the message after that");
}

}  // namespace

TEST_CASE("messages through C") {
  for (const std::uint64_t n : {1U, 2U, 3U})
    for (const kind how : {kind::threads, kind::processes, kind::hosts})
      CHECK(embed_c::run(n, how, check_messages) == 0);
}

TEST_CASE("bad input of a message ends the call of its rank, or of both ends") {
  for (const std::uint64_t n : {2U, 3U}) CHECK(embed_c::run(n, kind::threads, check_refusals) == 0);
}

TEST_CASE("channels that cannot be made or used, and a peer that does not come") {
  peerbus_channels* channels = nullptr;
  std::uint8_t byte = 0;
  fails(peerbus_channels_create(nullptr, nullptr, 0, &channels), PEERBUS_INVALID_ARGUMENT,
        "communicator is NULL");
  fails(peerbus_send(nullptr, &byte, 1, PEERBUS_DTYPE_U8, 0, 0), PEERBUS_INVALID_ARGUMENT,
        "channels object is NULL");
  peerbus_channels_destroy(nullptr);
  peerbus_channels_destroy(&channels);
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_channels* none = nullptr;
          fails(peerbus_channels_create(comm, nullptr, 0, nullptr), PEERBUS_INVALID_ARGUMENT,
                "channels is NULL");
          peerbus_channel_options options{};
          fails(peerbus_channels_create(comm, &options, 0, &none), PEERBUS_INVALID_ARGUMENT,
                "options.struct_bytes is 0");
          options.struct_bytes = sizeof options;
          options.scratch_bytes = 1;
          fails(peerbus_channels_create(comm, &options, 0, &none), PEERBUS_INVALID_ARGUMENT,
                "scratch");
          options.scratch_bytes = peerbus_comm_rank(comm) == 0 ? 8192 : 16384;
          fails(peerbus_channels_create(comm, &options, 0, &none), PEERBUS_MISMATCH, "");
          expect(none == nullptr, "no channels");

          const group on{comm};
          if (on.rank == 1) return;
          std::uint8_t letter = 0;
          const peerbus_code code =
              peerbus_recv(on.channels, &letter, 1, PEERBUS_DTYPE_U8, 1, second / 20);
          expect(code == PEERBUS_TIMED_OUT || code == PEERBUS_PEER_DEAD, "returned ", code);
          fails(peerbus_recv(on.channels, &letter, 1, PEERBUS_DTYPE_U8, 1, 0), PEERBUS_POISONED,
                "");
        }) == 0);
}

}  // namespace channels_test
