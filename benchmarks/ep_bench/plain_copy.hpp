// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/row_stream.hpp>
#include <peerbus/moe/stores.hpp>

#include "ep_bench/check.hpp"
#include "ep_bench/measured_exchange.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"
#include "ep_bench/plain_floor.hpp"
#include "support/pages.hpp"

namespace ep_bench {

/// The least that any dispatch and combine must do, as a copy per row: the bytes of a dispatch,
/// encoded beforehand, written to where the exchange puts them, and the bytes of a combine read
/// from where it reads them, with a row written for each token that has some. Every address is
/// worked out beforehand. `rank` is whose bytes are copied, which need not be the rank that copies
/// them.
class plain_copy final : public plain_floor {
 public:
  plain_copy(const measured_exchange& moe, const options& chosen, const oracle& truth,
             std::size_t rank)
      : row_bytes_{moe.format().row_bytes},
        scale_bytes_{moe.format().scale_bytes},
        slot_bytes_{moe.map().slot_bytes},
        output_bytes_{moe.map().output_bytes()},
        rows_(truth.tokens_of(rank) * row_bytes_),
        scales_(truth.tokens_of(rank) * scale_bytes_),
        sink_(output_bytes_),
        results_(truth.tokens_of(rank) * output_bytes_),
        sent_{truth.rows_sent(rank)} {
    const payload content{chosen.seed, moe.format().of_tokens};
    std::vector<std::int8_t> codes(chosen.hidden);
    for (std::size_t t = 0; t < truth.tokens_of(rank); ++t) {
      const float unit = content.fill(rank, t, codes);
      moe.format().as_row(codes, unit, rows_.all().data() + t * row_bytes_,
                          scales_.data() + t * scale_bytes_);
    }
    const peerbus::moe::memory_map& map = moe.map();
    const auto part_of = [&](std::size_t r) { return moe.part_of(peerbus::rank_id{r}); };
    slots_.resize(sent_.size() * 2 * slot_bytes_);
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      const oracle::sent_row& sent = sent_[i];
      std::byte* const part = part_of(sent.rank);
      const auto at = [&](std::size_t offset, std::size_t bytes) {
        return part + offset + sent.row * bytes;
      };
      const bool home = chosen.outputs == "home";
      const std::byte* const output =
          home ? part_of(rank) + map.outputs + (sent.token * map.copies + sent.copy) * output_bytes_
               : at(map.outputs, output_bytes_);
      targets_.push_back({at(map.rows, row_bytes_),
                          at(map.scales, scale_bytes_),
                          at(map.origins, sizeof(peerbus::moe::wire_origin)),
                          at(map.experts, slot_bytes_),
                          at(map.weights, slot_bytes_),
                          output,
                          rows_.all().data() + sent.token * row_bytes_,
                          scales_.data() + sent.token * scale_bytes_,
                          slots_.data() + i * 2 * slot_bytes_,
                          {static_cast<std::uint32_t>(sent.token), static_cast<std::uint16_t>(rank),
                           static_cast<std::uint16_t>(sent.copy)},
                          i + 1 == sent_.size() || sent_[i + 1].token != sent.token});
      if (slot_bytes_ != 0)
        fill_slots(chosen, truth, rank, sent, slots_.data() + i * 2 * slot_bytes_);
    }
  }

  void recall() const noexcept override { rows_.recall(); }

  /// Copies the rows.
  void dispatch(store_kind stores) noexcept override { copy_rows(stores); }
  /// Reads the outputs, and writes the results.
  void combine(store_kind stores) noexcept override { copy_outputs(stores); }

  /// Overwrites what `dispatch` writes, to see that it does.
  void spoil() const noexcept {
    for (const target& to : targets_) {
      std::memset(to.row, 0xff, row_bytes_);
      std::memset(to.scale, 0xff, scale_bytes_);
      std::memset(to.origin, 0xff, sizeof to.from);
      std::memset(to.experts, 0xff, slot_bytes_);
      std::memset(to.weights, 0xff, slot_bytes_);
    }
  }
  /// Whether `combine` reads the right rows, on the rank whose bytes these are.
  [[nodiscard]] std::string check_outputs(any_checker& check) const {
    for (std::size_t i = 0; i < sent_.size(); ++i)
      if (auto wrong = check.output_of(sent_[i], targets_[i].output); !wrong.empty()) return wrong;
    return {};
  }
  /// Whether the last `combine` has written a result for each token with rows: its last row. The
  /// results are overwritten, to see the next one do so.
  [[nodiscard]] std::string check_results() noexcept {
    for (const target& from : targets_) {
      if (!from.is_last) continue;
      if (std::memcmp(result_of(from), from.output, output_bytes_) != 0)
        return "plain copy: a result is missing";
      std::memset(result_of(from), 0xff, output_bytes_);
    }
    return {};
  }

