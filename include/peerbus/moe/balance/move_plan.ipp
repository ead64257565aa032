// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/move_plan.hpp>

namespace peerbus::moe {

namespace detail {

/// The state between two rounds of `plan_moves`.
///
/// A round is made of chains. A rank that takes in an expert gives up an expert that it is not to
/// keep. If no other rank holds the expert that is given up, a rank that is to have it takes it in
/// in the same chain, and gives up an expert in turn. The chain ends when the expert that is given
/// up is also at another rank, or when the first rank takes in the expert that the last rank gave
/// up.
class move_planner {
 public:
  move_planner(const expert_map& before, std::span<const std::uint32_t> wanted)
      : ranks_(before.ranks()), copies_(before.experts()) {
    for (const rank_id rank : all_ranks{before.ranks()}) {
      const auto held = before.held_by(rank);
      table_.insert(table_.end(), held.begin(), held.end());
      if (before.is_gone(rank)) continue;
      changes& mine = ranks_[rank.index()];
      const auto later = wanted.subspan(before.first(rank), held.size());
      for (std::size_t i = 0; i < held.size(); ++i) {
        if (held[i] != vacant) ++copies_[held[i]];
        if (held[i] == vacant || std::ranges::find(later, held[i]) == later.end())
          mine.leaving.push_back(static_cast<std::uint32_t>(before.first(rank) + i));
      }
      for (const std::uint32_t expert : later)
        if (expert == vacant || std::ranges::find(held, expert) == held.end())
          mine.coming.push_back(expert);
      // Places that stay vacant are no change.
      drop_vacant_pairs(mine);
    }
    for (const changes& rank : ranks_)
      for (const std::uint32_t expert : rank.coming)
        if (expert != vacant && copies_[expert] == 0)
          throw error{errc::invalid_argument,
                      peerbus::detail::concat("plan_moves: expert ", expert,
                                              " is at no living rank, expected one to copy it "
                                              "from")};
  }

  /// Returns the number of physical experts that are still to get another logical expert.
  [[nodiscard]] std::size_t changes_left() const noexcept {
    std::size_t left = 0;
    for (const changes& rank : ranks_) left += rank.coming.size();
    return left;
  }

  /// Returns the next round, in which each rank takes in at most `spare` experts.
  [[nodiscard]] move_round next(const expert_map& before, std::size_t spare) {
    move_round round;
    const std::vector<std::uint32_t> old = table_;
    for (changes& rank : ranks_) rank.capacity = spare;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      while (can_take(rank) && take_chain(rank, round)) continue;
    find_sources(before, old, round);
    round.physical_to_logical = table_;
    return round;
  }

  /// Throws the error of a round without any change.
  [[noreturn]] void refuse() const {
    std::uint32_t expert = vacant;
    for (const changes& rank : ranks_)
      for (const std::uint32_t place : rank.leaving)
        if (expert == vacant) expert = table_[place];
    throw error{errc::invalid_argument,
                peerbus::detail::concat("plan_moves: expert ", expert,
                                        " would be at ranks only that are gone, expected a living "
                                        "one")};
  }

 private:
  struct changes {
    std::vector<std::uint32_t> leaving;  ///< physical experts whose logical expert is to leave
    std::vector<std::uint32_t> coming;   ///< as many logical experts that are to come, or `vacant`
    std::size_t capacity = 0;            ///< the number of experts that the rank may still take in
                                         ///< this round
  };
  struct link {
    std::size_t rank;
    std::size_t leaving;                 ///< index into `changes::leaving`
    std::optional<std::uint32_t> comes;  ///< empty for the first link until the end
  };

  void drop_vacant_pairs(changes& rank) const {
    for (;;) {
      const auto comes = std::ranges::find(rank.coming, vacant);
      const auto leaves =
          std::ranges::find_if(rank.leaving, [&](std::uint32_t p) { return table_[p] == vacant; });
      if (comes == rank.coming.end() || leaves == rank.leaving.end()) return;
      rank.coming.erase(comes);
      rank.leaving.erase(leaves);
    }
  }

