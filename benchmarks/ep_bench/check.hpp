// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/received.hpp>

#include "ep_bench/experts.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"

namespace ep_bench {

/// Compares what arrived with what the oracle says, bit by bit. Each function returns the first
/// difference in words, or nothing if all is right.
template <class Codec>
class checker {
 public:
  checker(const options& chosen, const oracle& truth, std::size_t rank)
      : chosen_{chosen},
        truth_{&truth},
        rank_{rank},
        content_{chosen.seed},
        codes_(chosen.hidden),
        row_(Codec::row_bytes(chosen.hidden)),
        scale_(Codec::scale_bytes(chosen.hidden)),
        sums_(chosen.hidden) {}

  /// The rows of all local experts: bytes, scales, origins, order and number.
  [[nodiscard]] std::string received(const peerbus::moe::received<Codec>& arrived) {
    std::size_t expert = truth_->first_expert(rank_);
    for (const auto& rows : arrived.experts()) {
      const auto& expected = truth_->rows_of(expert);
      if (rows.id() != expert || rows.count() != expected.size())
        return say("expert ", rows.id(), " has ", rows.count(), " rows, expected expert ", expert,
                   " with ", expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (!right(rows, i, expected[i]))
          return say("row ", i, " of expert ", expert, " is not token ",
                     expected[i].slot / chosen_.top_k, " of rank ", expected[i].source);
      ++expert;
    }
    if (expert != truth_->first_expert(rank_ + 1))
      return say("experts up to ", expert, " arrived, expected up to ",
                 truth_->first_expert(rank_ + 1));
    return {};
  }

  /// Every element of the combined tokens.
  [[nodiscard]] std::string combined(std::span<const peerbus::bf16> out) {
    const gate::choice& mine = truth_->mine();
    const std::size_t hidden = chosen_.hidden;
    for (std::size_t token = 0; token < chosen_.tokens; ++token) {
      const float unit = content_.fill(rank_, token, codes_);
      std::fill(sums_.begin(), sums_.end(), 0.0F);
      for (std::size_t k = 0; k < chosen_.top_k; ++k) {
        const std::size_t slot = token * chosen_.top_k + k;
        const transform applied{static_cast<std::size_t>(mine.experts[slot]), hidden};
        for (std::size_t j = 0; j < hidden; ++j)
          sums_[j] =
              std::fma(mine.weights[slot], static_cast<float>(output(applied, unit, j)), sums_[j]);
      }
      for (std::size_t j = 0; j < hidden; ++j)
        if (out[token * hidden + j] != peerbus::bf16{sums_[j]})
          return say("combined token ", token, ", column ", j, " has bits ",
                     out[token * hidden + j].bits, ", expected ", peerbus::bf16{sums_[j]}.bits);
    }
    return {};
  }

  /// The output of an expert for this rank's copy in `slot`, as found at `at`.
  [[nodiscard]] std::string output_of(std::size_t slot, const std::byte* at) {
    const std::size_t token = slot / chosen_.top_k;
    const float unit = content_.fill(rank_, token, codes_);
    const auto expert = static_cast<std::size_t>(truth_->mine().experts[slot]);
    const transform applied{expert, chosen_.hidden};
    for (std::size_t j = 0; j < chosen_.hidden; ++j) {
      const peerbus::bf16 expected = output(applied, unit, j);
      if (std::memcmp(at + j * sizeof expected, &expected, sizeof expected) != 0)
        return say("the plain read of token ", token, " finds another row than that of expert ",
                   expert);
    }
    return {};
  }

 private:
  [[nodiscard]] bool right(const peerbus::moe::expert_rows<Codec>& rows, std::size_t i,
                           const oracle::copy& expected) {
    const std::size_t token = expected.slot / chosen_.top_k;
    const float unit = content_.fill(expected.source, token, codes_);
    as_row<Codec>(codes_, unit, row_.data(), scale_.data());
    const auto scales = std::as_bytes(rows.scales());
    const auto origin = rows.origin(i);
    return std::memcmp(rows.row(i).data(), row_.data(), row_.size()) == 0 &&
           (scale_.empty() ||
            std::memcmp(scales.data() + i * scale_.size(), scale_.data(), scale_.size()) == 0) &&
           origin.rank.index() == expected.source && origin.token == token;
  }

  [[nodiscard]] peerbus::bf16 output(const transform& applied, float unit,
                                     std::size_t column) const noexcept {
    const std::size_t from = column + applied.rotation;
    const std::int8_t code = codes_[from < codes_.size() ? from : from - codes_.size()];
    return peerbus::bf16{static_cast<float>(code) * unit * applied.factor};
  }

  template <class... Parts>
  [[nodiscard]] std::string say(const Parts&... parts) const {
    return peerbus::detail::concat("rank ", rank_, ": ", parts...);
  }

  options chosen_;
  const oracle* truth_;
  std::size_t rank_;
  payload content_;
  std::vector<std::int8_t> codes_;
  std::vector<std::byte> row_;
  std::vector<std::byte> scale_;
  std::vector<float> sums_;
};

}  // namespace ep_bench
