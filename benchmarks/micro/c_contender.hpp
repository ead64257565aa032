// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "micro/batch.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro {

/// An exchange of int8 rows through the interface of C, with the batches and the clock of the
/// contenders of erased_bench. Its ranks meet by `job`.
class c_contender {
 public:
  c_contender(std::uint64_t rank, std::uint64_t ranks, const std::string& job, std::size_t experts,
              std::size_t count)
      : out_(count * hidden) {
    peerbus_place place{};
    place.struct_bytes = sizeof place;
    place.rank = rank;
    place.size = ranks;
    place.job = job.c_str();
    require(peerbus_comm_at(&place, nullptr, &comm_));
    peerbus_exchange_config config{};
    config.struct_bytes = sizeof config;
    config.codec = PEERBUS_INT8_PER_TOKEN;
    config.layout = PEERBUS_COMPACT;
    config.experts = experts;
    config.hidden = hidden;
    config.top_k = top_k;
    config.max_tokens = count;
    require(peerbus_exchange_create(comm_, &config, 0, &exchange_));
  }
  c_contender(const c_contender&) = delete;
  c_contender& operator=(const c_contender&) = delete;
  ~c_contender() {
    peerbus_exchange_destroy(&exchange_);
    static_cast<void>(peerbus_comm_destroy(&comm_));
  }

  void play(const batch& from) {
    received_ = {};
    received_.struct_bytes = sizeof received_;
    dispatch_ns_.push_back(timed([&] {
      peerbus_dispatch_args input{};
      input.struct_bytes = sizeof input;
      input.count = from.tokens.size() / hidden;
      input.tokens = from.tokens.data();
      input.experts = from.ids.data();
      input.weights = from.weights.data();
      return peerbus_dispatch(exchange_, &input, &received_);
    }));
    auto* const outputs = static_cast<peerbus::bf16*>(received_.outputs);
    for (std::uint64_t block = 0; block < received_.blocks; ++block) {
      const float sign = received_.expert_ids[block] % 2 == 0 ? 1.0F : 3.0F;
      for (std::uint64_t i = block * received_.ranks; i < (block + 1) * received_.ranks; ++i)
        for (peerbus::bf16& value :
             std::span{outputs + received_.first_rows[i] * hidden, received_.counts[i] * hidden})
          value = peerbus::bf16{sign};
    }
    combine_ns_.push_back(timed([&] {
      peerbus_combine_args output{};
      output.struct_bytes = sizeof output;
      output.count = from.tokens.size() / hidden;
      output.out = out_.data();
      return peerbus_combine(exchange_, received_.ticket, &output);
    }));
    both_ns_.push_back(dispatch_ns_.back() + combine_ns_.back());
  }

  /// Returns the latest sums.
  [[nodiscard]] std::span<const peerbus::bf16> out() const noexcept { return out_; }
  /// Returns the bytes of the rows that the latest dispatch brought.
  [[nodiscard]] std::span<const std::byte> rows() const noexcept {
    return {static_cast<const std::byte*>(received_.row_data), received_.end * received_.row_bytes};
  }
  [[nodiscard]] double dispatch_ns() const { return bench::median(dispatch_ns_); }
  [[nodiscard]] double combine_ns() const { return bench::median(combine_ns_); }
  [[nodiscard]] double both_ns() const { return bench::median(both_ns_); }

 private:
  static void require(peerbus_code code) {
    if (code != PEERBUS_OK) throw std::runtime_error{peerbus_last_error()};
  }

  template <class Operation>
  double timed(Operation&& operation) {
    require(peerbus_comm_barrier(comm_, 0));
    const auto start = bench::clock::now();
    const peerbus_code code = operation();
    const double took = bench::nanoseconds(bench::clock::now() - start);
    require(code);
    return took;
  }

  peerbus_comm* comm_ = nullptr;
  peerbus_exchange* exchange_ = nullptr;
  peerbus_received received_{};
  std::vector<peerbus::bf16> out_;
  std::vector<double> dispatch_ns_;
  std::vector<double> combine_ns_;
  std::vector<double> both_ns_;
};

}  // namespace micro
