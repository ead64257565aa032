// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/answers.hpp>
#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The part of rank 0 in a rendezvous. It listens at the place until all other ranks have come.
class rendezvous_host {
 public:
  /// Opens the place, which must outlive this object.
  /// Throws: `error` mismatch if another process answers as rank 0 there, system.
  rendezvous_host(rendezvous_place& place, const rendezvous& ours)
      : place_{place},
        ours_{ours},
        callers_{place, place.channels() * ours.size + 64},
        seats_(ours.size) {
    for (seat& empty : seats_) empty.connections.resize(place.channels());
    for (;;) {
      listeners_ = place_.open();
      if (!listeners_.empty()) return;
      challenge_other_host();
    }
  }
  rendezvous_host(const rendezvous_host&) = delete;
  rendezvous_host& operator=(const rendezvous_host&) = delete;
  ~rendezvous_host() = default;

  /// Waits for all ranks and sends `files` to each of them. If rank 0 itself has failed with
  /// `own_failure`, sends it to the ranks that come, and throws it.
  /// Returns: the connections by rank and channel; those of rank 0 are empty.
  /// Throws: `error` timed_out, mismatch, peer_dead, system. The ranks that came get the same
  /// error.
  std::vector<std::vector<connection>> gather(std::span<const int> files,
                                              const std::optional<failure>& own_failure = {}) {
    std::optional<failure> why;
    try {
      why = wait_for_all(own_failure);
    } catch (const error& caught) {
      refuse_all({caught.code(), concat("rank 0 failed while the ranks met: ", caught.text())});
      throw;
    }
    if (why) {
      refuse_all(*why);
      throw error{why->code, why->text};
    }
    // A program may meet again at the same place, so the place is freed before any rank can come
    // back.
    listeners_.clear();
    welcome_all(files);
    std::vector<std::vector<connection>> met;
    met.reserve(seats_.size());
    for (seat& taken : seats_) met.push_back(std::move(taken.connections));
    return met;
  }

 private:
  struct seat {
    std::vector<connection> connections;
    std::size_t filled = 0;
    hello::process_id process{};

    [[nodiscard]] bool is_complete() const noexcept { return filled == connections.size(); }
  };

  /// Sends a hello to the process that already listens at the place. There is such a process if two
  /// processes were started as rank 0, or if two groups meet at one place. By the hello, that
  /// process and the ranks that it has gathered learn of the conflict. If it goes away instead of
  /// answering, the place becomes free.
  void challenge_other_host() const {
    try {
      const auto soon = deadline::after(std::chrono::milliseconds{100});
      (void)rendezvous_joiner{place_, {ours_.rank, ours_.size, earlier(soon, ours_.until)}}.join(0);
    } catch (const error& caught) {
      const bool may_go = caught.code() == errc::peer_dead || caught.code() == errc::timed_out;
      if (!may_go)
        throw error{caught.code(), concat("rank 0 cannot listen at ", place_.describe(),
                                          ", which is in use: ", caught.text())};
    }
    if (ours_.until.expired())
      throw error{
          errc::system,
          concat("the meeting point ", place_.describe(), " is in use by another process since ",
                 describe_span(ours_.span), ", expected a MASTER_PORT of this group's own")};
  }

