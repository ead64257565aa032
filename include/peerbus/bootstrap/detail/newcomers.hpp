// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/build_version.hpp>
#include <peerbus/bootstrap/detail/answers.hpp>
#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Returns the settings of the place where processes call that join a running group: the group's
/// own, but for the name of the job, so that the ranks of another start do not meet there.
inline launch_settings place_to_join(launch_settings settings) {
  settings.job += "/running";
  return settings;
}

/// The processes that wait to join a running group, as one of its members hears them. Each has a
/// connection to the member, which stays when it is admitted. Threads: one.
class newcomers {
 public:
  /// A member on its way to the place, known by the number that its hello has.
  struct member {
    rank_id rank;
    hello::process_id process;
  };
  /// A connection to each rank of the new group, in the order of `ranks`, and the file of its
  /// states. The first rank is the member that admits, and has no connection.
  struct admitted {
    std::vector<rank_id> ranks;
    std::vector<connection> links;
    unique_fd states;
  };

  /// `members` are those of the running group; `settings` are those of this member.
  newcomers(std::shared_ptr<const membership> members, const launch_settings& settings)
      : members_{std::move(members)},
        place_{place_to_join(settings)},
        callers_{place_, members_->size() + 64} {}

  /// Listens, if this process does not yet.
  /// Throws: `error` system, also if another process listens there.
  void open() {
    if (!listeners_.empty()) return;
    listeners_ = place_.open();
    if (listeners_.empty())
      throw error{errc::system, concat("admission: another process listens at ", place_.describe(),
                                       ", expected a port or job of this group's own")};
  }

  /// Makes room for another group's member to listen. Who waits calls again.
  void close() noexcept {
    // A child by fork may hold copies.
    for (const unique_fd& listener : listeners_) ::shutdown(listener.get(), SHUT_RDWR);
    for (caller& each : waiting_) each.link.hang_up();
    listeners_.clear();
    waiting_.clear();
  }

  /// Hears who has come and who has gone, for at most `pause`. Refuses whom it cannot admit.
  void hear(std::chrono::milliseconds pause, const std::vector<bool>& vacant,
            std::span<const member> awaited = {}) {
    // A hello is there as soon as its sender is accepted.
    if (hear_once(pause, vacant, awaited)) (void)hear_once({}, vacant, awaited);
  }

  /// Returns for each rank whether a process waits to become it, of those that are `vacant`.
  [[nodiscard]] std::vector<bool> waiting(const std::vector<bool>& vacant) const {
    std::vector<bool> found(vacant.size());
    for (const caller& each : waiting_)
      if (vacant[each.rank.index()] && !each.is_member) found[each.rank.index()] = true;
    return found;
  }

  /// Waits for the connections of the other `awaited` members, and admits those that `joining`
  /// names with them: sends all of them the ranks of the new group and a page for their states. The
  /// others keep waiting.
  /// Throws: `error` peer_dead, timed_out; all that have come get the same error.
  [[nodiscard]] admitted admit(rank_id own, std::span<const member> awaited,
                               const std::vector<bool>& vacant, const std::vector<bool>& joining,
                               deadline until) {
    admitted group;
    const auto joining_count = std::count(joining.begin(), joining.end(), true);
    try {
      require_all(awaited, vacant, joining, until);
      group.states =
          state_page::make_file(1 + awaited.size() + static_cast<std::size_t>(joining_count));
    } catch (const std::exception&) {
      const error problem = objection_in_flight("the ranks that meet");
      refuse_all({problem.code(), std::string{problem.text()}}, joining);
      throw;
    }
    group.ranks.push_back(own);
    group.links.emplace_back();
    for (const bool members_first : {true, false})
      for (const rank_id rank : all_ranks{joining.size()})
        if (caller* const found = find(rank, members_first);
            found != nullptr && (members_first || joining[rank.index()])) {
          group.ranks.push_back(rank);
          group.links.push_back(std::move(found->link));
        }
    std::erase_if(waiting_, [](const caller& each) { return !each.link; });
    try {
      welcome_all(group);
    } catch (const std::exception&) {
      close();  // so that nobody calls again and waits
      throw;
    }
    return group;
  }

 private:
  struct caller {
    rank_id rank;
    hello::process_id process;
    connection link;
    bool is_member;
  };

