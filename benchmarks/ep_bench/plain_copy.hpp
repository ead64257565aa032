// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>

#include "ep_bench/check.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/pages.hpp"
#include "ep_bench/payload.hpp"

namespace ep_bench {

/// The least that any dispatch and combine must do, as a memcpy per row: the bytes of a dispatch,
/// encoded beforehand, written to where the exchange puts them, and the bytes of a combine read
/// from where it reads them. Every address is worked out beforehand.
template <class Transport, class Codec>
class plain_copy {
 public:
  plain_copy(peerbus::moe::exchange<Transport, Codec>& moe, const options& chosen,
             const oracle& truth, std::size_t rank)
      : rank_{static_cast<std::uint16_t>(rank)},
        top_k_{chosen.top_k},
        row_bytes_{Codec::row_bytes(chosen.hidden)},
        scale_bytes_{Codec::scale_bytes(chosen.hidden)},
        output_bytes_{chosen.hidden * sizeof(peerbus::bf16)},
        rows_(chosen.tokens * row_bytes_),
        scales_(chosen.tokens * scale_bytes_),
        sink_(output_bytes_) {
    const payload content{chosen.seed};
    std::vector<std::int8_t> codes(chosen.hidden);
    for (std::size_t t = 0; t < chosen.tokens; ++t) {
      const float unit = content.fill(rank, t, codes);
      as_row<Codec>(codes, unit, rows_.all().data() + t * row_bytes_,
                    scales_.data() + t * scale_bytes_);
    }
    const auto& map = moe.map();
    for (const oracle::place& place : truth.places()) {
      std::byte* const part = moe.memory().peer(peerbus::rank_id{place.rank}).data();
      targets_.push_back({part + map.rows + place.row * row_bytes_,
                          part + map.scales + place.row * scale_bytes_,
                          part + map.origins + place.row * sizeof(peerbus::moe::wire_origin),
                          part + map.outputs + place.row * output_bytes_});
    }
  }

  void recall() const noexcept { rows_.recall(); }

  void dispatch() const noexcept {
    const std::byte* row = rows_.all().data();
    const std::byte* scale = scales_.data();
    const target* to = targets_.data();
    const target* const end = to + targets_.size();
    for (std::uint32_t token = 0; to != end; ++token) {
      for (std::uint16_t k = 0; k < top_k_; ++k, ++to) {
        const peerbus::moe::wire_origin origin{token, rank_, k};
        std::memcpy(to->row, row, row_bytes_);
        if (scale_bytes_ != 0) std::memcpy(to->scale, scale, scale_bytes_);
        std::memcpy(to->origin, &origin, sizeof origin);
      }
      row += row_bytes_;
      scale += scale_bytes_;
    }
  }

  void combine() noexcept {
    for (const target& from : targets_) {
      std::memcpy(sink_.all().data(), from.output, output_bytes_);
      asm volatile("" : : "r"(sink_.all().data()) : "memory");  // The copy is wanted for itself.
    }
  }

  /// Overwrites what `dispatch` writes, to see that it does.
  void spoil() const noexcept {
    for (const target& to : targets_) {
      std::memset(to.row, 0xff, row_bytes_);
      std::memset(to.scale, 0xff, scale_bytes_);
      std::memset(to.origin, 0xff, sizeof(peerbus::moe::wire_origin));
    }
  }
  /// Whether `combine` reads the right rows.
  [[nodiscard]] std::string check_outputs(checker<Codec>& check) const {
    for (std::size_t slot = 0; slot < targets_.size(); ++slot)
      if (auto wrong = check.output_of(slot, targets_[slot].output); !wrong.empty()) return wrong;
    return {};
  }

 private:
  struct target {
    std::byte* row;
    std::byte* scale;
    std::byte* origin;
    const std::byte* output;
  };

  std::uint16_t rank_;
  std::size_t top_k_;
  std::size_t row_bytes_;
  std::size_t scale_bytes_;
  std::size_t output_bytes_;
  pages<std::byte> rows_;
  std::vector<std::byte> scales_;
  pages<std::byte> sink_;
  std::vector<target> targets_;
};

}  // namespace ep_bench
