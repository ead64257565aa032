// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

class star;
class state_page;

/// A rank that is a process. Rank 0 has a connection to each other rank, which has one to rank 0.
class star_bootstrap : public bootstrap {
 public:
  star_bootstrap(const star_bootstrap&) = delete;
  star_bootstrap& operator=(const star_bootstrap&) = delete;
  PEERBUS_INLINE ~star_bootstrap() override;

  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }

  [[nodiscard]] bool can_go_on() const noexcept override { return true; }
  [[nodiscard]] PEERBUS_INLINE std::vector<contribution> allgather(contribution own_part,
                                                                   deadline until,
                                                                   std::string_view doing) override;

 protected:
  /// Takes the connections without using them. Call `meet` next.
  star_bootstrap(rank_id rank, std::size_t size, const state_page& states,
                 std::unique_ptr<star> connections);

  /// Collective: exchanges the usable cores, and pidfds by which ranks see each other's death at
  /// once.
  /// Throws: `error` as `allgather`.
  void meet(const state_page& states, deadline until);

 private:
  [[nodiscard]] PEERBUS_INLINE std::unique_ptr<bootstrap> make_subgroup(
      const std::vector<rank_id>& ranks, rank_id member, deadline until) override;

  std::unique_ptr<star> star_;
};

/// A rank whose constructor meets the other ranks. Its destructor tells them that this rank has
/// left, or has failed if an exception destroys it.
class joined_star : public star_bootstrap {
 public:
  /// Collective: meets the other ranks.
  /// Throws: `error` as `allgather`.
  joined_star(rank_id rank, std::size_t size, const state_page& states,
              std::unique_ptr<star> connections, deadline until);
  joined_star(const joined_star&) = delete;
  joined_star& operator=(const joined_star&) = delete;
  PEERBUS_INLINE ~joined_star() override;

 private:
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/detail/star_bootstrap.ipp>  // IWYU pragma: keep
#endif
