// SPDX-License-Identifier: MIT
#include "aggregated.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rank_times.hpp"
#include "rank_traffic.hpp"
#include "sampled_ranks.hpp"
#include "visit_order.hpp"

namespace ep_predict {

namespace {

using peerbus::simulated_level;
using peerbus::simulated_platform;

/// When the messages of a sample begin to leave, by the position of their receiver: [peers].
struct departures {
  std::vector<double> puts;  ///< the first put to this peer, or when one would leave
  std::vector<double> signals;
};

/// The counts that a rank sends with rows in slots. They leave in the order of ranks.
struct sent_counts {
  std::size_t receiver;
  double start;
};

class model {
 public:
  model(const load& batch, const work& own, const simulated_platform& platform,
        std::size_t samples);

  [[nodiscard]] std::vector<double> dispatch();
  [[nodiscard]] std::vector<double> combine();
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_ / samples_.count(); }
  [[nodiscard]] std::uint64_t messages() const noexcept { return messages_ / samples_.count(); }
  [[nodiscard]] std::size_t window_bytes() const noexcept { return sizes_.map.total; }

 private:
  /// A peer as a sampled rank receives from it.
  struct source {
    std::size_t rank;
    std::size_t sample;    ///< that stands for it
    std::size_t position;  ///< of the receiver in its order of visits
  };

  [[nodiscard]] std::size_t peers() const noexcept { return batch_.ranks - 1; }
  [[nodiscard]] const simulated_level& level(std::size_t a, std::size_t b) const noexcept {
    return platform_.levels[platform_.shared_level(a, b)];
  }
  /// Returns the peer that sampled rank `rank` visits at `position`.
  [[nodiscard]] source source_at(std::size_t rank, std::size_t position) const noexcept {
    const std::size_t peer = order_.peer(rank, position);
    return {peer, samples_.stand_in(peer, rank), order_.position(peer, rank)};
  }
  /// Sends each peer the puts that `messages(position, send)` passes to `send`, then a signal.
  template <class Messages>
  departures send_all(sender& from, std::size_t rank, Messages&& messages) const;
  /// Has `to` receive the puts that `messages(position, peer, expect)` passes to `expect`, and the
  /// signals of all peers.
  template <class Messages>
  void receive_all(receiver& to, std::size_t rank, const std::vector<departures>& sent,
                   Messages&& messages) const;
  /// Waits for the signals of all peers, one after the other.
  void await_all(sender& rank, const receiver& signals) const;
  void exchange_counts(std::vector<sender>& ranks, std::vector<receiver>& receivers) const;
  [[nodiscard]] std::vector<sent_counts> send_counts_in_slots(sender& from,
                                                              std::size_t sample) const;
  void note_sent(const std::vector<sender>& ranks) noexcept;

