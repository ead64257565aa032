// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <peerbus/peerbus.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "balance.hpp"
#include "model.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "statistics.hpp"

namespace moe_text {

/// The number of words that a rank takes in each round. Rounds deal the text to the ranks in turn.
inline constexpr std::size_t words_per_dispatch = 16;

/// One rank's part of the work: its share of the words and its share of the experts.
template <class Codec>
class worker {
 public:
  worker(peerbus::communicator<peerbus::any_transport>& comm, const model& m, const options& given,
         const std::vector<std::string>& words)
      : comm_{comm},
        model_{m},
        given_{given},
        words_{words},
        moe_{comm,
             config_of(given,
                       given.balance == 0 ? std::vector<std::uint32_t>{} : dealt_places(given)),
             Codec{}},
        load_{given, moe_.placement()},
        rows_of_expert_(given.experts),
        decoded_(given.hidden) {}

  /// Runs all rounds. Every rank takes part in each round, at the end without any tokens.
  void work() {
    const std::size_t words_per_round = words_per_dispatch * comm_.size();
    const std::size_t rounds =
        std::max<std::size_t>(1, (words_.size() + words_per_round - 1) / words_per_round);
    for (std::size_t round = 0; round < rounds; ++round) {
      show_progress(round, rounds);
      deal(round * words_per_round + comm_.rank().index() * words_per_dispatch);
      travel();
      check();
      if (given_.balance != 0 && 2 * (round + 1) == rounds + rounds % 2) balance();
    }
    show_progress(rounds, rounds);
  }

  [[nodiscard]] rank_statistics statistics() const {
    rank_statistics result = statistics_;
    result.dispatch = duration_summary::of(dispatch_us_);
    result.combine = duration_summary::of(combine_us_);
    return result;
  }
  /// Returns the rows that this rank got for each expert: [experts].
  [[nodiscard]] std::span<const std::uint64_t> rows_of_expert() const { return rows_of_expert_; }

  /// Returns the load of all ranks, the same on all.
  [[nodiscard]] const balancer& load() const { return load_; }

 private:
  static peerbus::moe::exchange_config config_of(const options& given,
                                                 std::span<const std::uint32_t> places) {
    return {.experts = given.experts,
            .hidden = given.hidden,
            .top_k = given.top_k,
            .max_tokens = words_per_dispatch,
            .physical_to_logical = places};
  }

  /// Gives the busiest experts several places. All ranks plan the same, as they counted the same.
  void balance() {
    moe_.install_experts(load_.plan(), {.policy = peerbus::moe::replica_policy::round_robin});
    load_.begin_second_half(moe_.placement());
  }

  void deal(std::size_t first_word) {
    first_ = std::min(first_word, words_.size());
    count_ = std::min(words_per_dispatch, words_.size() - first_);
    tokens_.resize(count_ * given_.hidden);
    outputs_.assign(count_ * given_.hidden, peerbus::bf16{});
    ids_.resize(count_ * given_.top_k);
    weights_.resize(count_ * given_.top_k);
    for (std::size_t t = 0; t < count_; ++t) {
      model_.embed(words_[first_ + t], first_ + t, row(tokens_, t));
      model_.route(row(tokens_, t), slots(ids_, t), slots(weights_, t));
    }
  }

  void travel() {
    comm_.barrier();  // Excludes from the measured time the wait for ranks that come late.
    const auto start = clock::now();
    auto received = moe_.dispatch(tokens_, {ids_, weights_});
    dispatch_us_.push_back(microseconds_since(start));

    for (auto& expert : received.experts()) {
      if (expert.id() == peerbus::moe::vacant) continue;  // A place for a replica.
      rows_of_expert_[expert.id()] += expert.count();
      for (std::size_t i = 0; i < expert.count(); ++i) {
        expert.decode(i, decoded_);
        apply_expert(model_, expert.id(), decoded_, expert.output(i));
      }
    }
    statistics_.tokens += count_;
    statistics_.rows += received.rows();
    rows_of_places_.resize(moe_.placement().physical_experts());
    moe_.count_rows(received.ticket(), rows_of_places_);
    load_.add(rows_of_places_);

    comm_.barrier();
    const auto ready = clock::now();
    moe_.combine(received, outputs_);
    combine_us_.push_back(microseconds_since(ready));
  }

  void check() {
    for (std::size_t t = 0; t < count_; ++t) {
      const auto expected =
          expect(model_, given_.codec, row(tokens_, t), slots(ids_, t), slots(weights_, t));
      std::vector<double> output;
      for (const peerbus::bf16 x : row(outputs_, t)) output.push_back(static_cast<float>(x));
      const verdict found = judge(output, expected);
      if (!found.is_right() && statistics_.wrong_rows++ == 0)
        statistics_.first_wrong_word = first_ + t;
      if (judge(expected.without_heaviest, expected).is_right()) ++statistics_.missed_faults;
      statistics_.largest_error = std::max(statistics_.largest_error, found.error);
      statistics_.largest_relative_error =
          std::max(statistics_.largest_relative_error, found.relative_error);
      statistics_.largest_share_of_bound =
          std::max(statistics_.largest_share_of_bound, found.share_of_bound);
    }
  }

  void show_progress(std::size_t done, std::size_t rounds) const {
    constexpr std::size_t short_run = 50;
    if (comm_.rank().index() != 0 || rounds < short_run || ::isatty(STDERR_FILENO) == 0) return;
    std::fprintf(stderr, "\rround %zu of %zu%s", done, rounds, done == rounds ? "\r\033[K" : "");
  }

  using clock = std::chrono::steady_clock;
  static double microseconds_since(clock::time_point start) {
    return std::chrono::duration<double, std::micro>{clock::now() - start}.count();
  }
  template <class T>
  std::span<T> row(std::vector<T>& rows, std::size_t t) const {
    return std::span{rows}.subspan(t * given_.hidden, given_.hidden);
  }
  template <class T>
  std::span<T> slots(std::vector<T>& values, std::size_t t) const {
    return std::span{values}.subspan(t * given_.top_k, given_.top_k);
  }

  peerbus::communicator<peerbus::any_transport>& comm_;
  const model& model_;
  const options& given_;
  const std::vector<std::string>& words_;
  peerbus::moe::exchange<peerbus::any_transport, Codec> moe_;
  balancer load_;
  std::vector<std::uint32_t> rows_of_places_;
  std::vector<std::uint64_t> rows_of_expert_;
  std::vector<float> decoded_;
  rank_statistics statistics_;
  std::vector<double> dispatch_us_;
  std::vector<double> combine_us_;

  std::size_t first_ = 0;  ///< this round's words
  std::size_t count_ = 0;
  std::vector<peerbus::bf16> tokens_;
  std::vector<peerbus::bf16> outputs_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace moe_text
