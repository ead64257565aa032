// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/communicator.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/window.hpp>

#include "support/bytes.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"
#include "support/sanitized.hpp"

/// The numbered semantics of `transport`, through communicator and window, for any group of ranks.
/// The upper half of each window is its owner's: sources and targets lie there, as not every
/// transport takes other memory.
namespace conformance {

using peerbus::deadline;
using peerbus::errc;
using peerbus::put_piece;
using peerbus::rank_id;
using peerbus::signal_id;
using test::expect;
using test::expect_code;
using test::expect_equal;
using test::expect_ok;

inline deadline soon() { return deadline::after(std::chrono::seconds{60}); }

/// Different for every (from, to, word).
inline std::uint64_t pattern(rank_id from, rank_id to, std::size_t word) {
  return (from.index() * 0x1'0001 + to.index() * 0x100 + word + 1) * 0x9e3779b97f4a7c15U;
}

template <class Group>
void check_fresh_windows(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096},
                                    std::size_t{100'000}, std::size_t{5} << 20})
      for (const std::size_t signals : {0U, 1U, 33U}) {
        if (bytes > 100'000 && signals != 33) continue;  // Takes longer than all others.
        auto win = comm.make_window(bytes, signals);
        expect_equal(win.local().size(), bytes, "bytes of the local part");
        expect_equal(win.shape().bytes, bytes, "bytes of the shape");
        expect_equal(win.shape().signals, signals, "signals of the shape");
        const auto at = reinterpret_cast<std::uintptr_t>(win.local().data());
        expect_equal(at % peerbus::cache_line_bytes, 0U, "misalignment of the local part");
        expect(test::all_bytes_are(win.local(), std::byte{0}), "fresh memory of zeros");
        for (std::size_t s = 0; s < signals; ++s)
          expect_equal(win.value(static_cast<signal_id>(s)), 0U, "fresh signal ", s);
        test::fill_bytes(win.local(), std::byte{0xff});
        comm.barrier();
      }
  });
  CHECK(worst_status == 0);
}

/// Every rank puts a block to every rank, itself included, and reads one from every rank.
template <class Group>
void check_all_to_all(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t words = 24;
    constexpr std::size_t block = words * sizeof(std::uint64_t);
    auto win = comm.make_window(2 * comm.size() * block, comm.size());
    const auto local = win.template local<std::uint64_t>();
    const rank_id me = comm.rank();
    const auto mine = static_cast<signal_id>(me.index());
    for (std::uint64_t round = 1; round <= 6; ++round) {
      for (const rank_id peer : comm.ranks()) {
        const auto source = local.subspan((comm.size() + peer.index()) * words, words);
        for (std::size_t w = 0; w < words; ++w) source[w] = pattern(me, peer, w) + round;
        // In two puts and a signal, as a run and a signal, or at one go.
        const std::size_t offset = me.index() * block;
        if (round % 3 == 0) {
          expect_ok(win.put(peer, offset, source.first(7)), "put");
          expect_ok(win.put(peer, offset + 7 * 8, source.subspan(7)), "put");
          expect_ok(win.signal(peer, mine, round), "signal");
        } else if (round % 3 == 1) {
          const auto bytes = std::as_bytes(source);
          const std::array pieces{
              put_piece{offset + 9 * 8, bytes.subspan(9 * 8)}, put_piece{offset, bytes.first(0)},
              put_piece{offset + 8, bytes.subspan(8, 8 * 8)}, put_piece{offset, bytes.first(8)}};
          expect_ok(win.put_run(peer, pieces), "put_run");
          expect_ok(win.signal(peer, mine, round), "signal");
        } else {
          expect_ok(win.put_signal(peer, offset, source, mine, round), "put_signal");
        }
      }
      for (const rank_id peer : comm.ranks()) {
        const auto id = static_cast<signal_id>(peer.index());
        expect_ok(win.wait(id, round, soon(), peer), "wait");
        expect_equal(win.value(id), round, "signal of rank ", peer.index());
        for (std::size_t w = 0; w < words; ++w)
          expect_equal(local[peer.index() * words + w], pattern(peer, me, w) + round, "round ",
                       round, ", from rank ", peer.index(), ", word ", w);
      }
      for (const rank_id peer : comm.ranks()) expect_ok(win.flush(peer), "flush");
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_get(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t words = 40;
    auto shared = comm.make_window(words * 8, 0);
    auto targets = comm.make_window(comm.size() * words * 8, 0);
    const auto local = shared.template local<std::uint64_t>();
    for (std::uint64_t round = 0; round < 5; ++round) {
      for (std::size_t w = 0; w < words; ++w)
        local[w] = pattern(comm.rank(), comm.rank(), w) ^ round;
      comm.barrier();
      const auto copies = targets.template local<std::uint64_t>();
      for (const rank_id peer : comm.ranks())
        expect_ok(shared.get(peer, round * 8, copies.subspan(peer.index() * words, words - round)),
                  "get");
      for (const rank_id peer : comm.ranks()) {
        expect_ok(shared.flush(peer), "flush");
        for (std::size_t w = 0; w < words - round; ++w)
          expect_equal(copies[peer.index() * words + w], pattern(peer, peer, w + round) ^ round,
                       "got from rank ", peer.index(), ", word ", w);
      }
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

/// The erased window does what the window of the transport does: the same puts and signals, and
/// addresses of exactly those parts that the transport gives.
template <class Group>
void check_any_window(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t word = sizeof(std::uint64_t);
    const std::size_t size = comm.size();
    // By rank three words of each peer, then words to put from, then those to read into.
    const std::unique_ptr<peerbus::any_window> win =
        peerbus::make_any_window(comm, {.bytes = 5 * size * word, .signals = size + 1}, soon());
    const rank_id me = comm.rank();
    const auto mine = static_cast<signal_id>(me.index());
    const auto of_first = static_cast<signal_id>(size);
    const std::span words{peerbus::detail::placed<std::uint64_t>(win->local()), 5 * size};
    expect_equal(&win->group(), &comm, "the group");
    expect_equal(win->is_direct(), peerbus::reach_of(comm.bus()) == peerbus::peer_reach::all,
                 "is direct");
    for (const rank_id peer : comm.ranks()) {
      const bool can_be_near = peerbus::reach_of(comm.bus()) != peerbus::peer_reach::none;
      if (peer == me || win->is_direct()) expect(win->part(peer) != nullptr, "the part of a peer");
      if (peer != me && !can_be_near) expect(win->part(peer) == nullptr, "no part of a far peer");
      std::uint64_t& source = words[3 * size + peer.index()];
      source = pattern(me, peer, 0);
      const auto bytes = std::as_bytes(std::span{&source, 1});
      const std::size_t offset = 3 * me.index() * word;
      if (std::byte* const part = win->part(peer))
        std::memcpy(part + offset, bytes.data(), word);
      else
        expect_ok(win->put(peer, offset, bytes), "put");
      const std::array pieces{put_piece{offset + word + 4, bytes.subspan(4)},
                              put_piece{offset + word, bytes.first(4)}};
      expect_ok(win->put_run(peer, pieces), "put_run");
      expect_ok(win->signal(peer, mine, 1), "signal");
      expect_ok(win->put_signal(peer, offset + 2 * word, bytes, mine, 2), "put_signal");
    }
    for (const rank_id peer : comm.ranks()) {
      const auto id = static_cast<signal_id>(peer.index());
      expect_ok(win->wait_at(me, id, 2, soon(), peer), "wait_at");
      expect_equal(win->value_at(me, id), 2U, "signal of a peer");
      for (std::size_t w = 0; w < 3; ++w)
        expect_equal(words[3 * peer.index() + w], pattern(peer, me, 0), "word ", w);
      const std::span target{&words[4 * size + peer.index()], 1};
      expect_ok(win->get(peer, (3 * size + me.index()) * word, std::as_writable_bytes(target)),
                "get");
    }
    expect_ok(win->settle(), "settle");
    for (const rank_id peer : comm.ranks())
      expect_equal(words[4 * size + peer.index()], pattern(peer, me, 0), "a word that was read");
    if (me == rank_id{0}) expect_ok(win->signal_each(comm.peers(), of_first, 7), "signal_each");
    if (me != rank_id{0}) expect_ok(win->wait_at(me, of_first, 7, soon(), rank_id{0}), "wait");
    const rank_id next{(me.index() + 1) % size};
    if (win->is_direct() && next != rank_id{0}) {
      expect_ok(win->wait_at(next, of_first, 7, soon(), rank_id{0}), "wait at a peer");
      expect_equal(win->value_at(next, of_first), 7U, "signal at a peer");
    }
    expect_code(win->put(rank_id{size}, 0, {}), errc::out_of_range, "put to nobody");
    expect_code(win->put_signal(me, 5 * size * word + 1, {}, mine, 3), errc::out_of_range,
                "put_signal out of range");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// Each call that names something that does not exist says so and writes nothing anywhere.
template <class Group>
void check_ranges(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t bytes = 256;
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    auto win = comm.make_window(bytes, 2);
    auto own = comm.make_window(bytes + 64, 0);
    const std::span<std::byte> source = own.local();
    std::fill(source.begin(), source.end(), std::byte{0xab});
    std::fill(win.local().begin(), win.local().end(), std::byte{0x11});
    comm.barrier();
    const signal_id good{1};
    const signal_id bad{2};
    struct range {
      std::size_t offset, count;
    };
    for (std::size_t r = 0; r < comm.size() + 2; ++r) {
      const rank_id peer{r < comm.size() ? r : r == comm.size() ? r : 0xffff'ffffU};
      const bool exists = r < comm.size();
      for (const auto& [offset, count] :
           {range{0, bytes + 1}, range{1, bytes}, range{bytes, 1}, range{bytes + 1, 0},
            range{most, 1}, range{most - 7, 16}, range{most, 0}, range{bytes - 1, 2}}) {
        const auto part = source.first(count);
        expect_code(win.put(peer, offset, part), errc::out_of_range, "put");
        expect_code(win.get(peer, offset, part), errc::out_of_range, "get");
        expect_code(win.put_signal(peer, offset, part, good, 7), errc::out_of_range, "put_signal");
        const std::array pieces{put_piece{0, source.first(8)}, put_piece{offset, part}};
        expect_code(win.put_run(peer, pieces), errc::out_of_range, "put_run");
      }
      std::uint64_t before = 4711;
      if (comm.bus().capabilities().fetch_add) {
        for (const std::size_t offset : {bytes, bytes - 4, most - 7, most})
          expect_code(win.fetch_add(peer, offset, 1, before), errc::out_of_range, "fetch_add");
        if (exists)
          expect_code(win.fetch_add(peer, 4, 1, before), errc::invalid_argument, "fetch_add at 4");
      } else if (exists) {
        expect_code(win.fetch_add(peer, 0, 1, before), errc::unsupported, "fetch_add");
      }
      expect_equal(before, 4711U, "the target of a refused fetch_add");
      expect_code(win.signal(peer, bad, 7), errc::out_of_range, "signal of bad id");
      expect_code(win.signal(peer, signal_id{0xffff'ffffU}, 7), errc::out_of_range,
                  "signal of bad id");
      expect_code(win.put_signal(peer, 0, source.first(8), bad, 7), errc::out_of_range,
                  "put_signal of bad id");
      if (exists) {
        // Nothing at the very end is something that exists.
        expect_ok(win.put(peer, bytes, source.first(0)), "empty put");
        expect_ok(win.get(peer, bytes, source.first(0)), "empty get");
        expect_ok(win.put(peer, 0, std::span<const std::byte>{}), "null put");
      } else {
        expect_code(win.put(peer, 0, source.first(8)), errc::out_of_range, "put to nobody");
        expect_code(win.put(peer, 0, source.first(0)), errc::out_of_range, "empty put to nobody");
        expect_code(win.get(peer, 0, source.first(8)), errc::out_of_range, "get of nobody");
        expect_code(win.signal(peer, good, 7), errc::out_of_range, "signal to nobody");
        const std::array some{comm.rank(), peer};
        expect_code(win.signal_each(some, good, 7), errc::out_of_range, "signal to somebody too");
        expect_code(win.put_signal(peer, 0, source.first(8), good, 7), errc::out_of_range,
                    "put_signal to nobody");
        expect_code(win.flush(peer), errc::out_of_range, "flush of nobody");
        expect_code(win.wait(good, 1, soon(), peer), errc::out_of_range, "wait for nobody");
      }
    }
    expect_code(win.wait(bad, 0, soon()), errc::out_of_range, "wait for bad id");
    expect_equal(win.value(bad), 0U, "value of bad id");
    expect_ok(comm.bus().quiet(), "quiet");
    comm.barrier();
    for (const std::byte byte : win.local())
      expect_equal(static_cast<int>(byte), 0x11, "a byte of the window");
    for (const std::byte byte : source)
      expect_equal(static_cast<int>(byte), 0xab, "a byte of a refused get's target");
    expect_equal(win.value(good), 0U, "signal 1");
    expect_equal(win.value(signal_id{0}), 0U, "signal 0");
  });
  CHECK(worst_status == 0);
}

/// Memory outside windows: used where the transport says that it can, else refused untouched.
template <class Group>
void check_foreign_memory(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    auto win = comm.make_window(64 * comm.size(), comm.size());
    const auto id = static_cast<signal_id>(comm.rank().index());
    const std::vector<std::uint64_t> source(8, comm.rank().index() + 1);
    std::vector<std::uint64_t> target(8, 99);
    using transport = std::remove_reference_t<decltype(comm.bus())>;
    constexpr bool may_have_near_peers = peerbus::partly_direct_transport<transport>;
    for (const rank_id peer : comm.ranks()) {
      const errc code = win.put_signal(peer, comm.rank().index() * 64, std::span{source}, id, 1);
      if (comm.bus().capabilities().any_local_memory) {
        expect_ok(code, "put_signal from the heap");
        expect_ok(win.wait(static_cast<signal_id>(peer.index()), 1, soon(), peer), "wait");
        expect_equal(win.template local<std::uint64_t>()[peer.index() * 8 + 7], peer.index() + 1,
                     "word from rank ", peer.index());
        expect_ok(win.get(comm.rank(), peer.index() * 64, std::span{target}), "get");
        expect_ok(win.flush(comm.rank()), "flush");
        expect_equal(target[3], peer.index() + 1, "word got to the heap");
      } else if (may_have_near_peers && code == errc::ok) {
        // Stores take any memory, whatever the far peers' plane needs.
      } else {
        expect(code != errc::ok, "put_signal from the heap to be refused");
        expect(win.put(peer, 0, std::span{source}) != errc::ok, "put to be refused");
        expect(win.get(peer, 0, std::span{target}) != errc::ok, "get to be refused");
        expect_equal(target[0], 99U, "target of a refused get");
        if (!may_have_near_peers) expect_equal(win.value(id), 0U, "signal of a refused put_signal");
      }
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// A signal never falls, holds 64 bits, and a wait for what is there already returns at once.
template <class Group>
void check_signals(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    auto win = comm.make_window(0, comm.size() + 1);
    const rank_id next{(comm.rank().index() + 1) % comm.size()};
    const rank_id before{(comm.rank().index() + comm.size() - 1) % comm.size()};
    const auto id = static_cast<signal_id>(comm.rank().index());
    const auto theirs = static_cast<signal_id>(before.index());
    for (const std::uint64_t value :
         {std::uint64_t{1}, std::uint64_t{0xffff'ffff}, std::uint64_t{1} << 32,
          (std::uint64_t{1} << 63) + 5, std::numeric_limits<std::uint64_t>::max()}) {
      expect_ok(win.signal(next, id, value), "signal");
      expect_ok(win.wait(theirs, value, soon(), before), "wait");
      expect_equal(win.value(theirs), value, "value");
      expect_ok(win.wait(theirs, 0, deadline::after(std::chrono::seconds{0}), before),
                "wait for less, out of time");
      comm.barrier();  // Or the next value might be there before this one was looked at.
    }
    // Nobody raises the last one. `awaited` is this rank itself: nobody's departure counts.
    const auto idle = static_cast<signal_id>(comm.size());
    comm.barrier();
    expect_code(win.wait(idle, 1, deadline::after(std::chrono::milliseconds{5}), comm.rank()),
                errc::timed_out, "wait for nobody");
    expect_equal(win.value(idle), 0U, "idle signal");
    comm.barrier();
    expect_ok(win.signal(comm.rank(), idle, 3), "signal to oneself");
    expect_ok(win.wait(idle, 3, soon()), "wait for oneself");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// The last rank leaves. A wait for it whose deadline has passed already says so at once, as a wait
/// in a loop of short waits must.
template <class Group>
void check_short_waits(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    auto win = comm.make_window(0, 1);
    const rank_id last{comm.size() - 1};
    comm.barrier();
    if (comm.rank() == last) return;
    const auto& members = comm.bus().boot().members();
    const deadline until = soon();
    while (members->health(last) == errc::ok && !until.expired()) std::this_thread::yield();
    for (const std::chrono::microseconds span :
         {std::chrono::microseconds{0}, std::chrono::microseconds{10}})
      expect_code(win.wait(signal_id{0}, 1, deadline::after(span), last), errc::peer_dead,
                  "a short wait for a rank that left");
  });
  CHECK(worst_status == 0);
}

/// Signals to one peer arrive in order, each after its puts: a stream of small messages through a
/// ring of slots, acknowledged by the reader.
template <class Group>
void check_stream(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::size_t slots = 4;
    constexpr std::size_t words = 9;
    constexpr std::size_t bytes = words * 8;
    auto win = comm.make_window(2 * slots * bytes, 2);
    const auto local = win.template local<std::uint64_t>();
    const signal_id full{0};
    const signal_id empty{1};
    const rank_id next{(comm.rank().index() + 1) % comm.size()};
    const rank_id before{(comm.rank().index() + comm.size() - 1) % comm.size()};
    for (std::uint64_t n = 1; n <= test::repetitions(400, 100); ++n) {
      const std::size_t slot = n % slots;
      if (n > slots) expect_ok(win.wait(empty, n - slots, soon(), next), "wait for a slot");
      const auto source = local.subspan((slots + slot) * words, words);
      std::fill(source.begin(), source.end(), n * 1000 + comm.rank().index());
      if (n % 3 == 0) {
        expect_ok(win.put_signal(next, slot * bytes, source, full, n), "put_signal");
      } else {
        expect_ok(win.put(next, slot * bytes, source), "put");
        expect_ok(win.signal(next, full, n), "signal");
      }
      expect_ok(win.wait(full, n, soon(), before), "wait for a message");
      for (const std::uint64_t word : local.subspan(slot * words, words))
        expect_equal(word, n * 1000 + before.index(), "message ", n);
      expect_ok(win.signal(before, empty, n), "acknowledge");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// What any rank put before a barrier, to whomever, is there after it.
template <class Group>
void check_barrier(std::size_t ranks, std::uint64_t rounds) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [rounds](auto& comm) {
    auto win = comm.make_window(2 * comm.size() * 8, 0);
    const auto local = win.template local<std::uint64_t>();
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (const rank_id peer : comm.ranks()) {
        auto& source = local[comm.size() + peer.index()];
        source = round * 100 + comm.rank().index();
        expect_ok(win.put(peer, comm.rank().index() * 8, std::span{&source, 1}), "put");
      }
      comm.barrier();
      for (const rank_id peer : comm.ranks())
        expect_equal(local[peer.index()], round * 100 + peer.index(), "after barrier ", round,
                     ", word of rank ", peer.index());
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_fetch_add(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    constexpr std::uint64_t each = test::repetitions(200, 24);  // A multiple of 8.
    auto win = comm.make_window(8 + comm.size() * each, 1);
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < each; ++i) {
      std::uint64_t ticket = 0;
      expect_ok(win.fetch_add(rank_id{0}, 0, 1, ticket), "fetch_add");
      expect(i == 0 || ticket > last, "tickets of one rank to rise");
      expect(ticket < comm.size() * each, "ticket ", ticket, " to be below the total");
      last = ticket;
      // Each ticket is drawn once: its byte was free.
      std::uint64_t taken = 0;
      expect_ok(win.fetch_add(rank_id{0}, 8 + ticket / 8 * 8, std::uint64_t{1} << (ticket % 8 * 8),
                              taken),
                "fetch_add");
      expect_equal((taken >> (ticket % 8 * 8)) & 0xffU, 0U, "uses of ticket ", ticket);
    }
    comm.barrier();
    std::uint64_t total = 0;
    expect_ok(win.fetch_add(rank_id{0}, 0, 0, total), "fetch_add of nothing");
    expect_equal(total, comm.size() * each, "the sum");
    comm.barrier();
    // 64 bits, modulo 2^64.
    if (comm.rank() == rank_id{0}) {
      expect_ok(win.fetch_add(rank_id{0}, 0, ~std::uint64_t{0} - total, total), "fetch_add");
      expect_ok(win.fetch_add(rank_id{0}, 0, 2, total), "fetch_add");
      expect_equal(total, ~std::uint64_t{0}, "the greatest sum");
      expect_equal(win.template local<std::uint64_t>()[0], 1U, "the sum that wrapped");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// Windows are independent, and end one by one, in any order and at any rank's own time.
template <class Group>
void check_many_windows(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    using transport = std::remove_reference_t<decltype(comm.bus())>;
    std::vector<peerbus::window<transport>> windows;
    for (std::size_t i = 0; i < 12; ++i)
      windows.push_back(comm.make_window(64 * comm.size() + i, 1 + comm.size()));
    const auto id = static_cast<signal_id>(comm.rank().index());
    for (std::size_t i = 0; i < windows.size(); ++i)
      for (const rank_id peer : comm.ranks())
        expect_ok(windows[i].signal(peer, id, i + 1), "signal");
    for (std::size_t i = windows.size(); i-- > 0;) {
      for (const rank_id peer : comm.ranks()) {
        const auto theirs = static_cast<signal_id>(peer.index());
        expect_ok(windows[i].wait(theirs, i + 1, soon(), peer), "wait");
        expect_equal(windows[i].value(theirs), i + 1, "signal in window ", i);
      }
      // Not collective; the peers may still wait on theirs.
      if (comm.rank().index() % 2 == 0) windows.pop_back();
    }
    comm.barrier();

    // A window can take the place of another, which is released.
    static_assert(std::is_nothrow_move_assignable_v<peerbus::window<transport>>);
    auto latest = comm.make_window(64, comm.size());
    for (const rank_id peer : comm.ranks()) expect_ok(latest.signal(peer, id, 9), "signal");
    comm.barrier();
    latest = comm.make_window(128, comm.size());
    expect_equal(latest.local().size(), std::size_t{128}, "bytes of the window that was assigned");
    for (const rank_id peer : comm.ranks()) expect_ok(latest.signal(peer, id, 1), "signal");
    for (const rank_id peer : comm.ranks()) {
      const auto theirs = static_cast<signal_id>(peer.index());
      expect_ok(latest.wait(theirs, 1, soon(), peer), "wait");
      expect_equal(latest.value(theirs), std::uint64_t{1},
                   "signal in the window that was assigned");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// Loads and stores where the transport has them.
template <class Group>
void check_peer_memory(std::size_t ranks) {
  static_assert(peerbus::direct_transport<typename Group::transport>);
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    auto win = comm.make_window(comm.size() * 8, comm.size());
    expect(win.peer(comm.rank()).data() == win.local().data(), "one's own part to be local");
    for (std::uint64_t round = 1; round <= 20; ++round) {
      for (const rank_id peer : comm.ranks()) {
        expect_equal(win.template peer<std::uint64_t>(peer).size(), comm.size(), "words");
        win.template peer<std::uint64_t>(peer)[comm.rank().index()] =
            pattern(comm.rank(), peer, round);
        expect_ok(win.signal(peer, static_cast<signal_id>(comm.rank().index()), round), "signal");
      }
      for (const rank_id peer : comm.ranks()) {
        expect_ok(win.wait(static_cast<signal_id>(peer.index()), round, soon(), peer), "wait");
        expect_equal(win.template local<std::uint64_t>()[peer.index()],
                     pattern(peer, comm.rank(), round), "stored by rank ", peer.index());
      }
      comm.barrier();
      for (const rank_id peer : comm.ranks())
        expect_equal(win.template peer<std::uint64_t>(peer)[0], pattern(rank_id{0}, peer, round),
                     "loaded from rank ", peer.index());
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

/// One signal in the part of one rank tells all ranks, of puts and stores to the memory of any of
/// them.
template <class Group>
void check_peer_signals(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    auto win = comm.make_window(comm.size() * 8, comm.size());
    const auto id_of = [](rank_id rank) { return static_cast<signal_id>(rank.index()); };
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const rank_id owner{round % comm.size()};
      for (const rank_id peer : comm.ranks())
        if (const auto word = pattern(comm.rank(), peer, round); round % 2 == 0)
          win.template peer<std::uint64_t>(peer)[comm.rank().index()] = word;
        else
          expect_ok(win.put(peer, comm.rank().index() * sizeof word, std::span{&word, 1}), "put");
      expect_ok(win.signal(owner, id_of(comm.rank()), round), "signal");
      for (const rank_id peer : comm.ranks()) {
        expect_ok(win.wait_at(owner, id_of(peer), round, soon(), peer), "wait_at");
        expect_equal(win.value_at(owner, id_of(peer)), round, "value_at");
        expect_equal(win.template local<std::uint64_t>()[peer.index()],
                     pattern(peer, comm.rank(), round), "stored by rank ", peer.index());
      }
      comm.barrier();
    }
    const rank_id nobody{comm.size()};
    const auto no_signal = static_cast<signal_id>(comm.size());
    const deadline gone = deadline::after(std::chrono::seconds{0});
    expect_code(win.wait_at(nobody, signal_id{0}, 1, gone), errc::out_of_range, "no such rank");
    expect_code(win.wait_at(rank_id{0}, no_signal, 1, gone), errc::out_of_range, "no such signal");
    expect_code(win.wait_at(rank_id{0}, signal_id{0}, 1, gone, nobody), errc::out_of_range,
                "no such rank awaited");
    expect_code(win.wait_at(rank_id{0}, signal_id{0}, 21, gone), errc::timed_out, "not raised");
    expect_equal(win.value_at(nobody, signal_id{0}), 0U, "no such rank");
    expect_equal(win.value_at(rank_id{0}, no_signal), 0U, "no such signal");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace conformance

/// Defines the test cases that windows of all kinds of groups pass, for these kinds.
#define PEERBUS_TEST_WINDOWS(...)                                                                 \
  TEST_CASE_TEMPLATE("a fresh window is zero", Group, __VA_ARGS__) {                              \
    for (const std::size_t n : test::sizes_for<Group>())                                          \
      conformance::check_fresh_windows<Group>(n);                                                 \
  }                                                                                               \
  TEST_CASE_TEMPLATE("put, signal, put_signal and wait among all ranks", Group, __VA_ARGS__) {    \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_all_to_all<Group>(n); \
  }                                                                                               \
  TEST_CASE_TEMPLATE("get", Group, __VA_ARGS__) {                                                 \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_get<Group>(n);        \
  }                                                                                               \
  TEST_CASE_TEMPLATE("what does not exist is refused before a byte is written", Group,            \
                     __VA_ARGS__) {                                                               \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_ranges<Group>(n);     \
  }                                                                                               \
  TEST_CASE_TEMPLATE("memory outside windows, as the capabilities say", Group, __VA_ARGS__) {     \
    for (const std::size_t n : test::sizes_for<Group>())                                          \
      conformance::check_foreign_memory<Group>(n);                                                \
  }                                                                                               \
  TEST_CASE_TEMPLATE("signals hold 64 bits and never fall", Group, __VA_ARGS__) {                 \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_signals<Group>(n);    \
  }                                                                                               \
  TEST_CASE_TEMPLATE("short waits learn of a rank that left", Group, __VA_ARGS__) {               \
    for (const std::size_t n : {2U, 3U, 5U}) conformance::check_short_waits<Group>(n);            \
  }                                                                                               \
  TEST_CASE_TEMPLATE("a signal comes after its puts, and signals in order", Group, __VA_ARGS__) { \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_stream<Group>(n);     \
  }                                                                                               \
  TEST_CASE_TEMPLATE("a barrier orders what came before it", Group, __VA_ARGS__) {                \
    for (const std::size_t n : test::sizes_for<Group>())                                          \
      conformance::check_barrier<Group>(n, test::repetitions(300));                               \
  }                                                                                               \
  TEST_CASE_TEMPLATE("fetch_add", Group, __VA_ARGS__) {                                           \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_fetch_add<Group>(n);  \
  }                                                                                               \
  TEST_CASE_TEMPLATE("windows are independent", Group, __VA_ARGS__) {                             \
    for (const std::size_t n : test::sizes_for<Group>())                                          \
      conformance::check_many_windows<Group>(n);                                                  \
  }

/// Defines those in which a rank loads and stores in the memory of its peers.
#define PEERBUS_TEST_DIRECT_WINDOWS(...)                                                           \
  TEST_CASE_TEMPLATE("peer memory loads and stores", Group, __VA_ARGS__) {                         \
    for (const std::size_t n : test::sizes_for<Group>()) conformance::check_peer_memory<Group>(n); \
  }                                                                                                \
  TEST_CASE_TEMPLATE("one signal tells all ranks", Group, __VA_ARGS__) {                           \
    for (const std::size_t n : test::sizes_for<Group>())                                           \
      conformance::check_peer_signals<Group>(n);                                                   \
  }
