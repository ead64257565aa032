// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "ep_bench/ablation/grouped_rows.hpp"
#include "ep_bench/ablation/routed_order.hpp"
#include "ep_bench/check.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "peers/mpi_ep/mpi.hpp"
#include "support/copy_encoder.hpp"
#include "support/pages.hpp"

namespace mpi_ep {

/// Dispatch and combine with one row per (token, expert): an all-to-all of counts, then one of
/// rows, which arrive by source and are grouped by expert; back the same way. A token is quantised
/// once, straight into all places of its copies. Rows of a rank to itself go to their final place
/// at once and are summed from there, unless they are to go through MPI as well. All buffers last;
/// large ones take memory only where rows arrive.
template <class Codec>
class expert_rows {
 public:
  /// `stays`: the rank whose rows do not travel: `rank`, or `ranks` for none.
  expert_rows(const ep_bench::options& chosen, const ep_bench::oracle& truth, std::size_t rank,
              std::size_t ranks, std::size_t stays)
      : chosen_{chosen},
        encoder_{chosen.hidden},
        stays_{stays},
        ranks_{ranks},
        first_expert_{truth.first_expert(rank)},
        local_experts_{truth.first_expert(rank + 1) - first_expert_},
        count_slots_{(chosen.experts + ranks - 1) / ranks},
        row_bytes_{Codec::row_bytes(chosen.hidden)},
        scale_bytes_{Codec::scale_bytes(chosen.hidden)},
        stride_{peerbus::align_up(row_bytes_ + scale_bytes_, 16)},
        order_{chosen.experts, ranks, chosen.tokens * chosen.top_k},
        counts_out_(ranks * count_slots_),
        counts_in_(ranks * count_slots_),
        blocks_(ranks * local_experts_),
        own_next_(local_experts_),
        own_places_(chosen.tokens * chosen.top_k),
        there_{stride_, ranks},
        back_{chosen.hidden * sizeof(peerbus::bf16), ranks},
        near_(chosen.tokens * chosen.top_k * widest()),
        far_(most_rows() * widest()),
        rows_(most_rows() * row_bytes_),
        scales_(most_rows() * scale_bytes_),
        outputs_(most_rows() * chosen.hidden),
        experts_{chosen.hidden},
        check_{chosen, truth, rank} {
    arrived_.experts().reserve(local_experts_);
  }

  void dispatch(std::span<const peerbus::bf16> tokens, const ep_bench::gate::choice& routing) {
    order_.sort(routing.experts);
    exchange_counts();
    plan();
    pack(tokens, routing.experts);
    there_.run(near_.all().data(), far_.all().data());
    group();
  }

  void run_experts() noexcept { experts_.run(arrived_); }

  void combine(const ep_bench::gate::choice& routing, std::span<peerbus::bf16> out) noexcept {
    pack_outputs();
    back_.run(far_.all().data(), near_.all().data());
    sum(routing, out);
  }

  [[nodiscard]] std::string check_received() { return check_.received(arrived_); }
  [[nodiscard]] std::string check_combined(std::span<const peerbus::bf16> out) {
    return check_.combined(out);
  }

  /// What this rank sends, to itself included.
  [[nodiscard]] std::size_t dispatch_bytes() const noexcept {
    return chosen_.tokens * chosen_.top_k * (row_bytes_ + scale_bytes_);
  }
  [[nodiscard]] std::size_t combine_bytes() const noexcept {
    return chosen_.tokens * chosen_.top_k * chosen_.hidden * sizeof(peerbus::bf16);
  }

 private:
  [[nodiscard]] std::size_t widest() const noexcept {
    return std::max(stride_, chosen_.hidden * sizeof(peerbus::bf16));
  }
  /// That can arrive, if all ranks send all they may to this one.
  [[nodiscard]] std::size_t most_rows() const noexcept {
    return ranks_ * chosen_.tokens * std::min(chosen_.top_k, local_experts_);
  }
  [[nodiscard]] std::size_t arriving(std::size_t source, std::size_t expert) const noexcept {
    return counts_in_[source * count_slots_ + expert];
  }
  /// The first row of `source` among the rows of local expert `expert`.
  [[nodiscard]] std::size_t& block(std::size_t source, std::size_t expert) noexcept {
    return blocks_[source * local_experts_ + expert];
  }
  [[nodiscard]] std::byte* row(std::size_t place) const noexcept {
    return rows_.all().data() + place * row_bytes_;
  }
  [[nodiscard]] std::byte* scale(std::size_t place) const noexcept {
    return scales_.all().data() + place * scale_bytes_;
  }
  [[nodiscard]] peerbus::bf16* output(std::size_t place) const noexcept {
    return outputs_.all().data() + place * chosen_.hidden;
  }

  /// One MPI_Alltoall of as many counts as the rank with the most experts needs.
  void exchange_counts() noexcept {
    for (std::size_t r = 0; r < ranks_; ++r)
      std::ranges::copy(order_.counts(r),
                        counts_out_.begin() + static_cast<std::ptrdiff_t>(r * count_slots_));
    const int each = static_cast<int>(count_slots_);
    MPI_Alltoall(counts_out_.data(), each, MPI_UINT32_T, counts_in_.data(), each, MPI_UINT32_T,
                 MPI_COMM_WORLD);
  }

