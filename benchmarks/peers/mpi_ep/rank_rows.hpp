// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "ep_bench/experts.hpp"
#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "peers/mpi_ep/mpi.hpp"
#include "peers/mpi_ep/partial_sums.hpp"
#include "peers/mpi_ep/rank_check.hpp"
#include "peers/mpi_ep/rank_row.hpp"
#include "support/copy_encoder.hpp"
#include "support/pages.hpp"

namespace mpi_ep {

/// Dispatch and combine with one row per (token, rank): the row carries its scale and the local
/// experts with their weights, and stays where it arrives, by source and then by token; an index
/// groups the rows by expert. The experts leave one weighted partial sum per row, the home adds
/// those of all ranks. Rows of a rank to itself do not travel, unless they are to go through MPI as
/// well. All buffers last; large ones take memory only where rows arrive.
template <class Codec>
class rank_rows {
 public:
  /// `stays`: the rank whose rows do not travel: `rank`, or `ranks` for none.
  rank_rows(const ep_bench::options& chosen, const ep_bench::oracle& truth, std::size_t rank,
            std::size_t ranks, std::size_t stays)
      : chosen_{chosen},
        encoder_{chosen.hidden},
        stays_{stays},
        first_expert_{truth.first_expert(rank)},
        form_{Codec::row_bytes(chosen.hidden), Codec::scale_bytes(chosen.hidden),
              std::min(chosen.top_k, (chosen.experts + ranks - 1) / ranks)},
        owners_(chosen.experts),
        first_experts_(ranks),
        counts_out_(ranks),
        counts_in_(ranks),
        near_firsts_(ranks),
        far_firsts_(ranks),
        opened_(ranks),
        parts_(chosen.tokens * chosen.top_k),
        part_counts_(chosen.tokens),
        starts_(truth.first_expert(rank + 1) - first_expert_ + 1),
        next_(starts_.size()),
        index_(ranks * chosen.tokens * form_.choices),
        there_{form_.stride(), ranks},
        back_{chosen.hidden * sizeof(peerbus::bf16), ranks},
        near_(chosen.tokens * std::min(chosen.top_k, ranks) *
              std::max(form_.stride(), chosen.hidden * sizeof(peerbus::bf16))),
        far_(ranks * chosen.tokens * form_.stride()),
        outputs_(ranks * chosen.tokens * chosen.hidden),
        experts_{chosen.hidden, form_.choices},
        check_{chosen, truth, rank, ranks} {
    for (std::size_t r = 0; r < ranks; ++r) {
      first_experts_[r] = static_cast<std::int32_t>(truth.first_expert(r));
      for (std::size_t e = truth.first_expert(r); e < truth.first_expert(r + 1); ++e)
        owners_[e] = r;
    }
  }

  void dispatch(std::span<const peerbus::bf16> tokens, const ep_bench::gate::choice& routing) {
    count(routing.experts);
    MPI_Alltoall(counts_out_.data(), 1, MPI_UINT32_T, counts_in_.data(), 1, MPI_UINT32_T,
                 MPI_COMM_WORLD);
    plan();
    pack(tokens, routing);
    there_.run(near_.all().data(), far_.all().data());
    group();
  }

  void run_experts() noexcept {
    for (std::size_t i = 0; i < arrived_; ++i)
      experts_.template run<Codec>(form_, far_row(i), first_expert_,
                                   outputs_.all().data() + i * chosen_.hidden);
  }

  void combine(const ep_bench::gate::choice&, std::span<peerbus::bf16> out) noexcept {
    back_.run(outputs_.all().data(), near_.all().data());
    const auto& kernels = peerbus::kernel::best();
    std::array<float, most_copies> ones;
    ones.fill(1.0F);
    std::array<const peerbus::bf16*, most_copies> from;
    for (std::size_t t = 0; t < chosen_.tokens; ++t) {
      for (std::size_t p = 0; p < part_counts_[t]; ++p) {
        const part& one = parts_[t * chosen_.top_k + p];
        const auto* const all = one.stayed ? outputs_.all().data()
                                           : reinterpret_cast<peerbus::bf16*>(near_.all().data());
        from[p] = all + one.row * chosen_.hidden;
      }
      kernels.weighted_sum(from.data(), ones.data(), part_counts_[t], chosen_.hidden,
                           out.data() + t * chosen_.hidden);
    }
  }

  [[nodiscard]] std::string check_received() {
    return check_.received(form_, {far_.all().data(), arrived_ * form_.stride()},
                           {starts_, index_});
  }
  [[nodiscard]] std::string check_combined(std::span<const peerbus::bf16> out) {
    return check_.combined(out);
  }

  /// What this rank has sent last, to itself included.
  [[nodiscard]] std::size_t dispatch_bytes() const noexcept { return sent_ * form_.stride(); }
  [[nodiscard]] std::size_t combine_bytes() const noexcept {
    return sent_ * chosen_.hidden * sizeof(peerbus::bf16);
  }

 private:
  static constexpr std::size_t most_copies = 32;

