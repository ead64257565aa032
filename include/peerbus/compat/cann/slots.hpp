// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/compat/cann/check_attributes.hpp>
#include <peerbus/compat/cann/deployment.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::cann::detail {

/// A view of an `x_active_mask`, which states for each token or slot whether it is active.
class active_mask {
 public:
  /// Makes the view. Requires a mask for which `objection` returns nothing.
  active_mask(std::span<const bool> values, std::size_t tokens, std::size_t top_k) noexcept
      : values_{values}, per_slot_{values.size() == tokens * top_k}, top_k_{top_k} {}

  [[nodiscard]] bool operator()(std::size_t token, std::size_t k) const noexcept {
    if (values_.empty()) return true;
    return values_[per_slot_ ? token * top_k_ + k : token];
  }

  /// Returns an error that describes why the mask is bad, or nothing if it is good.
  [[nodiscard]] static std::optional<error> objection(std::span<const bool> values,
                                                      std::size_t tokens, std::size_t top_k) {
    if (values.empty() || values.size() == tokens * top_k) return std::nullopt;
    if (values.size() != tokens)
      return wrong(errc::invalid_argument, "x_active_mask has ", values.size(),
                   " values, expected none, Bs, ", tokens, ", or Bs x K, ", tokens * top_k);
    const auto end = std::find(values.begin(), values.end(), false);
    const auto late = std::find(end, values.end(), true);
    if (late == values.end()) return std::nullopt;
    return wrong(errc::invalid_argument, "x_active_mask is true for token ", late - values.begin(),
                 " after false for token ", end - values.begin(),
                 ", expected the active tokens first");
  }

 private:
  std::span<const bool> values_;
  bool per_slot_;
  std::size_t top_k_;
};

/// The expert ids of the tokens of one dispatch, kept for its combine. The constructor allocates
/// all memory.
class slot_table {
 public:
  static constexpr std::int32_t inactive = -1;

  slot_table(std::size_t max_tokens, std::size_t top_k) : top_k_{top_k}, ids_(max_tokens * top_k) {}

  [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
  /// Returns the expert that slot k of a token names, or `inactive`.
  [[nodiscard]] std::int32_t expert(std::size_t token, std::size_t k) const noexcept {
    return ids_[token * top_k_ + k];
  }

  /// Copies the ids of active slots from `given`, whose size must have been checked. `ids` is the
  /// number of valid ids. Returns an error that describes the first active slot whose id is out of
  /// range or repeated within its token, or nothing.
  [[nodiscard]] std::optional<error> take(std::span<const std::int32_t> given,
                                          const active_mask& active, std::int64_t ids) {
    tokens_ = given.size() / top_k_;
    for (std::size_t t = 0; t < tokens_; ++t) {
      const std::span token_ids = std::span{ids_}.subspan(t * top_k_, top_k_);
      for (std::size_t k = 0; k < top_k_; ++k) {
        token_ids[k] = inactive;
        if (!active(t, k)) continue;
        const std::int32_t id = given[t * top_k_ + k];
        if (id < 0 || id >= ids)
          return wrong(errc::invalid_argument, "expert_ids has ", id, where(t, k),
                       ", expected 0 to ", ids - 1,
                       "; slots that take no part are said by x_active_mask");
        const auto earlier = token_ids.first(k);
        if (std::find(earlier.begin(), earlier.end(), id) != earlier.end())
          return wrong(errc::invalid_argument, "expert_ids has ", id, " again", where(t, k),
                       ", expected different experts within a token");
        token_ids[k] = id;
      }
    }
    return std::nullopt;
  }

  /// Returns an error that describes the first slot in which combine's argument differs from
  /// dispatch's, or nothing.
  [[nodiscard]] std::optional<error> differs(std::span<const std::int32_t> given) const {
    for (std::size_t s = 0; s < given.size(); ++s)
      if (ids_[s] != inactive && given[s] != ids_[s])
        return wrong(errc::invalid_argument, "combine's expert_ids has ", given[s],
                     where(s / top_k_, s % top_k_), ", expected ", ids_[s], ", as dispatch");
    return std::nullopt;
  }
  [[nodiscard]] std::optional<error> differs(const active_mask& given) const {
    for (std::size_t s = 0; s < tokens_ * top_k_; ++s)
      if (given(s / top_k_, s % top_k_) != (ids_[s] != inactive))
        return wrong(errc::invalid_argument, "combine's x_active_mask differs from dispatch's",
                     where(s / top_k_, s % top_k_), ", expected the same");
    return std::nullopt;
  }

  /// Writes the exchange's expert numbers, [tokens, experts.slots()], to `into`, and returns the
  /// written part. A slot that is not sent gets -1. Inactive slots and slots of zero, copy and
  /// constant experts are not sent. A token without any active slot is not sent to the shared
  /// experts either.
  [[nodiscard]] std::span<const std::int32_t> numbers(const deployment& experts, rank_id source,
                                                      std::span<std::int32_t> into) const noexcept {
    std::size_t slot = 0;
    for (std::size_t t = 0; t < tokens_; ++t) {
      bool active = false;
      for (std::size_t k = 0; k < top_k_; ++k) {
        const std::int32_t id = expert(t, k);
        active = active || id != inactive;
        const bool sent = id != inactive && experts.kind(id) == expert_kind::moe;
        into[slot++] = sent ? experts.number_of_moe(id) : -1;
      }
      for (std::size_t j = 0; j < experts.shared(); ++j)
        into[slot++] = active ? experts.number_of_shared(j, source) : -1;
    }
    return into.first(slot);
  }

 private:
  static std::string where(std::size_t token, std::size_t k) {
    return concat(" at token ", token, ", slot ", k);
  }

  std::size_t top_k_;
  std::size_t tokens_ = 0;
  std::vector<std::int32_t> ids_;
};

}  // namespace peerbus::cann::detail
