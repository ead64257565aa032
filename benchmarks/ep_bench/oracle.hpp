// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"

namespace ep_bench {

/// Who sends what where, worked out plainly from everybody's routing, with nothing of the library.
class oracle {
 public:
  /// A copy of a token: its home and the slot of [tokens, top_k] that it fills there.
  struct copy {
    std::size_t source;
    std::size_t slot;
  };
  /// A row of a rank, counted over all its experts.
  struct place {
    std::size_t rank;
    std::size_t row;
  };

  oracle(const options& chosen, std::size_t rank, std::size_t ranks)
      : first_expert_(ranks + 1), rows_of_(chosen.experts), places_(chosen.tokens * chosen.top_k) {
    for (std::size_t r = 0; r < ranks; ++r)
      first_expert_[r + 1] =
          first_expert_[r] + chosen.experts / ranks + (r < chosen.experts % ranks ? 1 : 0);

    const gate all{chosen};
    for (std::size_t source = 0; source < ranks; ++source) {
      auto choice = all.choose(source);
      for (std::size_t slot = 0; slot < choice.experts.size(); ++slot)
        rows_of_[static_cast<std::size_t>(choice.experts[slot])].push_back({source, slot});
      if (source == rank) mine_ = std::move(choice);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      std::size_t row = 0;
      for (std::size_t e = first_expert_[r]; e < first_expert_[r + 1]; ++e)
        for (const copy& arriving : rows_of_[e]) {
          if (arriving.source == rank) places_[arriving.slot] = {r, row};
          ++row;
        }
    }
  }

  /// The routing of this rank.
  [[nodiscard]] const gate::choice& mine() const noexcept { return mine_; }
  /// The rows that `expert` gets, in their order.
  [[nodiscard]] const std::vector<copy>& rows_of(std::size_t expert) const noexcept {
    return rows_of_[expert];
  }
  /// Where this rank's copies go, by slot.
  [[nodiscard]] const std::vector<place>& places() const noexcept { return places_; }
  [[nodiscard]] std::size_t first_expert(std::size_t rank) const noexcept {
    return first_expert_[rank];
  }

 private:
  std::vector<std::size_t> first_expert_;
  std::vector<std::vector<copy>> rows_of_;
  std::vector<place> places_;
  gate::choice mine_;
};

}  // namespace ep_bench
