// SPDX-License-Identifier: MIT
//
// put_signal from one core to another and back: half a round trip, in turns with the same by plain
// stores in the same window:
//   raw_ns        nothing but a flag (and the payload before it, if it is larger than one word), at
//                 which alone the receiver looks
//   copy_flag_ns  memcpy of the payload, then a flag; the receiver reads the payload's first and
//                 last word
//   seen_ns       put_signal; the receiver looks at the signal only: compare with raw_ns
//   read_ns       put_signal; the receiver reads the payload too: compare with copy_flag_ns
// signal_one_way is a signal without payload beside a flag.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>
#include <peerbus/window.hpp>

#include "micro/blocks.hpp"
#include "micro/group.hpp"
#include "support/numbered_message.hpp"
#include "support/raw_ping_pong.hpp"

namespace micro::put_signal_bench {
namespace {

using peerbus::rank_id;

enum class receiver { sees_signal, reads_payload };

template <class Transport>
class side {
 public:
  side(peerbus::communicator<Transport>& comm, std::size_t bytes, bool crowded,
       micro::found& result)
      : first_{comm.rank().index() == 0},
        peer_{1 - comm.rank().index()},
        mailbox_{bench::raw_ping_pong::mailbox_bytes(bytes)},
        window_{comm.make_window(3 * places * mailbox_, places)},
        epochs_(places),
        message_{bytes},
        result_{&result} {
    for (std::size_t place = 0; place < places; ++place) {
      const std::size_t at = place * mailbox_;
      raw_.emplace_back(window_.local().data() + at, window_.peer(peer_).data() + at, crowded);
    }
  }

  /// The flag's line alone.
  void flag(std::size_t rounds) { raw_[place_].play(first_, rounds); }

  void copy_and_flag(std::size_t rounds, receiver who) {
    raw_[place_].play(
        first_, rounds,
        [&](std::uint64_t epoch) { return std::as_bytes(message_.numbered(epoch)); },
        [&](const std::byte* arrived, std::uint64_t epoch) {
          if (who == receiver::reads_payload) look(arrived, epoch);
        });
  }

  void put_signal(std::size_t rounds, receiver who) {
    // One for each kind of receiver: the peer may be in its next block while this one is checked.
    const std::size_t at =
        (places + 2 * place_ + (who == receiver::reads_payload ? 1 : 0)) * mailbox_;
    const std::byte* const arrived = window_.local().data() + at;
    play(
        rounds,
        [&](peerbus::signal_id id, std::uint64_t epoch) {
          return window_.put_signal(peer_, at, message_.numbered(epoch), id, epoch);
        },
        [&](std::uint64_t epoch) {
          if (who == receiver::reads_payload) look(arrived, epoch);
        });
    if (!message_.is_all_of(arrived, epochs_[place_])) result_->payload_right = false;
  }

  void signal(std::size_t rounds) {
    play(
        rounds,
        [&](peerbus::signal_id id, std::uint64_t epoch) {
          return window_.signal(peer_, id, epoch);
        },
        [](std::uint64_t) {});
  }

  /// For the next blocks.
  void change_place() noexcept { place_ = (place_ + 1) % places; }

 private:
  static constexpr std::size_t places = 16;  // See raw_ping_pong for why there are several.

  template <class Send, class Look>
  void play(std::size_t rounds, Send&& send, Look&& see) {
    // One for the block: the clock is not part of what is measured.
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const auto id = static_cast<peerbus::signal_id>(place_);
    std::uint64_t& epoch = epochs_[place_];
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch;
      if (first_) peerbus::check(send(id, epoch), "sending");
      peerbus::check(window_.wait(id, epoch, until, peer_), "wait");
      see(epoch);
      if (!first_) peerbus::check(send(id, epoch), "sending");
    }
  }

  void look(const std::byte* arrived, std::uint64_t epoch) noexcept {
    if (!message_.is(arrived, epoch)) result_->payload_right = false;
  }

  bool first_;
  rank_id peer_;
  std::size_t mailbox_;
  peerbus::window<Transport> window_;
  std::vector<bench::raw_ping_pong> raw_;
  std::vector<std::uint64_t> epochs_;
  std::size_t place_ = 0;
  bench::numbered_message message_;
  micro::found* result_;
};

/// Two ranks, each with its side; `play(here, operations, found)` on both.
template <class Transport, class Play>
micro::found run_sides(benchmark::State& state, std::size_t bytes, Play play) {
  // Before the ranks are pinned, after which each of them knows of one core only.
  const bool crowded = micro::crowded(2);
  return micro::run_group<Transport>(
      state, 2,
      [&](peerbus::communicator<Transport>& comm, std::size_t operations, micro::found& found) {
        side<Transport> here{comm, bytes, crowded, found};
        play(here, operations, found);
      });
}

template <class Transport>
void put_signal(benchmark::State& state, std::size_t bytes) {
  const auto result = run_sides<Transport>(
      state, bytes, [&](auto& here, std::size_t operations, micro::found& found) {
        micro::alternate(
            operations, 2, found,
            [&](std::size_t rounds) {
              if (bytes == sizeof(std::uint64_t))
                here.flag(rounds);
              else
                here.copy_and_flag(rounds, receiver::sees_signal);
            },
            [&](std::size_t rounds) { here.copy_and_flag(rounds, receiver::reads_payload); },
            [&](std::size_t rounds) { here.put_signal(rounds, receiver::sees_signal); },
            [&](std::size_t rounds) {
              here.put_signal(rounds, receiver::reads_payload);
              here.change_place();
            });
      });
  const auto [raw, copy_flag, seen, read] = micro::medians_of<4>(result);
  state.counters["raw_ns"] = raw;
  state.counters["copy_flag_ns"] = copy_flag;
  state.counters["seen_ns"] = seen;
  state.counters["read_ns"] = read;
  state.counters["seen_per_raw"] = seen / raw;
  state.counters["read_per_copy_flag"] = read / copy_flag;
}

template <class Transport>
void signal(benchmark::State& state) {
  const auto result = run_sides<Transport>(
      state, sizeof(std::uint64_t), [](auto& here, std::size_t operations, micro::found& found) {
        micro::alternate(
            operations, 2, found, [&](std::size_t rounds) { here.flag(rounds); },
            [&](std::size_t rounds) {
              here.signal(rounds);
              here.change_place();
            });
      });
  micro::compare(state, "raw_ns", result);
}

template <class Transport>
void add(const std::string& transport) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{7680}})
    benchmark::RegisterBenchmark(
        ("put_signal_one_way/" + transport + "/bytes:" + std::to_string(bytes)).c_str(),
        put_signal<Transport>, bytes)
        ->UseManualTime();
  benchmark::RegisterBenchmark(("signal_one_way/" + transport).c_str(), signal<Transport>)
      ->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  add<peerbus::unified_bus>("unified_bus");
  add<peerbus::loopback>("loopback");
  return true;
}();

}  // namespace
}  // namespace micro::put_signal_bench
