// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::cann {

/// The kinds of experts that a slot of a token can name.
enum class expert_kind : std::uint8_t {
  moe,      ///< an expert of its own on some rank
  zero,     ///< its output is zero
  copy,     ///< its output is the token
  constant  ///< its output is the token and a constant vector, mixed by learnt factors
};

/// The placement of experts on ranks that the operators define, and the numbers that the exchange
/// uses for the experts. The first `shared_expert_rank_num` ranks hold shared experts, one per
/// rank. Shared expert j has `replicas()` replicas, on consecutive ranks from rank j x replicas()
/// on. Each remaining rank holds equally many consecutive MoE experts.
///
/// The exchange gives each rank equally many experts: rank r has `numbers_per_rank()` numbers, from
/// r x numbers_per_rank() on. A rank with a shared expert uses only its first number. A token goes
/// to K MoE experts and, in the slots after them, to each shared expert.
class deployment {
 public:
  /// Makes the deployment. Requires attributes for which `objection_to_experts` returns nothing.
  constexpr deployment(const attributes& attributes, std::size_t rank_count) noexcept
      : ranks_{rank_count},
        top_k_{attributes.top_k},
        shared_ranks_{static_cast<std::size_t>(attributes.shared_expert_rank_num)},
        shared_{shared_ranks_ == 0 ? 0 : static_cast<std::size_t>(attributes.shared_expert_num)},
        local_{static_cast<std::size_t>(attributes.moe_expert_num) / (rank_count - shared_ranks_)},
        first_zero_{attributes.moe_expert_num},
        first_copy_{first_zero_ + attributes.zero_expert_num},
        first_constant_{first_copy_ + attributes.copy_expert_num},
        end_{first_constant_ + attributes.const_expert_num},
        // Tokens may have more slots than there are experts to send them to. The exchange requires
        // at least as many experts as slots.
        per_rank_{std::max(local_, (slots() + rank_count - 1) / rank_count)} {}

  /// Returns K, the number of slots in which a token names an expert.
  [[nodiscard]] constexpr std::size_t top_k() const noexcept { return top_k_; }
  /// Returns the number of shared experts that a token is sent to.
  [[nodiscard]] constexpr std::size_t shared() const noexcept { return shared_; }
  /// Returns the number of slots of a token in the exchange.
  [[nodiscard]] constexpr std::size_t slots() const noexcept { return top_k_ + shared_; }
  /// Returns the number of consecutive expert numbers that the exchange gives each rank, used or
  /// not.
  [[nodiscard]] constexpr std::size_t numbers_per_rank() const noexcept { return per_rank_; }
  /// Returns the number of experts that the exchange is configured with.
  [[nodiscard]] constexpr std::size_t numbers() const noexcept { return ranks_ * per_rank_; }

  /// Returns whether the rank holds a shared expert, and therefore no MoE experts.
  [[nodiscard]] constexpr bool holds_shared(rank_id rank) const noexcept {
    return rank.index() < shared_ranks_;
  }
  /// Returns the number of experts of the rank, the operators' localExpertNum.
  [[nodiscard]] constexpr std::size_t local_experts(rank_id rank) const noexcept {
    return holds_shared(rank) ? 1 : local_;
  }
  /// Returns the id of the rank's local expert 0, among the MoE experts or among the shared
  /// experts.
  [[nodiscard]] constexpr std::size_t first_expert(rank_id rank) const noexcept {
    return holds_shared(rank) ? rank.index() / replicas() : (rank.index() - shared_ranks_) * local_;
  }
  /// Returns the number of ranks that hold a given shared expert. Requires shared experts.
  [[nodiscard]] constexpr std::size_t replicas() const noexcept { return shared_ranks_ / shared_; }

  /// Returns the number of ids: valid ids are 0 to ids() - 1.
  [[nodiscard]] constexpr std::int64_t ids() const noexcept { return end_; }
  /// Returns the kind of the expert with a valid id.
  [[nodiscard]] constexpr expert_kind kind(std::int64_t id) const noexcept {
    if (id < first_zero_) return expert_kind::moe;
    if (id < first_copy_) return expert_kind::zero;
    return id < first_constant_ ? expert_kind::copy : expert_kind::constant;
  }
  /// Returns the index of constant expert `id` among the constant experts.
  [[nodiscard]] constexpr std::size_t constant(std::int64_t id) const noexcept {
    return static_cast<std::size_t>(id - first_constant_);
  }

  /// Returns the exchange's number of the MoE expert `id`.
  [[nodiscard]] constexpr std::int32_t number_of_moe(std::int64_t id) const noexcept {
    const auto e = static_cast<std::size_t>(id);
    return number(shared_ranks_ + e / local_, e % local_);
  }
  /// Returns the exchange's number of the replica of shared expert `j` that tokens of `source` go
  /// to.
  [[nodiscard]] constexpr std::int32_t number_of_shared(std::size_t j,
                                                        rank_id source) const noexcept {
    return number(j * replicas() + source.index() % replicas(), 0);
  }

 private:
  [[nodiscard]] constexpr std::int32_t number(std::size_t rank, std::size_t local) const noexcept {
    return static_cast<std::int32_t>(rank * per_rank_ + local);
  }

  std::size_t ranks_;
  std::size_t top_k_;
  std::size_t shared_ranks_;
  std::size_t shared_;
  std::size_t local_;
  std::int64_t first_zero_;
  std::int64_t first_copy_;
  std::int64_t first_constant_;
  std::int64_t end_;
  std::size_t per_rank_;
};

}  // namespace peerbus::cann
