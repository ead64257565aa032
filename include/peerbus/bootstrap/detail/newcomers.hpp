// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/build_version.hpp>
#include <peerbus/bootstrap/detail/answers.hpp>
#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The processes that wait to join a running group, seen by the member that listens. Each wants a
/// slot of the group and has a connection to this member.
/// Threads: one.
class newcomers {
 public:
  /// Makes an empty list of processes that call at `place` to join a group of `slots` slots.
  /// `place` must outlive this object.
  newcomers(rendezvous_place& place, std::size_t slots)
      : place_{place}, slots_{slots}, callers_{place, slots + 64} {}

  /// Begins to listen, if this process does not listen yet.
  /// Throws: `error` system, also if another process listens there.
  void open() {
    if (!listeners_.empty()) return;
    listeners_ = place_.open();
    if (listeners_.empty())
      throw error{errc::system, concat("admission: another process listens at ", place_.describe(),
                                       ", expected a port or job of this group's own")};
  }

  /// Stops listening, so that another member can listen. Processes that wait are disconnected and
  /// call again.
  void close() noexcept {
    // A child by fork may hold copies.
    for (const unique_fd& listener : listeners_) ::shutdown(listener.get(), SHUT_RDWR);
    for (caller& each : waiting_) each.link.hang_up();
    listeners_.clear();
    waiting_.clear();
  }

  /// Takes in processes that have come, and drops those that have gone. Refuses those that cannot
  /// join, for example because a rank that runs has their slot. `is_taken`: [slots].
  void hear(const std::vector<bool>& is_taken) {
    // A hello is often there as soon as its sender is accepted.
    if (hear_once(is_taken)) (void)hear_once(is_taken);
  }

  /// Returns for each slot whether it is `vacant`, [slots], and a process waits for it.
  [[nodiscard]] std::vector<bool> waiting(const std::vector<bool>& vacant) const {
    std::vector<bool> found(slots_);
    for (const caller& each : waiting_)
      if (vacant[each.slot.index()]) found[each.slot.index()] = true;
    return found;
  }

  /// Takes the processes that wait for the slots in `joining`. `waiting` must have found them since
  /// the latest `hear`. The others keep waiting.
  /// Returns: their connections, in the order of their slots.
  [[nodiscard]] std::vector<connection> take(const std::vector<bool>& joining) {
    std::vector<connection> taken;
    for (const rank_id slot : all_ranks{slots_})
      if (caller* const found = find(slot); found != nullptr && joining[slot.index()])
        taken.push_back(std::move(found->link));
    std::erase_if(waiting_, [](const caller& each) { return !each.link; });
    return taken;
  }

 private:
  struct caller {
    rank_id slot;
    connection link;
  };

  [[nodiscard]] caller* find(rank_id slot) noexcept {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const caller& each) { return each.slot == slot; });
    return found == waiting_.end() ? nullptr : &*found;
  }

  /// Does one round of `hear`.
  /// Returns: whether a connection was accepted.
  bool hear_once(const std::vector<bool>& is_taken) {
    std::vector<pollfd> entries;
    entries.reserve(listeners_.size() + callers_.size() + waiting_.size());
    for (const unique_fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    callers_.append_entries(entries);
    const std::size_t first_waiting = listeners_.size() + callers_.size();
    for (const caller& each : waiting_) entries.push_back({each.link.get(), POLLIN, 0});
    poll_for(entries, deadline::never(), {});
    // Processes say nothing after the hello, so an event is the end of a connection.
    std::size_t next = first_waiting;
    std::erase_if(waiting_, [&](const caller&) { return entries[next++].revents != 0; });
    const auto called = std::span<const pollfd>{entries}.subspan(listeners_.size());
    for (auto& heard : callers_.hear_all(called.first(callers_.size())))
      add(std::move(heard), is_taken);
    const std::size_t before = callers_.size();
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (entries[i].revents != 0) callers_.accept_some(listeners_[i]);
    return callers_.size() != before;
  }

  void add(callers::member heard, const std::vector<bool>& is_taken) {
    // A process that was killed may have been heard after its end.
    std::erase_if(waiting_, [](const caller& each) { return each.link.has_ended(); });
    if (const std::string why = objection_to(heard, is_taken); !why.empty())
      refuse(heard.link, {errc::mismatch, why});
    else
      waiting_.push_back({rank_id{heard.greeting.rank}, std::move(heard.link)});
  }

  /// Returns the reason to refuse a process that wants to join, or an empty text. If a process was
  /// started again, it may come before the group has gone on without its predecessor.
  [[nodiscard]] std::string objection_to(const callers::member& heard,
                                         const std::vector<bool>& is_taken) {
    const hello& greeting = heard.greeting;
    const rank_id rank{greeting.rank};
    if (greeting.version != build_version{})
      return concat(rank, " is of another build (", greeting.version, ") than the group (",
                    build_version{}, "): expected one build of peerbus on all ranks");
    if (greeting.size != slots_)
      return concat(rank, " was started with a world size of ", greeting.size,
                    ", and the group has ", slots_, ": expected the same on all ranks");
    if (rank.index() >= slots_) return concat(rank, " came, expected ranks below ", slots_);
    if (is_taken[rank.index()])
      return concat(rank, " came to join (", place_.describe_caller(&heard.link),
                    "), and runs in the group: expected a rank that is not there");
    if (const caller* const other = find(rank))
      return concat(rank, " came twice (", place_.describe_caller(&other->link), " and ",
                    place_.describe_caller(&heard.link), "): expected each rank once");
    return {};
  }

  rendezvous_place& place_;
  std::size_t slots_;
  std::vector<unique_fd> listeners_;
  callers callers_;
  std::vector<caller> waiting_;
};

}  // namespace peerbus::detail
