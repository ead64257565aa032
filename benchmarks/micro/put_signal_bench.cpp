// SPDX-License-Identifier: MIT
//
// put_signal from one core to another and back: half a round trip, beside the same by plain stores.
// With read:0 the receiver looks at the signal only, until the block is over; the reference for 8
// bytes is then the bare cache line that carries its number. Otherwise it is a memcpy and a flag,
// and with read:1 both receivers look at the payload's first and last word.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "common/raw_ping_pong.hpp"
#include "micro/blocks.hpp"
#include "micro/group.hpp"

namespace {

using peerbus::rank_id;

/// Messages whose first and last word are their number.
class message {
 public:
  explicit message(std::size_t bytes) : words_(bytes / sizeof(std::uint64_t)) {}

  [[nodiscard]] std::span<const std::uint64_t> numbered(std::uint64_t number) noexcept {
    words_.front() = number;
    words_.back() = number;
    return words_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }
  /// Whether the message at `arrived` has this number.
  [[nodiscard]] bool is(const std::byte* arrived, std::uint64_t number) const noexcept {
    std::array<std::uint64_t, 2> seen{};
    std::memcpy(&seen[0], arrived, sizeof seen[0]);
    std::memcpy(&seen[1], arrived + bytes() - sizeof seen[1], sizeof seen[1]);
    return seen[0] == number && seen[1] == number;
  }

 private:
  std::vector<std::uint64_t> words_;
};

template <class Transport>
class side {
 public:
  side(peerbus::communicator<Transport>& comm, std::size_t bytes, bool read, bool crowded,
       micro::found& result)
      : first_{comm.rank().index() == 0},
        peer_{1 - comm.rank().index()},
        read_{read},
        payload_at_{places * bench::raw_ping_pong::mailbox_bytes(bytes)},
        window_{comm.make_window(payload_at_ + bytes, places)},
        epochs_(places),
        message_{bytes},
        result_{&result} {
    for (std::size_t place = 0; place < places; ++place) {
      const std::size_t at = place * bench::raw_ping_pong::mailbox_bytes(bytes);
      raw_.emplace_back(window_.local().data() + at, window_.peer(peer_).data() + at, crowded);
    }
  }

  void plain(std::size_t rounds) {
    bench::raw_ping_pong& raw = raw_[place_];
    if (!read_ && message_.bytes() == sizeof(std::uint64_t))
      raw.play(first_, rounds);
    else
      raw.play(
          first_, rounds,
          [&](std::uint64_t epoch) { return std::as_bytes(message_.numbered(epoch)); },
          [&](const std::byte* arrived, std::uint64_t epoch) {
            if (read_) look(arrived, epoch);
          });
  }

  void put_signal(std::size_t rounds) {
    // One for the block: the clock is not part of what is measured.
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const auto id = static_cast<peerbus::signal_id>(place_);
    std::uint64_t& epoch = epochs_[place_];
    const auto send = [&] {
      peerbus::check(window_.put_signal(peer_, payload_at_, message_.numbered(epoch), id, epoch),
                     "put_signal");
    };
    const std::byte* const arrived = window_.local().data() + payload_at_;
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch;
      if (first_) send();
      peerbus::check(window_.wait(id, epoch, until, peer_), "wait");
      if (read_) look(arrived, epoch);
      if (!first_) send();
    }
    look(arrived, epoch);
    place_ = (place_ + 1) % places;
  }

 private:
  static constexpr std::size_t places = 16;  // See raw_ping_pong for why there are several.

  void look(const std::byte* arrived, std::uint64_t epoch) noexcept {
    if (!message_.is(arrived, epoch)) result_->payload_right = false;
  }

  bool first_;
  rank_id peer_;
  bool read_;
  std::size_t payload_at_;
  peerbus::window<Transport> window_;
  std::vector<bench::raw_ping_pong> raw_;
  std::vector<std::uint64_t> epochs_;
  std::size_t place_ = 0;
  message message_;
  micro::found* result_;
};

template <class Transport>
void put_signal(benchmark::State& state, std::size_t bytes, bool read) {
  // Before the ranks are pinned, after which each of them knows of one core only.
  const bool crowded = micro::crowded(2);
  const auto result = micro::run_group<Transport>(
      state, 2,
      [&](peerbus::communicator<Transport>& comm, std::size_t operations, micro::found& found) {
        side<Transport> here{comm, bytes, read, crowded, found};
        micro::found unused;
        micro::alternate(
            operations, 2, comm.rank().index() == 0 ? found : unused,
            [&](std::size_t rounds) { here.plain(rounds); },
            [&](std::size_t rounds) { here.put_signal(rounds); });
      });
  micro::compare(state, "raw_ns", result);
}

template <class Transport>
void add(const std::string& transport) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{7680}})
    for (const bool read : {false, true})
      benchmark::RegisterBenchmark(("put_signal_one_way/" + transport + "/bytes:" +
                                    std::to_string(bytes) + "/read:" + (read ? "1" : "0"))
                                       .c_str(),
                                   put_signal<Transport>, bytes, read)
          ->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  add<peerbus::unified_bus>("unified_bus");
  add<peerbus::loopback>("loopback");
  return true;
}();

}  // namespace
