// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/placed.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/simulated/links.hpp>
#include <peerbus/transport/simulated/message.hpp>
#include <peerbus/transport/simulated/options.hpp>
#include <peerbus/transport/simulated/pair.hpp>
#include <peerbus/transport/simulated/ports.hpp>
#include <peerbus/transport/simulated/scheduler.hpp>
#include <peerbus/transport/simulated/window.hpp>

namespace peerbus::detail {

/// The messages of a simulation. Carries them through ports or links, and acts for them at either
/// end.
class network final : public scheduler::event_target {
 public:
  network(scheduler& clock, const simulation_options& options, std::size_t size)
      : clock_{clock},
        options_{options},
        ports_{options.platform, size},
        random_{options.seed},
        pairs_(size),
        undelivered_(size, 0),
        unanswered_(size, 0) {}

  /// Returns the number of a message to fill in and `send`, with a cargo if it `has_cargo`.
  [[nodiscard]] std::uint32_t fresh(bool has_cargo) { return pool_.fresh(has_cargo); }
  [[nodiscard]] sim_message& operator[](std::uint32_t number) noexcept { return pool_[number]; }
  /// Sends message `number` at the present time.
  void send(std::uint32_t number);
  /// Sends a message for the time that rows take: `rows` rows of `bytes` bytes in all. For `put`,
  /// `from` has stored them to `to`, where they are already. For `get`, `from` loads them from
  /// `to`.
  void send_rows(message_kind kind, std::uint32_t from, std::uint32_t to, std::size_t rows,
                 std::size_t bytes);

  /// Returns whether all puts from `from` to `to` were read at their sources, and its reads from
  /// `to` are complete.
  [[nodiscard]] bool is_flushed(std::uint32_t from, std::uint32_t to) noexcept {
    return pair_of(from, to).outstanding() == 0;
  }
  /// Returns whether all messages from `from` are delivered.
  [[nodiscard]] bool is_quiet(std::uint32_t from) const noexcept { return undelivered_[from] == 0; }

  /// Returns whether all answers to `from` have arrived.
  [[nodiscard]] bool is_answered(std::uint32_t from) const noexcept {
    return unanswered_[from] == 0;
  }
  /// Returns whether all messages from `from` are delivered, and all answers to it have arrived.
  [[nodiscard]] bool is_over(std::uint32_t from) const noexcept {
    return is_quiet(from) && is_answered(from);
  }

  inline void happen(std::uint32_t what, std::uint32_t number) override;
  [[nodiscard]] inline virtual_time pass_time(virtual_time until) override;
  void prepare(std::span<const std::uint32_t> numbers) noexcept override {
    for (const std::uint32_t number : numbers) __builtin_prefetch(&pool_[number]);
    for (const std::uint32_t number : numbers) {
      const sim_message& soon = pool_[number];
      __builtin_prefetch(&pair_of(soon.from, soon.to));
      __builtin_prefetch(soon.word);
    }
  }

  /// Returns the number of bytes that ranks have sent, payload that is not carried included.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }
  /// Returns the number of messages that ranks have sent.
  [[nodiscard]] std::uint64_t messages_sent() const noexcept { return messages_sent_; }

 private:
  enum stage : std::uint32_t { departs, arrives, is_delivered };

  [[nodiscard]] sim_pair& pair_of(std::uint32_t from, std::uint32_t to) {
    auto& of_sender = pairs_[from];
    if (of_sender.empty()) of_sender.resize(pairs_.size());
    return of_sender[to];
  }
  [[nodiscard]] virtual_time delay() {
    const virtual_time most = picoseconds(static_cast<double>(options_.jitter.count()));
    return most == 0 ? 0 : static_cast<virtual_time>(random_() % static_cast<std::uint64_t>(most));
  }
  [[nodiscard]] bool is_carried(const put_piece& piece) const noexcept {
    return piece.source.size() <= options_.most_carried_bytes;
  }
  void leave(std::uint32_t number);
  void enter(std::uint32_t number);
  void read_sources(sim_message& leaving);
  void deliver(std::uint32_t number);
  void deliver_put(std::uint32_t number);
  void answer(std::uint32_t number, message_kind kind, std::size_t bytes);