  const load& batch_;
  const work& own_;
  const simulated_platform& platform_;
  message_sizes sizes_;
  visit_order order_;
  sampled_ranks samples_;
  std::vector<rank_traffic> traffic_;  ///< [samples]
  std::uint64_t bytes_ = 0;
  std::uint64_t messages_ = 0;
};

/// Returns the largest group by which the places of ranks differ.
std::size_t largest_group(const load& batch, const simulated_platform& platform) {
  std::size_t largest = 1;
  for (const simulated_level& level : platform.levels)
    if (level.ranks < batch.ranks) largest = std::max(largest, level.ranks);
  return largest;
}

model::model(const load& batch, const work& own, const simulated_platform& platform,
             std::size_t samples)
    : batch_{batch},
      own_{own},
      platform_{platform},
      sizes_{batch},
      order_{batch.ranks, platform},
      samples_{batch.ranks, samples, largest_group(batch, platform)} {
  traffic_.reserve(samples);
  for (std::size_t i = 0; i < samples; ++i)
    traffic_.emplace_back(batch, sizes_, order_, samples_.rank(i));
}

template <class Messages>
departures model::send_all(sender& from, std::size_t rank, Messages&& messages) const {
  departures left{std::vector<double>(peers()), std::vector<double>(peers())};
  const auto& costs = platform_.costs;
  for (std::size_t position = 0; position < peers(); ++position) {
    const simulated_level& over = level(rank, order_.peer(rank, position));
    bool is_first = true;
    messages(position, [&](const put_message& message) {
      const double start = from.send(over, message, costs.put_ns * message.pieces);
      if (std::exchange(is_first, false)) left.puts[position] = start;
    });
    if (is_first) left.puts[position] = from.next(over, costs.put_ns);
  }
  for (std::size_t position = 0; position < peers(); ++position)
    left.signals[position] =
        from.send(level(rank, order_.peer(rank, position)), signal_message, costs.signal_ns);
  return left;
}

template <class Messages>
void model::receive_all(receiver& to, std::size_t rank, const std::vector<departures>& sent,
                        Messages&& messages) const {
  for (std::size_t position = 0; position < peers(); ++position) {
    const source peer = source_at(rank, position);
    const simulated_level& over = level(rank, peer.rank);
    const departures& left = sent[peer.sample];
    double start = left.puts[peer.position];
    double busy_until = 0;
    messages(position, peer, [&](const put_message& message) {
      // The first message leaves at `start`, each other once its sender and its port are ready.
      if (busy_until != 0)
        start = std::max(busy_until, start + platform_.costs.put_ns * message.pieces);
      busy_until = start + span_of(over, message);
      to.expect(over, message, start);
    });
    to.expect_signal(over, position, left.signals[peer.position]);
  }
  to.receive();
}

void model::await_all(sender& rank, const receiver& signals) const {
  for (std::size_t position = 0; position < peers(); ++position) {
    rank.work(platform_.costs.poll_ns);
    rank.wait(signals.raised(position));
  }
}

void model::exchange_counts(std::vector<sender>& ranks, std::vector<receiver>& receivers) const {
  const put_message counts = sizes_.counts_for(0);  // The same for all.
  std::vector<departures> sent;
  sent.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    sent.push_back(
        send_all(ranks[i], samples_.rank(i), [&](std::size_t, auto&& send) { send(counts); }));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    receive_all(receivers[i], samples_.rank(i), sent,
                [&](std::size_t, const source&, auto&& expect) { expect(counts); });
    // A rank first looks whether all have come, and then waits for them from the first one on.
    std::size_t come = 0;
    for (bool has_come = true; has_come && come < peers();) {
      ranks[i].work(platform_.costs.poll_ns);
      has_come = receivers[i].raised(come) <= ranks[i].now();
      if (has_come) ++come;
    }
    if (come < peers()) await_all(ranks[i], receivers[i]);
  }
}

std::vector<sent_counts> model::send_counts_in_slots(sender& from, std::size_t sample) const {
  const std::size_t rank = samples_.rank(sample);
  std::vector<sent_counts> sent;
  for (std::size_t peer = 0; peer < batch_.ranks; ++peer)
    if (peer != rank && traffic_[sample].rows(order_.position(rank, peer)) != 0)
      sent.push_back(
          {peer, from.send(level(rank, peer), sizes_.counts_for(peer), platform_.costs.put_ns)});
  return sent;
}

std::vector<double> model::dispatch() {
  const std::size_t ports = platform_.ports.size();
  std::vector<sender> ranks(samples_.count(), sender{ports, own_.dispatch_ns});
  std::vector<receiver> receivers(samples_.count(), receiver{ports, peers()});
  std::vector<std::vector<sent_counts>> counts(samples_.count());
  if (!sizes_.has_slots && peers() != 0) exchange_counts(ranks, receivers);
  std::vector<departures> sent;
  sent.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (sizes_.has_slots) counts[i] = send_counts_in_slots(ranks[i], i);
    ranks[i].work(platform_.costs.token_ns * static_cast<double>(batch_.tokens));
    sent.push_back(send_all(ranks[i], samples_.rank(i), [&](std::size_t position, auto&& send) {
      for (const put_message& message : traffic_[i].messages(position)) send(message);
    }));
  }
  std::vector<double> times;
  times.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t rank = samples_.rank(i);
    receive_all(receivers[i], rank, sent, [&](std::size_t, const source& peer, auto&& expect) {
      for (const put_message& message : traffic_[peer.sample].messages(peer.position))
        expect(message);
      const auto& early = counts[peer.sample];
      if (early.empty() || traffic_[peer.sample].rows(peer.position) == 0) return;
      const auto at = std::ranges::lower_bound(early, rank, {}, &sent_counts::receiver);
      receivers[i].expect(level(rank, peer.rank), sizes_.counts_for(rank),
                          at == early.end() ? early.back().start : at->start);
    });
    await_all(ranks[i], receivers[i]);
    receivers[i] = {ports, 0};  // Gives up its memory.
    times.push_back(ranks[i].now() / 1000);
  }
  note_sent(ranks);
  return times;
}