  /// How many rows there are.
  [[nodiscard]] std::size_t rows() const noexcept override { return sent_.size(); }

 private:
  struct target {
    std::byte* row;
    std::byte* scale;
    std::byte* origin;
    std::byte* experts;  ///< rank-major only, as `weights` and `from_slots`
    std::byte* weights;
    const std::byte* output;
    const std::byte* from_row;
    const std::byte* from_scale;
    const std::byte* from_slots;
    peerbus::moe::wire_origin from;
    bool is_last;  ///< of the rows of its token
  };

  [[nodiscard]] std::byte* result_of(const target& from) const noexcept {
    return results_.all().data() + from.from.token * output_bytes_;
  }

  static peerbus::moe::row_stream stream_of(store_kind stores) noexcept {
    return {{.rows = 1, .row_bytes = 1}, stores == store_kind::streaming ? 0U : 2U};
  }

  void copy_outputs(store_kind stores) noexcept {
    const auto stream = stream_of(stores);
    std::byte* const sink = sink_.all().data();
    for (const target& from : targets_) {
      std::memcpy(sink, from.output, output_bytes_);
      asm volatile("" : : "r"(sink) : "memory");  // The copy is wanted for itself.
      if (from.is_last) stream.copy(result_of(from), sink, output_bytes_);
    }
  }

  void copy_rows(store_kind stores) const noexcept {
    const auto stream = stream_of(stores);
    for (const target& to : targets_) {
      stream.copy(to.row, to.from_row, row_bytes_);
      if (scale_bytes_ != 0) std::memcpy(to.scale, to.from_scale, scale_bytes_);
      std::memcpy(to.origin, &to.from, sizeof to.from);
      if (slot_bytes_ == 0) continue;
      std::memcpy(to.experts, to.from_slots, slot_bytes_);
      std::memcpy(to.weights, to.from_slots + slot_bytes_, slot_bytes_);
    }
  }

  /// The local expert ids of a token at the rank that gets it, then their weights.
  static void fill_slots(const options& chosen, const oracle& truth, std::size_t rank,
                         const oracle::sent_row& sent, std::byte* to) {
    const gate::choice& route = truth.choice_of(rank);
    const std::size_t first = sent.token * chosen.top_k;
    for (std::size_t k = 0; k < chosen.top_k; ++k) {
      const std::int32_t expert = route.places[first + k];
      const bool there = truth.holds(sent.rank, expert);
      const std::int32_t local =
          there ? expert - static_cast<std::int32_t>(truth.first_expert(sent.rank)) : -1;
      const float weight = there ? route.weights[first + k] : 0.0F;
      std::memcpy(to + k * sizeof local, &local, sizeof local);
      std::memcpy(to + (chosen.top_k + k) * sizeof weight, &weight, sizeof weight);
    }
  }

  std::size_t row_bytes_;
  std::size_t scale_bytes_;
  std::size_t slot_bytes_;
  std::size_t output_bytes_;
  bench::pages<std::byte> rows_;
  std::vector<std::byte> scales_;
  std::vector<std::byte> slots_;
  bench::pages<std::byte> sink_;
  bench::pages<std::byte> results_;
  std::vector<oracle::sent_row> sent_;
  std::vector<target> targets_;
};

/// The copies of several ranks, which one rank does.
class plain_copies {
 public:
  void add(std::unique_ptr<plain_copy> one) { all_.push_back(std::move(one)); }
  void recall() const noexcept {
    for (const auto& one : all_) one->recall();
  }
  void dispatch(store_kind stores) noexcept {
    for (const auto& one : all_) one->dispatch(stores);
  }
  void combine(store_kind stores) noexcept {
    for (const auto& one : all_) one->combine(stores);
  }

 private:
  std::vector<std::unique_ptr<plain_copy>> all_;
};

}  // namespace ep_bench
