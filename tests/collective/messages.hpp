// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/pending_messages.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"
#include "support/ranks.hpp"

/// Messages between pairs of ranks. What a message holds follows from its ends and number.
namespace collective_suite {

using peerbus::collective::channel_options;
using peerbus::collective::channels;

/// Runs `body(channels&)` on `ranks` ranks of `Group`.
template <class Group>
void on_channels(std::size_t ranks, void (*body)(channels&), channel_options options = {}) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    channels on{comm, options};
    body(on);
  });
  CHECK(worst_status == 0);
}

/// Runs `body(channels&)` on groups of several sizes.
template <class Group>
void on_channels_of_all_sizes(void (*body)(channels&), channel_options options = {}) {
  for (const std::size_t ranks : test::sizes_for<Group>()) on_channels<Group>(ranks, body, options);
}

/// Slices of a few hundred bytes with eight ranks.
inline constexpr channel_options small_slots{.scratch_bytes = 12'288};

inline std::vector<std::uint16_t> message(std::size_t source, std::size_t target,
                                          std::uint64_t number) {
  const std::uint64_t bits = mix(mix(number + 31 * source) + target);
  const std::size_t count = bits % 4 == 0 ? 0 : (bits >> 8U) % (bits % 4 == 1 ? 2000 : 40);
  return values<std::uint16_t>(source, count, bits);
}

/// Messages from every rank to every rank, itself included, in one batch of random order. Some
/// ranks do it in halves if `has_halves`.
inline void check_batch(channels& on, std::uint64_t first, std::size_t each, std::uint64_t seed,
                        bool has_halves = false) {
  namespace coll = peerbus::collective;
  struct plan {
    std::size_t peer;
    bool sends;
    std::vector<std::uint16_t> elements, expected{};
  };
  const std::size_t me = on.rank().index();
  std::vector<plan> plans;
  for (std::size_t r = 0; r < on.size(); ++r)
    for (std::size_t i = 0; i < each; ++i) {
      plans.push_back({r, true, {}});
      plans.push_back({r, false, {}});
    }
  std::shuffle(plans.begin(), plans.end(), std::mt19937_64{seed + me});
  std::vector<std::uint64_t> sent(on.size(), first);
  std::vector<std::uint64_t> received(on.size(), first);
  std::vector<coll::transfer> batch;
  for (plan& p : plans) {
    if (p.sends) {
      p.elements = message(me, p.peer, sent[p.peer]++);
      batch.push_back(coll::send_to(rank_id{p.peer}, p.elements));
    } else {
      p.expected = message(p.peer, me, received[p.peer]++);
      p.elements.resize(p.expected.size());
      batch.push_back(coll::recv_from(rank_id{p.peer}, p.elements));
    }
  }
  if (has_halves && mix(seed + me) % 3 != 0) {
    coll::pending_messages half = coll::start_batch_send_recv(on, batch);
    test::expect_error(peerbus::errc::invalid_argument,
                       {"batch_send_recv was called while batch_send_recv (call ",
                        " of the channels) is not finished"},
                       [&] { coll::batch_send_recv(on, batch); });
    coll::pending_messages moved{std::move(half)};
    test::expect(moved.has_operation(), "a handle that was moved to");
    half = std::move(moved);
    half.finish();
    test::expect(!half.has_operation(), "a handle that is finished");
  } else {
    coll::batch_send_recv(on, batch);
  }
  for (const plan& p : plans)
    if (!p.sends) expect_same<std::uint16_t>(p.elements, p.expected, "a message");
}

inline void check_messages(channels& on) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  for (std::uint64_t round = 0; round < 8; ++round)
    check_batch(on, 3 * round, 3, round, round >= 4);

  // A ring with calls of one message each: even ranks send first.
  if (n % 2 == 0) {
    const rank_id next{(me + 1) % n};
    const rank_id previous{(me + n - 1) % n};
    std::vector<std::uint16_t> out = message(me, next.index(), 99);
    const std::vector<std::uint16_t> expected = message(previous.index(), me, 99);
    std::vector<std::uint16_t> in(expected.size());
    if (me % 2 == 0) coll::send(on, out, next);
    coll::recv(on, in, previous);
    std::ranges::fill(out, std::uint16_t{0});
    if (me % 2 == 1) coll::send(on, message(me, next.index(), 99), next);
    expect_same<std::uint16_t>(in, expected, "a message of the ring");
  }

  if (n > 1 && me < 2) {
    const rank_id other{1 - me};
    for (const std::size_t count : {0U, 20U, 3000U}) {
      const auto out = values<float>(me, count, 6 + count);
      std::vector<float> in(count);
      coll::pending_messages half;
      if (me == 0) half = coll::start_send(on, out, other);
      if (me == 0) half.finish();
      half = coll::start_recv(on, in, other);
      coll::pending_messages{std::move(half)}.finish();
      if (me == 1) coll::start_send(on, out, other).finish();
      expect_same<float>(in, values<float>(other.index(), count, 6 + count), "a message in halves");
    }
  }

  // A batch on one rank, single calls on the other: the send there is not held up by a receive
  // that comes later.
  if (n > 1 && me < 2) {
    const rank_id other{1 - me};
    const auto out = values<float>(me, 3000, 5);
    std::vector<float> in(3000);
    if (me == 0) {
      coll::batch_send_recv(on, {coll::send_to(other, out), coll::recv_from(other, in)});
    } else {
      coll::send(on, out, other);
      coll::recv(on, in, other);
    }
    expect_same<float>(in, values<float>(other.index(), 3000, 5), "a message beside another");
  }
}