  /// The row of the latest token for a rank.
  struct opened_row {
    std::size_t token;
    std::byte* row;
    std::size_t choices;
  };
  /// Where the home finds a partial sum: among its own outputs, or where those of others come back.
  struct part {
    bool stayed;
    std::size_t row;
  };

  [[nodiscard]] std::byte* near_row(std::size_t i) const noexcept {
    return near_.all().data() + i * form_.stride();
  }
  [[nodiscard]] std::byte* far_row(std::size_t i) const noexcept {
    return far_.all().data() + i * form_.stride();
  }
  void close_rows() noexcept {
    for (opened_row& row : opened_) row.token = chosen_.tokens;
  }

  void count(std::span<const std::int32_t> experts) noexcept {
    std::ranges::fill(counts_out_, 0U);
    close_rows();
    for (std::size_t slot = 0; slot < experts.size(); ++slot) {
      const std::size_t to = owners_[static_cast<std::size_t>(experts[slot])];
      const std::size_t token = slot / chosen_.top_k;
      if (opened_[to].token == token) continue;
      opened_[to].token = token;
      ++counts_out_[to];
    }
  }

  void plan() noexcept {
    sent_ = 0;
    arrived_ = 0;
    for (std::size_t r = 0; r < counts_out_.size(); ++r) {
      near_firsts_[r] = sent_;
      far_firsts_[r] = arrived_;
      const std::size_t leaving = r == stays_ ? 0 : counts_out_[r];
      const std::size_t arriving = r == stays_ ? 0 : counts_in_[r];
      there_.send(r, sent_, leaving);
      there_.receive(r, arrived_, arriving);
      back_.send(r, arrived_, arriving);
      back_.receive(r, sent_, leaving);
      sent_ += counts_out_[r];
      arrived_ += counts_in_[r];
    }
  }

  void pack(std::span<const peerbus::bf16> tokens, const ep_bench::gate::choice& routing) noexcept {
    std::array<std::byte*, most_copies> rows;
    std::array<std::byte*, most_copies> scales;
    close_rows();
    for (std::size_t t = 0; t < chosen_.tokens; ++t) {
      std::size_t copies = 0;
      for (std::size_t k = 0; k < chosen_.top_k; ++k) {
        const std::size_t slot = t * chosen_.top_k + k;
        const std::int32_t expert = routing.experts[slot];
        const std::size_t to = owners_[static_cast<std::size_t>(expert)];
        opened_row& opened = opened_[to];
        if (opened.token != t) {
          const bool stays = to == stays_;
          const std::size_t row = stays ? far_firsts_[to]++ : near_firsts_[to]++;
          opened = {t, stays ? far_row(row) : near_row(row), 0};
          parts_[t * chosen_.top_k + copies] = {stays, row};
          rows[copies] = opened.row;
          scales[copies] = opened.row + form_.row_bytes;
          ++copies;
        }
        row_choice* const choices = form_.choices_at(opened.row);
        choices[opened.choices++] = {expert - first_experts_[to], routing.weights[slot]};
        if (opened.choices < form_.choices) choices[opened.choices].local_expert = -1;
      }
      part_counts_[t] = copies;
      encoder_.encode(tokens.subspan(t * chosen_.hidden, chosen_.hidden),
                      std::span{rows}.first(copies), std::span{scales}.first(copies));
    }
  }

  void group() noexcept {
    std::ranges::fill(starts_, 0U);
    for (std::size_t i = 0; i < arrived_; ++i)
      for (const row_choice& choice : form_.chosen(far_row(i)))
        ++starts_[static_cast<std::size_t>(choice.local_expert) + 1];
    for (std::size_t e = 1; e < starts_.size(); ++e) starts_[e] += starts_[e - 1];
    next_ = starts_;
    for (std::size_t i = 0; i < arrived_; ++i)
      for (const row_choice& choice : form_.chosen(far_row(i)))
        index_[next_[static_cast<std::size_t>(choice.local_expert)]++] =
            static_cast<std::uint32_t>(i);
  }

  ep_bench::options chosen_;
  bench::copy_encoder<Codec> encoder_;
  std::size_t stays_;
  std::size_t first_expert_;
  rank_row_form form_;
  std::vector<std::size_t> owners_;  ///< by expert
  std::vector<std::int32_t> first_experts_;
  std::vector<std::uint32_t> counts_out_;
  std::vector<std::uint32_t> counts_in_;
  std::vector<std::size_t> near_firsts_;
  std::vector<std::size_t> far_firsts_;
  std::vector<opened_row> opened_;
  std::vector<part> parts_;
  std::vector<std::size_t> part_counts_;
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> index_;
  row_exchange there_;
  row_exchange back_;
  bench::pages<std::byte> near_;  ///< what this rank's tokens send, and what comes back
  bench::pages<std::byte> far_;   ///< what arrives from all ranks
  bench::pages<peerbus::bf16> outputs_;
  partial_sums experts_;
  rank_checker<Codec> check_;
  std::size_t sent_ = 0;
  std::size_t arrived_ = 0;
};

}  // namespace mpi_ep
