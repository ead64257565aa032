// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>

namespace peerbus::collective::detail {

/// Returns whether a table has any cost of an access.
bool has_costs_of(const cost_table& table, page_access access) noexcept;

/// Returns the costs of an access: from the table, or assumed if the table lacks them.
access_costs costs_from(const cost_table& table, page_access access) noexcept;

/// The algorithms that a team takes, by size. They are chosen when the team is made, so that a call
/// only looks them up. All sizes between two powers of two have the choice for the upper power.
class algorithm_choice {
 public:
  /// The limits of the choice.
  struct limits {
    algorithm forced = algorithm::automatic;  ///< the algorithm to take if it is possible
    /// The largest size in bytes for which an `all_reduce` takes none of `dividing_algorithms`.
    /// Empty: costs decide.
    std::optional<std::size_t> one_shot_bytes{};
    /// True if reductions may ignore the order of ranks even if their result depends on it.
    bool may_reorder = false;
    bool has_trials = false;  ///< whether trials decide close choices
  };

  /// Chooses algorithms for all sizes. Does not allocate.
  algorithm_choice(const team_shape& shape, const access_costs& costs,
                   const limits& given) noexcept;

  /// The dependence of a reduction on the order of ranks.
  enum class order_need : std::size_t {
    none,    ///< the result does not depend on the order
    result,  ///< the result depends on it
    sources  ///< the operands of all ranks must be reduced together
  };

  /// Returns the algorithm of an `all_reduce`.
  [[nodiscard]] algorithm of_all_reduce(std::size_t bytes, order_need need) const noexcept {
    return (may_reorder(need) ? any_order_ : rank_order_).at(bytes);
  }
  /// Returns whether `one_shot` and `two_shots` cost about the same for an `all_reduce` of `bytes`
  /// bytes, so that the team tries both.
  [[nodiscard]] bool is_close(std::size_t bytes) const noexcept {
    return ((close_ >> log2_of(bytes)) & 1U) != 0;
  }
  ///@{
  /// The logarithm to base 2, rounded up, of the smallest or the largest size in bytes for which a
  /// team with trials tries algorithms. For smaller operands the team takes one of
  /// `gathering_algorithms`, because the number of rounds determines the time.
  static constexpr std::size_t least_tried_log2 = 10;
  static constexpr std::size_t most_tried_log2 = 19;
  ///@}

  /// Returns the algorithm of a `reduce_scatter`. `bytes` is the size of each rank's output.
  [[nodiscard]] algorithm of_reduce_scatter(std::size_t bytes, order_need need) const noexcept {
    return may_reorder(need) ? scattering_.at(bytes) : algorithm::one_shot;
  }
  /// Returns the algorithm of a `broadcast`.
  [[nodiscard]] algorithm of_broadcast(std::size_t bytes) const noexcept {
    return broadcasting_.at(bytes);
  }
  /// Returns the algorithm of an `all_gather`. `bytes` is the size of each rank's input.
  [[nodiscard]] algorithm of_all_gather(std::size_t bytes) const noexcept {
    return gathering_.at(bytes);
  }

 private:
  /// Returns the logarithm of a size to base 2, rounded up.
  [[nodiscard]] static constexpr std::size_t log2_of(std::size_t bytes) noexcept {
    const std::size_t log2 = static_cast<unsigned>(std::bit_width(bytes - (bytes != 0 ? 1 : 0)));
    return log2 < 64 ? log2 : 63;
  }
  /// The algorithms of one operation.
  struct by_size {
    std::size_t one_shot_bytes;
    std::array<algorithm, 64> small;  // By the logarithm of the size, rounded up.
    std::array<algorithm, 64> large;

    [[nodiscard]] algorithm at(std::size_t bytes) const noexcept {
      return (bytes <= one_shot_bytes ? small : large)[log2_of(bytes)];
    }
  };
  [[nodiscard]] bool may_reorder(order_need need) const noexcept {
    return need == order_need::none || (need == order_need::result && may_reorder_);
  }
  static std::uint64_t close_sizes(const team_shape& shape, const access_costs& costs,
                                   const limits& given) noexcept;
  static by_size choose(choice_of operation, const team_shape& shape, const access_costs& costs,
                        const limits& given, bool may_reorder) noexcept;

  bool may_reorder_;
  by_size rank_order_;
  by_size any_order_;
  by_size gathering_;
  by_size scattering_;  // In any order; only `one_shot` keeps that of ranks.
  by_size broadcasting_;
  std::uint64_t close_;  // A bit for each logarithm of a size for which `is_close`.
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/algorithm_choice.ipp>  // IWYU pragma: keep
#endif