/// A message of one slice from rank 0, which rank 1 cannot tell that it has taken it.
inline void check_last_message(channels& on) {
  std::vector<float> data = values<float>(0, 10, 3);
  if (on.rank() == rank_id{0}) {
    peerbus::collective::send(on, data, rank_id{1});
  } else {
    std::ranges::fill(data, 0.0F);
    peerbus::collective::recv(on, data, rank_id{0});
    expect_same<float>(data, values<float>(0, 10, 3), "a message of a sender that has left");
  }
}

template <class Messages>
concept starts_messages = requires(channels& on, Messages&& messages) {
  peerbus::collective::start_batch_send_recv(on, std::forward<Messages>(messages));
};
static_assert(starts_messages<std::vector<peerbus::collective::transfer>&> &&
              !starts_messages<std::vector<peerbus::collective::transfer>>);

inline void check_message_mismatch(channels& on) {
  namespace coll = peerbus::collective;
  const std::size_t me = on.rank().index();
  if (me > 1) return;
  const rank_id other{1 - me};
  std::vector<float> four(4, 1.0F);
  std::vector<float> many(3000, 2.0F);
  std::vector<float> out(4, -7.0F);
  std::vector<float> after(4, -7.0F);
  std::vector<double> wide(4, -7.0);
  const auto expect_mismatch = [&](std::string_view text, auto call) {
    test::expect_error(peerbus::errc::mismatch, {"did not move message", text}, call);
    test::expect(out == std::vector<float>(4, -7.0F), "an output that is not written");
  };
  for (int round = 0; round < 3; ++round) {
    // The message behind the bad one, and the one in the other direction, arrive.
    expect_mismatch("from rank 0 to rank 1: rank 0 sends 3000 x f32, rank 1 receives 4 x f32", [&] {
      std::ranges::fill(after, -7.0F);
      if (me == 0)
        coll::batch_send_recv(on, {coll::send_to(other, many), coll::send_to(other, four),
                                   coll::recv_from(other, after)});
      else
        coll::batch_send_recv(on, {coll::recv_from(other, out), coll::recv_from(other, after),
                                   coll::send_to(other, four)});
    });
    test::expect(after == four, "the other messages");
    expect_mismatch("rank 1 sends 4 x f32, rank 0 receives 4 x f64", [&] {
      if (me == 1)
        coll::send(on, four, other);
      else
        coll::recv(on, wide, other);
    });
    expect_mismatch("rank 1 sends 4 x f32, rank 0 receives 4 x f64", [&] {
      coll::pending_messages half =
          me == 1 ? coll::start_send(on, four, other) : coll::start_recv(on, wide, other);
      half.finish();
    });
  }
}

inline void check_bad_messages(channels& on) {
  namespace coll = peerbus::collective;
  const auto expect_refusal = [&](std::string_view text, std::vector<coll::transfer> batch) {
    test::expect_error(peerbus::errc::invalid_argument, {"batch_send_recv", "was given", text},
                       [&] { coll::batch_send_recv(on, batch); });
    test::expect_error(
        peerbus::errc::invalid_argument, {"batch_send_recv", "was given", text},
        [&] { const coll::pending_messages half = coll::start_batch_send_recv(on, batch); });
  };
  test::expect_error(peerbus::errc::invalid_argument, {"finish of a handle without messages"},
                     [] { coll::pending_messages{}.finish(); });
  std::vector<float> data(8, 1.0F);
  const std::span<float> null{static_cast<float*>(nullptr), 4};
  const std::span<float> all{data};
  const rank_id self = on.rank();
  const rank_id last{on.size() - 1};
  // The peers make no call, so nothing may be sent before the whole batch is checked.
  expect_refusal("a message with rank 64, expected a rank below",
                 {coll::send_to(last, all), coll::send_to(rank_id{64}, all)});
  expect_refusal("that is null but 4 elements long", {coll::recv_from(last, null)});
  expect_refusal("that overlaps message 0",
                 {coll::send_to(last, all.first(4)), coll::recv_from(last, all.subspan(3))});
  expect_refusal("that overlaps message",
                 {coll::recv_from(last, all.first(4)), coll::recv_from(last, all.subspan(3))});
  expect_refusal("message 0 with its own rank, which has no other end",
                 {coll::recv_from(self, all)});
  expect_refusal("a message to its own rank of 3 elements",
                 {coll::send_to(self, all.first(3)), coll::recv_from(self, all.subspan(4))});
  check_batch(on, 0, 2, 1);
}

}  // namespace collective_suite