  scheduler& clock_;
  const simulation_options& options_;
  port_times ports_;
  std::mt19937_64 random_;
  std::vector<std::vector<sim_pair>> pairs_;  ///< indexed by [from][to]; a row is empty until it is
                                              ///< used
  std::vector<std::uint32_t> undelivered_;    ///< undelivered messages, indexed by [from]
  std::vector<std::uint32_t> unanswered_;     ///< indexed by [from]; counts gets and additions
  message_pool pool_;
  std::vector<std::uint32_t> arrived_;  ///< messages that the links have just carried
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t messages_sent_ = 0;
};

inline void network::send(std::uint32_t number) {
  sim_message& sent = pool_[number];
  sim_pair& pair = pair_of(sent.from, sent.to);
  sent.epoch = pair.add(sent.is_put(), sent.has_signal);
  if (sent.cargo) pair.note_sent();
  ++undelivered_[sent.from];
  if (sent.kind != message_kind::put) ++unanswered_[sent.from];
  ++messages_sent_;
  bytes_sent_ += sent.bytes();
  clock_.add(clock_.time() + delay(), departs, number);
}

inline void network::send_rows(message_kind kind, std::uint32_t from, std::uint32_t to,
                               std::size_t rows, std::size_t bytes) {
  const std::uint32_t number = fresh(true);
  sim_message& sent = pool_[number];
  sent.kind = kind;
  sent.from = from;
  sent.to = to;
  sent.cargo->requests = rows;
  (kind == message_kind::get ? sent.cargo->asked : sent.cargo->bytes) = bytes;
  send(number);
}

inline void network::happen(std::uint32_t what, std::uint32_t number) {
  switch (static_cast<stage>(what)) {
    case departs: return leave(number);
    case arrives: return enter(number);
    case is_delivered: return deliver(number);
  }
}

inline void network::leave(std::uint32_t number) {
  const sim_message& left = pool_[number];
  const virtual_time now = clock_.time();
  clock_.add(options_.links == nullptr
                 ? ports_.leave(left.from, left.to, left.requests(), left.bytes(), now)
                 : ports_.pass(left.from, left.to, now),
             arrives, number);
}

inline void network::enter(std::uint32_t number) {
  sim_message& come = pool_[number];
  read_sources(come);
  const virtual_time now = clock_.time();
  if (options_.links == nullptr || come.from == come.to)
    return clock_.add(
        ports_.enter(come.from, come.to, come.requests(), come.bytes(), now) + delay(),
        is_delivered, number);
  clock_.expect();
  options_.links->start({number, come.from, come.to, come.requests(), come.bytes()},
                        simulated_links::time{now});
}

inline virtual_time network::pass_time(virtual_time until) {
  arrived_.clear();
  const auto now = options_.links->advance(simulated_links::time{until}, arrived_).count();
  for (const std::uint32_t number : arrived_)
    clock_.add_expected(std::max(now, clock_.time()) + delay(), is_delivered, number);
  return now;
}

inline void network::read_sources(sim_message& leaving) {
  // A sender may write to sources once it knows that they were read, and that is late: when the
  // first byte arrives.
  if (!leaving.is_put()) return;
  for (const put_piece& piece : leaving.cargo->pieces)
    if (is_carried(piece))
      leaving.cargo->carried.insert(leaving.cargo->carried.end(), piece.source.begin(),
                                    piece.source.end());
  sim_pair& pair = pair_of(leaving.from, leaving.to);
  pair.note_done();
  if (pair.outstanding() == 0) clock_.poke_rank(leaving.from);
}

inline void network::deliver(std::uint32_t number) {
  sim_message& here = pool_[number];
  switch (here.kind) {
    case message_kind::put: return deliver_put(number);
    case message_kind::get: {
      // A get that only takes the time of loads has no source.
      for (const put_piece& piece : here.cargo->pieces)
        if (is_carried(piece)) here.cargo->carried.assign(piece.source.begin(), piece.source.end());
      return answer(number, message_kind::got, here.cargo->asked);
    }
    case message_kind::add: {
      std::uint64_t& word = *placed<std::uint64_t>(here.cargo->target);
      *here.cargo->result = std::exchange(word, word + here.value);
      return answer(number, message_kind::added, sizeof word);
    }
    case message_kind::got:
      std::ranges::copy(here.cargo->carried, here.cargo->target);
      [[fallthrough]];
    case message_kind::added:
      if (here.cargo->done != nullptr) *here.cargo->done = true;
      pair_of(here.to, here.from).note_done();
      --unanswered_[here.to];
      clock_.poke_rank(here.to);
      return pool_.release(number);
  }
}

inline void network::deliver_put(std::uint32_t number) {
  sim_message& here = pool_[number];
  if (here.cargo) {
    const std::byte* next = here.cargo->carried.data();
    for (const put_piece& piece : here.cargo->pieces) {
      if (!is_carried(piece)) continue;
      std::copy_n(next, piece.source.size(), here.cargo->target + piece.offset);
      next += piece.source.size();
    }
  }
  const std::uint32_t from = here.from;
  const std::uint32_t to = here.to;
  sim_pair& pair = pair_of(from, to);
  if (here.is_put()) pair.deliver_put(here.epoch);
  if (here.has_signal)
    pair.deliver_signal(here.epoch, number);
  else
    pool_.release(number);
  bool is_raised = false;
  pair.raise_due([&](std::uint32_t due) {
    std::uint64_t& word = *pool_[due].word;
    word = std::max(word, pool_[due].value);
    pool_.release(due);
    is_raised = true;
  });
  --undelivered_[from];
  // A rank waits for signals, and for all that it has sent.
  if (is_raised) clock_.poke_rank(to);
  if (undelivered_[from] == 0) clock_.poke_rank(from);
}

inline void network::answer(std::uint32_t number, message_kind kind, std::size_t bytes) {
  sim_message& request = pool_[number];
  --undelivered_[request.from];
  request.kind = kind;
  request.cargo->bytes = bytes;
  bytes_sent_ += bytes;
  std::swap(request.from, request.to);
  clock_.add(clock_.time() + delay(), departs, number);
}

}  // namespace peerbus::detail
