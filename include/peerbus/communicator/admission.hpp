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

/// The admission of processes that call `join_running` to a running group: in place of ranks that
/// are gone, or that were never there (bootstrap/with_vacancies.hpp). The largest number of ranks
/// of a group is fixed at its start. The lowest living member listens for newcomers, so any member
/// may die.
///
/// The group continues in new memory: members and newcomers make a bootstrap together, and on it
/// the communicators and exchanges that they need. Ranks keep their numbers. In a mesh over TCP
/// they keep their slots (`bootstrap::slot`) instead, and are renumbered in the order of slots.
/// Until all ranks have made the new objects, the old ones remain unchanged, and if anything fails
/// they stay in use. Keep one admission as long as its communicator is used: newcomers wait at it
/// between its calls.
///
///     peerbus::admission door{comm, place};
///     // at the same batch on all members, every so many batches:
///     if (auto next = door.admit([](std::unique_ptr<peerbus::bootstrap> boot) {
///           return std::make_unique<serving>(std::move(boot));
///         })) {
///       now = std::move(*next);  // and a new `admission` on its communicator
///     }
///
/// Threads: as the collectives of `rank_group`.
class admission {
 public:
  ///@{
  /// Makes the admission of `group`, which must outlive it. All members give the same `place`:
  /// `address`, `port` and `job` say where newcomers call, and its other members are not used.
  /// Ranks that met over TCP as a mesh listen at `port` of their own host, with the secret by which
  /// they met.
  /// Throws: `error` invalid_argument for a group of more than `most_ranks`; system.
  admission(rank_group& group, launch_settings place);
  admission(rank_group& group, const tcp_settings& place);
  ///@}
  admission(const admission&) = delete;
  admission& operator=(const admission&) = delete;
  ~admission();

  /// The largest number of ranks of a group.
  static constexpr std::size_t most_ranks = 6'000;

  /// Takes in the processes that wait, if any. Collective among the members of the view, between
  /// two operations. `make(boot)` gets the bootstrap of the new group, as a `std::unique_ptr`, and
  /// returns an object that owns it. It is collective among the members and the newcomers.
  /// Returns: the object, or nothing if no process waits, if a rank could not make it, or if no
  /// process can listen at the place; `refusal()` then has the reason. The same on all members.
  /// Cost: if no process waits, one `gather_in_view`. Otherwise a second one, a meeting of the
  /// ranks as by `environment_bootstrap`, three allgathers, and the cost of `make`.
  /// Throws: `error` mismatch if members give different places; as `rank_group::gather_in_view` if
  /// a member dies before all could decide: then continue without it.
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

  /// Returns why the latest `admit` took in no waiting process, and on which rank. Empty if no
  /// process waited or if it took processes in.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

 private:
  [[nodiscard]] bool is_host() const noexcept;
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Agrees on the processes that wait, and on the meeting place. Returns whether processes wait
  /// and all members will meet them. If not, `refusal_` has the reason; empty if no process waits.
  [[nodiscard]] bool is_anybody_waiting(deadline until);
  /// Agrees on the slots of the processes that wait.
  void agree_on_newcomers(deadline until);
  /// Agrees on the place where members and newcomers meet.
  void agree_on_place(deadline until);
  /// Meets the other members and the processes that wait.
  [[nodiscard]] std::unique_ptr<bootstrap> meet(deadline until);
  /// Returns whether no member has an objection.
  [[nodiscard]] bool all_have_made(const std::optional<error>& objection, deadline until);
  /// Tells the newcomers that they are members.
  void confirm(bootstrap& met, deadline until);

  struct meeting;
  /// Tells the waiting processes where all ranks meet. Only the member that listens calls it.
  static void tell_newcomers(meeting& now);

  rank_group* group_;
  launch_settings place_;
  std::shared_ptr<detail::admission_place> way_;
  std::unique_ptr<detail::newcomers> newcomers_;  ///< null unless this rank listens
  std::unique_ptr<meeting> now_;                  ///< the state of the `admit` under way
  std::string refusal_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/admission.ipp>  // IWYU pragma: keep
#endif