std::vector<double> model::combine() {
  const std::size_t ports = platform_.ports.size();
  std::vector<sender> ranks(samples_.count(), sender{ports, own_.combine_ns});
  std::vector<departures> sent;
  sent.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    sent.push_back(send_all(ranks[i], samples_.rank(i), [&](std::size_t position, auto&& send) {
      const source home = source_at(samples_.rank(i), position);
      sizes_.for_each_output(traffic_[home.sample].rows(home.position), send);
    }));
  const double sums = own_.sum_ns * static_cast<double>(batch_.tokens * batch_.top_k);
  std::vector<double> times;
  times.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    receiver outputs{ports, peers()};
    receive_all(outputs, samples_.rank(i), sent,
                [&](std::size_t position, const source&, auto&& expect) {
                  sizes_.for_each_output(traffic_[i].rows(position), expect);
                });
    await_all(ranks[i], outputs);
    ranks[i].work(sums);
    times.push_back(ranks[i].now() / 1000);
  }
  note_sent(ranks);
  return times;
}

void model::note_sent(const std::vector<sender>& ranks) noexcept {
  for (const sender& rank : ranks) {
    bytes_ += rank.bytes();
    messages_ += rank.messages();
  }
}

/// Refuses what the model does not have.
void check(const load& batch, const simulated_platform& platform, std::size_t samples) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument{what + " in the aggregated model"};
  };
  if (const auto found = complaint_about(batch); !found.empty()) throw std::invalid_argument{found};
  const arrival_spread& spread = batch.arrival;
  if (spread.skew_us != 0) refuse("skew_us is " + std::to_string(spread.skew_us) + ", expected 0");
  if (spread.straggler_share != 0)
    refuse("straggler_share is " + std::to_string(spread.straggler_share) + ", expected 0");
  for (const peerbus::simulated_port& port : platform.ports)
    if (port.ranks != 1)
      refuse("port '" + port.name + "': ranks is " + std::to_string(port.ranks) + ", expected 1");
  if (platform.near_levels != 0)
    refuse("near_levels is " + std::to_string(platform.near_levels) + ", expected 0");
  if (samples != batch.ranks && batch.experts % batch.ranks != 0)
    throw std::invalid_argument{"experts is " + std::to_string(batch.experts) +
                                ", expected a multiple of ranks, " + std::to_string(batch.ranks) +
                                ": sampled ranks stand for ranks with equally many experts"};
}

}  // namespace

std::size_t default_samples(std::size_t ranks) noexcept {
  constexpr std::size_t pairs = 4'000'000;
  return std::clamp<std::size_t>(pairs / ranks, 1, ranks);
}

prediction predict_aggregated(const load& batch, const work& own,
                              const simulated_platform& platform, std::size_t samples) {
  if (samples == 0) samples = default_samples(batch.ranks);
  samples = std::min(samples, batch.ranks);
  check(batch, platform, samples);
  model computed{batch, own, platform, samples};
  prediction found;
  found.dispatch = summary_of({computed.dispatch()});
  found.combine = summary_of({computed.combine()});
  found.bytes = computed.bytes();
  found.messages = computed.messages();
  found.window_bytes = computed.window_bytes();
  return found;
}

flag_words dispatch_flags(const load& batch, const simulated_platform& platform) {
  const std::size_t phases = message_sizes{batch}.has_slots ? 1 : 2;
  flag_words flags;
  flags.words = phases * (batch.ranks - 1);
  flags.bytes = flags.words * signal_message.bytes;
  flags.us =
      static_cast<double>(flags.words) * (platform.costs.signal_ns + platform.costs.poll_ns) / 1000;
  return flags;
}

}  // namespace ep_predict
