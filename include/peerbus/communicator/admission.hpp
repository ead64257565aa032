// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

namespace detail {

class admission_place;
class newcomers;

}  // namespace detail

/// Takes processes into a running group that call `join_running`: in place of ranks that are gone,
/// or that were never there (bootstrap/with_vacancies.hpp). The number of ranks that a group may
/// have is fixed at its start. The lowest living member listens for them, so that any may
/// die.
///
/// The group goes on in new memory: members and newcomers make a bootstrap together, and on it the
/// communicators and exchanges that they need. The ranks keep their numbers, or in a mesh over TCP
/// their slots (`bootstrap::slot`), by which they are numbered anew. Until all have made
/// them, the old ones stay as they are, and if anything fails they go on to be used. Keep one
/// admission as long as its communicator is used: newcomers wait at it between its calls.
///
///     peerbus::admission door{comm, place};
///     // at the same batch on all members, every so many batches:
///     if (auto next = door.admit([](std::unique_ptr<peerbus::bootstrap> boot) {
///           return std::make_unique<serving>(std::move(boot));
///         })) {
///       now = std::move(*next);  // and a new `admission` on its communicator
///     }
///
/// Threads: those of `rank_group`'s collectives.
class admission {
 public:
  ///@{
  /// Members of `group`, which outlives this, give the same `place`: `address`, `port` and `job`
  /// say where newcomers call. Its other members are not used. Ranks that met over TCP as a mesh
  /// listen at `port` of the host of the member, with the secret by which they met.
  /// Throws: `error` invalid_argument for a group of more than `most_ranks`; system.
  admission(rank_group& group, launch_settings place);
  admission(rank_group& group, const tcp_settings& place);
  ///@}
  admission(const admission&) = delete;
  admission& operator=(const admission&) = delete;
  ~admission();

  /// The most ranks of a group.
  static constexpr std::size_t most_ranks = 6'000;

  /// If processes wait, takes them in. Collective among the members of the view, between two
  /// operations. `make(boot)` gets the bootstrap of the new group, as a `std::unique_ptr`, and
  /// returns an object that owns it. It is collective among the members and the newcomers.
  /// Returns: the object, or nothing if nobody waits, if a rank could not make it, or if no process
  /// can listen at the place; `refusal()` then has the reason. The same on all members.
  /// Cost: if nobody waits, one `gather_in_view`. Else another one, a meeting of the ranks as by
  /// `environment_bootstrap`, three allgathers, and what `make` costs.
  /// Throws: `error` as `rank_group::gather_in_view`, if a member dies before all could decide:
  /// then continue without it; mismatch if members give different places.
  template <class Make>
  [[nodiscard]] auto admit(Make&& make, std::optional<deadline> until = std::nullopt)
      -> std::optional<std::invoke_result_t<Make&, std::unique_ptr<bootstrap>>> {
    const deadline limit = until.value_or(group_->default_deadline());
    std::optional<std::invoke_result_t<Make&, std::unique_ptr<bootstrap>>> made;
    if (!is_anybody_waiting(limit)) return made;
    bootstrap* met = nullptr;
    const auto objection = objection_of("what a larger group needs", [&] {
      auto boot = meet(limit);
      met = boot.get();
      made.emplace(make(std::move(boot)));
    });
    if (all_have_made(objection, limit))
      confirm(*met, limit);
    else
      made.reset();
    return made;
  }

  /// Returns why the latest `admit` took in nobody who waited, and on which rank. Empty if nobody
  /// waited or if it did.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

 private:
  [[nodiscard]] bool is_host() const noexcept;
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Agrees on who waits, and where all meet. Returns whether anybody waits.
  [[nodiscard]] bool is_anybody_waiting(deadline until);
  /// Agrees on the slots of those who wait.
  void agree_on_newcomers(deadline until);
  /// Agrees on where all meet.
  void agree_on_place(deadline until);
  /// Meets the other members and those who wait.
  [[nodiscard]] std::unique_ptr<bootstrap> meet(deadline until);
  /// Returns whether no member has an objection.
  [[nodiscard]] bool all_have_made(const std::optional<error>& objection, deadline until);
  /// Tells the newcomers that they are members.
  void confirm(bootstrap& met, deadline until);

  struct meeting;
  /// Tells those who wait where all meet, on the member that listens.
  static void tell_newcomers(meeting& now);

  rank_group* group_;
  launch_settings place_;
  std::shared_ptr<detail::admission_place> way_;
  std::unique_ptr<detail::newcomers> newcomers_;  ///< on a member that listens
  std::unique_ptr<meeting> now_;                  ///< of the `admit` that is under way
  std::string refusal_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/admission.ipp>  // IWYU pragma: keep
#endif