  /// Finds the caller who is, or wants to become, `rank`.
  [[nodiscard]] caller* find(rank_id rank, bool is_member) noexcept {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const caller& each) {
      return each.rank == rank && each.is_member == is_member;
    });
    return found == waiting_.end() ? nullptr : &*found;
  }

  /// Does as `hear`. Returns whether it has accepted a connection.
  bool hear_once(std::chrono::milliseconds pause, const std::vector<bool>& vacant,
                 std::span<const member> awaited) {
    std::vector<pollfd> entries;
    entries.reserve(listeners_.size() + callers_.size() + waiting_.size());
    for (const unique_fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    callers_.append_entries(entries);
    const std::size_t first_waiting = listeners_.size() + callers_.size();
    for (const caller& each : waiting_) entries.push_back({each.link.get(), POLLIN, 0});
    poll_for(entries, deadline::never(), pause);
    // Nobody says anything after the hello, so an event is the end of a connection.
    std::size_t next = first_waiting;
    std::erase_if(waiting_, [&](const caller&) { return entries[next++].revents != 0; });
    const auto called = std::span<const pollfd>{entries}.subspan(listeners_.size());
    for (auto& heard : callers_.hear_all(called.first(callers_.size())))
      take(std::move(heard), vacant, awaited);
    const std::size_t before = callers_.size();
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (entries[i].revents != 0) callers_.accept_some(listeners_[i]);
    return callers_.size() != before;
  }

  void take(callers::member heard, const std::vector<bool>& vacant,
            std::span<const member> awaited) {
    const hello& greeting = heard.greeting;
    // One that was killed may have been heard after its end.
    std::erase_if(waiting_, [](const caller& each) { return each.link.has_ended(); });
    const bool is_member = std::any_of(awaited.begin(), awaited.end(), [&](const member& each) {
      return each.rank.index() == greeting.rank && each.process == greeting.process;
    });
    if (!is_member)
      if (const std::string why = objection_to(heard, vacant); !why.empty()) {
        refuse(heard.link, {errc::mismatch, why});
        return;
      }
    waiting_.push_back(
        {rank_id{greeting.rank}, greeting.process, std::move(heard.link), is_member});
  }

  /// Returns the reason to refuse a process that wants to join, or an empty text. One that was
  /// started again may come before the group has gone on without its predecessor.
  [[nodiscard]] std::string objection_to(const callers::member& heard,
                                         const std::vector<bool>& vacant) {
    const hello& greeting = heard.greeting;
    const rank_id rank{greeting.rank};
    if (greeting.version != build_version{})
      return concat(rank, " is of another build (", greeting.version, ") than the group (",
                    build_version{}, "): expected one build of peerbus on all ranks");
    if (greeting.size != vacant.size())
      return concat(rank, " was started with a world size of ", greeting.size,
                    ", and the group has ", vacant.size(), ": expected the same on all ranks");
    if (rank.index() >= vacant.size())
      return concat(rank, " came, expected ranks below ", vacant.size());
    if (!vacant[rank.index()] &&
        (rank == members_->rank() || members_->state(rank) == rank_state::running))
      return concat(rank, " came to join (", place_.describe_caller(&heard.link),
                    "), and runs in the group: expected a rank that is not there");
    if (const caller* const other = find(rank, false))
      return concat(rank, " came twice (", place_.describe_caller(&other->link), " and ",
                    place_.describe_caller(&heard.link), "): expected each rank once");
    return {};
  }

  /// Waits for the members. If one has ended, or one that joins, the others come all the same, so
  /// that they are told.
  /// Throws: `error` peer_dead, timed_out.
  void require_all(std::span<const member> awaited, const std::vector<bool>& vacant,
                   const std::vector<bool>& joining, deadline until) {
    const auto span = until.remaining();
    for (;;) {
      std::vector<rank_id> missing;
      std::string gone;
      for (const member& each : awaited) {
        if (find(each.rank, true) != nullptr) continue;
        if (members_->state(each.rank) == rank_state::running)
          missing.push_back(each.rank);
        else
          gone = members_->fate(each.rank);
      }
      for (const rank_id rank : all_ranks{joining.size()})
        if (joining[rank.index()] && find(rank, false) == nullptr)
          gone = concat("the process that joins as ", rank, " is gone");
      if (missing.empty() && gone.empty()) return;
      if (missing.empty()) throw error{errc::peer_dead, concat("admission: ", gone)};
      if (until.expired())
        throw error{errc::timed_out,
                    concat("admission: ", describe_ranks(missing), " did not come to ",
                           place_.describe(), " within ", describe_span(span))};
      hear(poll_pause, vacant, awaited);
    }
  }

  void refuse_all(const failure& why, const std::vector<bool>& joining) {
    std::erase_if(waiting_, [&](caller& each) {
      if (!each.is_member && !joining[each.rank.index()]) return false;
      refuse(each.link, why);
      return true;
    });
  }

  /// Sends the ranks of the group, 4 bytes each in the order of the host, and the file.
  static void welcome_all(admitted& group) {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(group.ranks.size());
    for (const rank_id rank : group.ranks)
      numbers.push_back(static_cast<std::uint32_t>(rank.index()));
    const int files[] = {group.states.get()};
    const welcome answer{std::as_bytes(std::span{numbers}), files};
    for (connection& link : group.links)
      if (link) answer.send(link, deadline::after(std::chrono::seconds{1}));
  }

  std::shared_ptr<const membership> members_;
  local_rendezvous_place place_;
  std::vector<unique_fd> listeners_;
  callers callers_;
  std::vector<caller> waiting_;
};

}  // namespace peerbus::detail