  std::optional<failure> wait_for_all(const std::optional<failure>& own_failure) {
    std::optional<failure> why;
    auto until = ours_.until;
    const auto object = [&](std::optional<failure> objection) {
      if (!objection || why) return;
      why = std::move(objection);
      // Other ranks may still be on their way. They get the failure too, if they come within this
      // time, so that they do not wait in vain.
      until = earlier(until, deadline::after(std::chrono::milliseconds{500}));
    };
    object(own_failure);
    // For each rank two connections, or a connection and a descriptor of its process.
    if (const auto lack = describe_lack_of_descriptors(2 * ours_.size, listeners_.back());
        !lack.empty())
      object(failure{errc::invalid_argument, concat("rank 0 of ", ours_.size, ": ", lack)});
    std::vector<pollfd> entries;
    std::size_t gone = 0;
    while (1 + complete_ + std::max(turned_away_.size(), gone) < ours_.size) {
      const bool last_poll = until.expired();
      entries.clear();
      for (const unique_fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
      callers_.append_entries(entries);
      const std::size_t first_seated = listeners_.size() + callers_.size();
      // After a failure nobody's end matters, and poll(2) takes no more entries than a process may
      // open files.
      const bool are_watched = !why;
      for (const seat& taken : seats_)
        for (const connection& link : taken.connections)
          if (are_watched) entries.push_back({link.get(), POLLIN, 0});
      poll_for(entries, earlier(until, callers_.next_end()), ours_.pause());

      // A rank sends nothing between its hello and the welcome, so an event means that the
      // connection has ended.
      const auto seated = std::span{entries}.subspan(first_seated);
      for (const rank_id peer : all_ranks{are_watched ? ours_.size : 0}) {
        const auto of_peer = seated.subspan(peer.index() * place_.channels(), place_.channels());
        if (std::any_of(of_peer.begin(), of_peer.end(),
                        [](const pollfd& entry) { return entry.revents != 0; }))
          object(unseat(peer));
      }
      const auto called = std::span<const pollfd>{entries}.subspan(listeners_.size());
      for (auto& member : callers_.hear_all(called.first(callers_.size()))) object(take(member));
      for (std::size_t i = 0; i < listeners_.size(); ++i)
        if (entries[i].revents != 0) callers_.accept_some(listeners_[i]);
      // A member that has its seat ends by its connection. The others are on their way.
      gone = 0;
      for (const rank_id peer : all_ranks{ours_.size}) {
        if (peer.index() == 0 || seats_[peer.index()].is_complete() ||
            !ours_.members.has_ended(peer))
          continue;
        ++gone;
        object(was_gone(peer));
      }
      if (last_poll) break;
    }
    if (!why && 1 + complete_ < ours_.size) return absent();
    return why;
  }

  /// Frees the seat of a rank that is gone.
  /// Returns: the failure that names the rank.
  failure unseat(rank_id peer) {
    seat& left = seats_[peer.index()];
    if (left.is_complete()) --complete_;
    turned_away_.push_back(std::move(left.connections[0]));
    left = {};
    left.connections.resize(place_.channels());
    return was_gone(peer);
  }

  [[nodiscard]] failure was_gone(rank_id peer) const {
    return {errc::peer_dead, concat(peer, " of ", ours_.size, " was gone before all ranks had ",
                                    "come to ", place_.describe())};
  }

  /// Gives a rank its seat, or adds a connection to its seat. The connections of a rank may come in
  /// any order. Returns the failure if the caller is refused.
  std::optional<failure> take(callers::member& caller) {
    if (std::string why = objection_to(caller); !why.empty()) {
      // A process is informed on its first connection only.
      if (caller.greeting.channel != 0) return std::nullopt;
      turned_away_.push_back(std::move(caller.link));
      return failure{errc::mismatch, std::move(why)};
    }
    const hello& greeting = caller.greeting;
    place_.tune(caller.link, greeting.channel);
    seat& taken = seats_[greeting.rank];
    taken.process = greeting.process;
    taken.connections[greeting.channel] = std::move(caller.link);
    ++taken.filled;
    if (taken.is_complete()) ++complete_;
    return std::nullopt;
  }

  /// Returns the reason to refuse a caller, or an empty text.
  [[nodiscard]] std::string objection_to(const callers::member& caller) const {
    const hello& greeting = caller.greeting;
    const rank_id rank{greeting.rank};
    if (greeting.version != build_version{})
      return concat(rank, " is of another build (", greeting.version, ") than rank 0 (",
                    build_version{}, "): expected one build of peerbus on all ranks");
    if (greeting.size != ours_.size)
      return concat(rank, " was started with a world size of ", greeting.size, ", rank 0 with ",
                    ours_.size, ": expected the same on all ranks");
    if (rank.index() >= ours_.size) return concat(rank, " came, expected ranks below ", ours_.size);
    if (greeting.channel >= place_.channels())
      return concat(rank, " made a connection number ", greeting.channel, ", expected ",
                    place_.channels(), " connections of each rank");
    const seat& wanted = seats_[rank.index()];
    const bool is_free = wanted.filled == 0 || (wanted.process == greeting.process &&
                                                !wanted.connections[greeting.channel]);
    if (rank.index() != 0 && is_free) return {};
    const auto first = std::find_if(wanted.connections.begin(), wanted.connections.end(),
                                    [](const connection& link) { return static_cast<bool>(link); });
    return concat(rank, " came twice (",
                  place_.describe_caller(first == wanted.connections.end() ? nullptr : &*first),
                  " and ", place_.describe_caller(&caller.link), ") to ", place_.describe(),
                  ": expected each rank once, and a MASTER_PORT of its own for each group");
  }

  [[nodiscard]] failure absent() const {
    std::vector<rank_id> ranks;
    for (const rank_id peer : all_ranks{ours_.size})
      if (peer.index() != 0 && !seats_[peer.index()].is_complete()) ranks.push_back(peer);
    return {errc::timed_out,
            concat(describe_ranks(ranks), " of ", ours_.size, " did not join within ",
                   describe_span(ours_.span), " at ", place_.describe(),
                   place_.describe_addresses(), callers_.describe_strangers())};
  }

  void refuse_all(const failure& why) {
    for (seat& taken : seats_)
      if (taken.connections[0]) refuse(taken.connections[0], why);
    for (connection& link : turned_away_)
      if (link) refuse(link, why);
  }

  /// Sends the welcome and `files` to all ranks.
  void welcome_all(std::span<const int> files) {
    const welcome answer{{}, files};
    const auto patience = deadline::after(
        std::max<deadline::clock::duration>(ours_.until.remaining(), std::chrono::seconds{1}));
    for (seat& taken : seats_)
      if (taken.filled != 0) answer.send(taken.connections[0], patience);
  }

  rendezvous_place& place_;
  rendezvous ours_;
  std::vector<unique_fd> listeners_;
  callers callers_;
  std::vector<seat> seats_;
  std::vector<connection> turned_away_;  ///< one connection for each process
  std::size_t complete_ = 0;
};

}  // namespace peerbus::detail
