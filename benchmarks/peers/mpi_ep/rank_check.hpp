// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>

#include "ep_bench/experts.hpp"
#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"
#include "peers/mpi_ep/rank_row.hpp"

namespace mpi_ep {

/// Compares rows per (token, rank) with a plain computation, bit by bit. Each function returns the
/// first difference in words, or nothing if all is right.
template <class Codec>
class rank_checker {
 public:
  rank_checker(const ep_bench::options& chosen, const ep_bench::oracle& truth, std::size_t rank,
               std::size_t ranks)
      : chosen_{chosen},
        truth_{&truth},
        rank_{rank},
        ranks_{ranks},
        content_{chosen.seed},
        codes_(chosen.hidden),
        row_(Codec::row_bytes(chosen.hidden)),
        scale_(Codec::scale_bytes(chosen.hidden)) {}

  /// Bytes, scales, choices, order and number of the rows, and the index by expert.
  [[nodiscard]] std::string received(const rank_row_form& form, std::span<const std::byte> rows,
                                     const rank_row_index& index) {
    const std::size_t first = truth_->first_expert(rank_);
    const std::size_t experts = truth_->first_expert(rank_ + 1) - first;
    const ep_bench::gate gate{chosen_, ranks_};
    std::vector<std::vector<std::uint32_t>> by_expert(experts);
    std::uint32_t number = 0;
    for (std::size_t source = 0; source < ranks_; ++source) {
      const auto routing = gate.choose(source);
      for (std::size_t token = 0; token < chosen_.tokens; ++token) {
        std::vector<row_choice> expected;
        for (std::size_t k = 0; k < chosen_.top_k; ++k) {
          const std::size_t slot = token * chosen_.top_k + k;
          const auto expert = static_cast<std::size_t>(routing.experts[slot]);
          if (expert < first || expert >= first + experts) continue;
          expected.push_back({static_cast<std::int32_t>(expert - first), routing.weights[slot]});
          by_expert[expert - first].push_back(number);
        }
        if (expected.empty()) continue;
        if ((number + 1) * form.stride() > rows.size() ||
            !right(form, rows.data() + number * form.stride(), source, token, expected))
          return say("row ", number, " is not token ", token, " of rank ", source);
        ++number;
      }
    }
    if (rows.size() != number * form.stride())
      return say(rows.size() / form.stride(), " rows arrived, expected ", number);
    for (std::size_t e = 0; e < experts; ++e)
      if (!std::ranges::equal(
              by_expert[e],
              index.rows.subspan(index.starts[e], index.starts[e + 1] - index.starts[e])))
        return say("the index names other rows for expert ", first + e);
    return {};
  }

  /// Every element: the plain sum over ranks, in the order in which the token names them, of bf16
  /// partial sums, each by fma in slot order.
  [[nodiscard]] std::string combined(std::span<const peerbus::bf16> out) {
    for (std::size_t token = 0; token < chosen_.tokens; ++token) {
      const float unit = content_.fill(rank_, token, codes_);
      const std::vector<std::size_t> owners = owners_of(token);
      for (std::size_t j = 0; j < chosen_.hidden; ++j) {
        const peerbus::bf16 expected = sum(token, unit, j, owners);
        const peerbus::bf16 seen = out[token * chosen_.hidden + j];
        if (seen != expected)
          return say("combined token ", token, ", column ", j, " has bits ", seen.bits,
                     ", expected ", expected.bits);
      }
    }
    return {};
  }

 private:
  [[nodiscard]] bool right(const rank_row_form& form, const std::byte* row, std::size_t source,
                           std::size_t token, std::span<const row_choice> expected) {
    const float unit = content_.fill(source, token, codes_);
    ep_bench::as_row<Codec>(codes_, unit, row_.data(), scale_.data());
    return std::memcmp(row, row_.data(), row_.size()) == 0 &&
           (scale_.empty() ||
            std::memcmp(row + form.row_bytes, scale_.data(), scale_.size()) == 0) &&
           std::ranges::equal(form.chosen(row), expected, [](row_choice a, row_choice b) {
             return a.local_expert == b.local_expert && a.weight == b.weight;
           });
  }

  /// Of the experts of a token of this rank, by k.
  [[nodiscard]] std::vector<std::size_t> owners_of(std::size_t token) const {
    std::vector<std::size_t> owners;
    for (std::size_t k = 0; k < chosen_.top_k; ++k) {
      const auto expert =
          static_cast<std::size_t>(truth_->mine().experts[token * chosen_.top_k + k]);
      std::size_t owner = 0;
      while (truth_->first_expert(owner + 1) <= expert) ++owner;
      owners.push_back(owner);
    }
    return owners;
  }

  [[nodiscard]] peerbus::bf16 sum(std::size_t token, float unit, std::size_t column,
                                  std::span<const std::size_t> owners) const noexcept {
    float total = 0;
    for (std::size_t k = 0; k < owners.size(); ++k) {
      const auto before = owners.first(k);
      if (std::ranges::find(before, owners[k]) != before.end()) continue;
      float part = 0;
      for (std::size_t i = k; i < owners.size(); ++i) {
        if (owners[i] != owners[k]) continue;
        const std::size_t slot = token * chosen_.top_k + i;
        const ep_bench::transform applied{static_cast<std::size_t>(truth_->mine().experts[slot]),
                                          chosen_.hidden};
        const std::int8_t code = codes_[(column + applied.rotation) % chosen_.hidden];
        const peerbus::bf16 output{static_cast<float>(code) * unit * applied.factor};
        part = std::fma(truth_->mine().weights[slot], static_cast<float>(output), part);
      }
      total += static_cast<float>(peerbus::bf16{part});
    }
    return peerbus::bf16{total};
  }

  template <class... Parts>
  [[nodiscard]] std::string say(const Parts&... parts) const {
    return peerbus::concat("rank ", rank_, ": ", parts...);
  }

  ep_bench::options chosen_;
  const ep_bench::oracle* truth_;
  std::size_t rank_;
  std::size_t ranks_;
  ep_bench::payload content_;
  std::vector<std::int8_t> codes_;
  std::vector<std::byte> row_;
  std::vector<std::byte> scale_;
};

}  // namespace mpi_ep