  [[nodiscard]] bool can_take(std::size_t rank) const noexcept {
    return ranks_[rank].capacity != 0 && !ranks_[rank].coming.empty();
  }
  [[nodiscard]] bool is_elsewhere(std::uint32_t expert) const noexcept {
    return expert == vacant || copies_[expert] > 1;
  }

  /// Finds the chain that begins at `rank`, and applies it. Returns whether there is one.
  bool take_chain(std::size_t rank, move_round& round) {
    std::vector<link> chain{{rank, 0, std::nullopt}};
    for (;;) {
      link& last = chain.back();
      const auto& leaving = ranks_[last.rank].leaving;
      const auto easy = std::ranges::find_if(
          leaving, [&](std::uint32_t place) { return is_elsewhere(table_[place]); });
      if (easy != leaving.end()) {
        last.leaving = static_cast<std::size_t>(easy - leaving.begin());
        break;
      }
      const std::uint32_t only = table_[leaving[last.leaving]];
      const auto closes = std::ranges::find_if(
          chain, [&](const link& each) { return is_to_have(each.rank, only); });
      if (closes != chain.end()) {
        closes->comes = only;
        chain.erase(chain.begin(), closes);
        break;
      }
      std::size_t next = 0;
      while (next < ranks_.size() && !(can_take(next) && is_to_have(next, only))) ++next;
      if (next == ranks_.size()) return false;
      chain.push_back({next, 0, only});
    }
    if (!chain.front().comes) chain.front().comes = ranks_[chain.front().rank].coming.front();
    for (const link& each : chain) apply(each, round);
    return true;
  }

  [[nodiscard]] bool is_to_have(std::size_t rank, std::uint32_t expert) const noexcept {
    const auto& coming = ranks_[rank].coming;
    return std::ranges::find(coming, expert) != coming.end();
  }

  void apply(const link& change, move_round& round) {
    changes& rank = ranks_[change.rank];
    const auto leaves = rank.leaving.begin() + static_cast<std::ptrdiff_t>(change.leaving);
    const std::uint32_t place = *leaves;
    const std::uint32_t comes = *change.comes;
    rank.leaving.erase(leaves);
    rank.coming.erase(std::ranges::find(rank.coming, comes));
    --rank.capacity;
    if (table_[place] != vacant) --copies_[table_[place]];
    table_[place] = comes;
    if (comes == vacant) return;
    ++copies_[comes];
    round.moves.push_back({comes, 0, place});
  }

  /// Sets `from` of all moves, by the map `old` before the round.
  static void find_sources(const expert_map& places, std::span<const std::uint32_t> old,
                           move_round& round) {
    std::vector<std::size_t> given(places.ranks());
    for (expert_move& move : round.moves) {
      auto best = static_cast<std::uint32_t>(old.size());
      for (std::uint32_t p = 0; p < old.size(); ++p) {
        if (old[p] != move.expert || places.is_gone(rank_id{places.holder(p)})) continue;
        if (best == old.size() || given[places.holder(p)] < given[places.holder(best)]) best = p;
      }
      move.from = best;
      ++given[places.holder(best)];
    }
  }

  std::vector<changes> ranks_;
  std::vector<std::uint32_t> table_;  ///< logical expert of each physical one
  std::vector<std::size_t> copies_;   ///< the number of copies of each logical expert at living
                                      ///< ranks
};

}  // namespace detail

PEERBUS_INLINE std::vector<move_round> plan_moves(const expert_map& before,
                                                  std::span<const std::uint32_t> wanted,
                                                  std::size_t spare) {
  detail::move_planner planner{before, wanted};
  std::vector<move_round> rounds;
  for (std::size_t left = planner.changes_left(); left != 0; left = planner.changes_left()) {
    rounds.push_back(planner.next(before, spare));
    if (planner.changes_left() == left) planner.refuse();
  }
  return rounds;
}

}  // namespace peerbus::moe