  void plan() {
    arrived_.experts().clear();  // Keeps its memory.
    std::size_t place = 0;
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const std::size_t first = place;
      for (std::size_t s = 0; s < ranks_; ++s) {
        block(s, e) = place;
        place += arriving(s, e);
      }
      if (stays_ < ranks_) own_next_[e] = block(stays_, e);
      arrived_.experts().emplace_back(
          first_expert_ + e, chosen_.hidden, place - first,
          typename ep_bench::grouped_rows<Codec>::memory{row(first), scale(first), output(first)});
    }
    std::size_t arrival = 0;
    for (std::size_t s = 0; s < ranks_; ++s) {
      const bool own = s == stays_;
      std::size_t rows = 0;
      for (std::size_t e = 0; e < local_experts_ && !own; ++e) rows += arriving(s, e);
      const std::size_t leaving = own ? 0 : order_.rows(s);
      there_.send(s, order_.first(s), leaving);
      there_.receive(s, arrival, rows);
      back_.send(s, arrival, rows);
      back_.receive(s, order_.first(s), leaving);
      arrival += rows;
    }
  }

  void pack(std::span<const peerbus::bf16> tokens, std::span<const std::int32_t> experts) noexcept {
    std::array<std::byte*, most_copies> rows;
    std::array<std::byte*, most_copies> scales;
    for (std::size_t t = 0; t < chosen_.tokens; ++t) {
      for (std::size_t k = 0; k < chosen_.top_k; ++k) {
        const std::size_t slot = t * chosen_.top_k + k;
        if (order_.owner(experts[slot]) == stays_) {
          const std::size_t expert = static_cast<std::size_t>(experts[slot]) - first_expert_;
          own_places_[slot] = own_next_[expert]++;
          rows[k] = row(own_places_[slot]);
          scales[k] = scale(own_places_[slot]);
        } else {
          rows[k] = near_.all().data() + order_.position(slot) * stride_;
          scales[k] = rows[k] + row_bytes_;
        }
      }
      encoder_.encode(tokens.subspan(t * chosen_.hidden, chosen_.hidden),
                      std::span{rows}.first(chosen_.top_k), std::span{scales}.first(chosen_.top_k));
    }
  }

  void group() noexcept {
    const std::byte* from = far_.all().data();
    for (std::size_t s = 0; s < ranks_; ++s)
      for (std::size_t e = 0; e < local_experts_ && s != stays_; ++e) {
        const std::size_t end = block(s, e) + arriving(s, e);
        for (std::size_t place = block(s, e); place < end; ++place) {
          std::memcpy(row(place), from, row_bytes_);
          if constexpr (Codec::scale_bytes(16) != 0)
            std::memcpy(scale(place), from + row_bytes_, scale_bytes_);
          from += stride_;
        }
      }
  }

  void pack_outputs() noexcept {
    std::byte* to = far_.all().data();
    for (std::size_t s = 0; s < ranks_; ++s)
      for (std::size_t e = 0; e < local_experts_ && s != stays_; ++e) {
        const std::size_t bytes = arriving(s, e) * chosen_.hidden * sizeof(peerbus::bf16);
        std::memcpy(to, output(block(s, e)), bytes);
        to += bytes;
      }
  }

  void sum(const ep_bench::gate::choice& routing, std::span<peerbus::bf16> out) const noexcept {
    const auto& kernels = peerbus::kernel::best();
    const auto* const back = reinterpret_cast<const peerbus::bf16*>(near_.all().data());
    std::array<const peerbus::bf16*, most_copies> from;
    for (std::size_t t = 0; t < chosen_.tokens; ++t) {
      const std::size_t first = t * chosen_.top_k;
      for (std::size_t k = 0; k < chosen_.top_k; ++k)
        from[k] = order_.owner(routing.experts[first + k]) == stays_
                      ? output(own_places_[first + k])
                      : back + order_.position(first + k) * chosen_.hidden;
      kernels.weighted_sum(from.data(), routing.weights.data() + first, chosen_.top_k,
                           chosen_.hidden, out.data() + t * chosen_.hidden);
    }
  }

  static constexpr std::size_t most_copies = 32;

  ep_bench::options chosen_;
  bench::copy_encoder<Codec> encoder_;
  std::size_t stays_;
  std::size_t ranks_;
  std::size_t first_expert_;
  std::size_t local_experts_;
  std::size_t count_slots_;
  std::size_t row_bytes_;
  std::size_t scale_bytes_;
  std::size_t stride_;  ///< of a row that travels, with its scale
  ep_bench::routed_order order_;
  std::vector<std::uint32_t> counts_out_;
  std::vector<std::uint32_t> counts_in_;
  std::vector<std::size_t> blocks_;
  std::vector<std::size_t> own_next_;
  std::vector<std::size_t> own_places_;  ///< by slot, of rows that stay here
  row_exchange there_;
  row_exchange back_;
  // What the home packs is unpacked again where combine receives, and the other way round.
  bench::pages<std::byte> near_;
  bench::pages<std::byte> far_;
  bench::pages<std::byte> rows_;
  bench::pages<std::byte> scales_;
  bench::pages<peerbus::bf16> outputs_;
  ep_bench::arrivals<Codec> arrived_;
  ep_bench::expert_work experts_;
  ep_bench::checker<Codec> check_;
};

}  // namespace mpi_ep
