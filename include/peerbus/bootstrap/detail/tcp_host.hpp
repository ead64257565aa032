// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/detail/tcp_callers.hpp>
#include <peerbus/bootstrap/detail/tcp_handshake.hpp>
#include <peerbus/bootstrap/detail/tcp_join.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Rank 0 while the others come. Only callers that know the secret count for anything.
class tcp_host {
 public:
  /// Opens the port.
  /// Throws: `error` mismatch if another process says that it is rank 0 here, system.
  tcp_host(const tcp_settings& settings, std::vector<tcp_address> place, deadline until)
      : settings_{settings},
        secret_{settings.secret},
        place_{std::move(place)},
        until_{until},
        span_{until.remaining()},
        callers_{secret_, tcp_channels * settings.size + 64},
        seats_(settings.size) {
    for (;;) {
      listeners_ = listen_for_ranks(settings_, place_);
      if (!listeners_.empty()) return;
      challenge_other_host();
    }
  }
  tcp_host(const tcp_host&) = delete;
  tcp_host& operator=(const tcp_host&) = delete;
  ~tcp_host() = default;

  /// Waits for all ranks. Returns: their connections by rank, the first empty.
  /// Throws: `error` timed_out, mismatch, peer_dead, system; the ranks that came are told the same.
  std::vector<tcp_connections> gather() {
    std::optional<failure> why;
    try {
      why = wait_for_all();
    } catch (const error& caught) {
      refuse_all({caught.code(), concat("rank 0 failed while the ranks met: ", caught.text())});
      throw;
    }
    if (why) {
      refuse_all(*why);
      throw error{why->code, why->text};
    }
    // A program may meet again at the same place: the port is free before anybody can come back.
    listeners_.clear();
    welcome_all();
    std::vector<tcp_connections> met;
    met.reserve(seats_.size());
    for (seat& one : seats_) met.push_back(std::move(one.connections));
    return met;
  }

 private:
  struct seat {
    tcp_connections connections;
    std::array<std::byte, 16> instance{};

    /// The first connection comes first.
    [[nodiscard]] bool begun() const noexcept { return static_cast<bool>(connections[0]); }
    [[nodiscard]] bool complete() const noexcept {
      return static_cast<bool>(connections[tcp_channels - 1]);
    }
  };

  /// Two processes think that they are rank 0, or something else listens there. Another rank 0 is
  /// told by a hello, so that the ranks that it has gathered learn of it too. If it goes away
  /// instead of answering, the port is free.
  void challenge_other_host() const {
    try {
      const auto soon = deadline::after(std::chrono::milliseconds{100});
      (void)tcp_joiner{settings_, place_, soon.when() < until_.when() ? soon : until_}.join();
    } catch (const error& caught) {
      const bool may_go = caught.code() == errc::peer_dead || caught.code() == errc::timed_out;
      if (!may_go)
        throw error{caught.code(), concat("rank 0 cannot listen at ", describe_place(settings_),
                                          ", which is in use: ", caught.text())};
    }
    if (until_.expired())
      throw error{errc::system, concat("the port ", describe_place(settings_),
                                       " is in use by another process since ", describe_span(span_),
                                       ", expected a MASTER_PORT of this group's own")};
  }

  std::optional<failure> wait_for_all() {
    std::optional<failure> why;
    auto until = until_;
    const auto object = [&](std::optional<failure> objection) {
      if (!objection || why) return;
      why = std::move(objection);
      // Others may be on their way. They are to learn it too, not to wait for nobody.
      const auto soon = deadline::after(std::chrono::milliseconds{500});
      if (soon.when() < until.when()) until = soon;
    };
    std::vector<pollfd> entries;
    while (1 + complete_ + turned_away_.size() < settings_.size) {
      const bool last_look = until.expired();
      entries.clear();
      for (const unique_fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
      callers_.append_entries(entries);
      const std::size_t first_seated = listeners_.size() + callers_.size();
      for (const seat& one : seats_)
        for (const unique_fd& socket : one.connections)
          entries.push_back({socket.get(), POLLIN, 0});
      const auto next_end = callers_.next_end();
      poll_for(entries, next_end.when() < until.when() ? next_end : until,
               std::chrono::milliseconds{1000});

      // Nobody speaks between hello and welcome: it is the end of the connection.
      const auto seated = std::span{entries}.subspan(first_seated);
      for (const rank_id peer : all_ranks{settings_.size}) {
        const auto of_peer = seated.subspan(peer.index() * tcp_channels, tcp_channels);
        if (std::any_of(of_peer.begin(), of_peer.end(),
                        [](const pollfd& entry) { return entry.revents != 0; }))
          object(unseat(peer));
      }
      const auto called = std::span<const pollfd>{entries}.subspan(listeners_.size());
      for (auto& member : callers_.hear_all(called.first(callers_.size()))) object(take(member));
      for (std::size_t i = 0; i < listeners_.size(); ++i)
        if (entries[i].revents != 0) callers_.accept_some(listeners_[i]);
      if (last_look) break;
    }
    if (!why && 1 + complete_ < settings_.size) return absent();
    return why;
  }

  failure unseat(rank_id peer) {
    seat& left = seats_[peer.index()];
    if (left.complete()) --complete_;
    turned_away_.push_back(std::move(left.connections[0]));
    left = {};
    return {errc::peer_dead, concat(peer, " of ", settings_.size, " was gone before all ranks had ",
                                    "come to ", describe_place(settings_))};
  }

  /// Gives a rank its seat, or adds the second connection to it. Returns: why not, if so.
  std::optional<failure> take(tcp_callers::member& caller) {
    const tcp_hello& said = caller.said;
    const rank_id rank{said.rank};
    if (said.channel != tcp_channel::collectives) {
      complete_seat(rank, caller);
      return std::nullopt;
    }
    std::string why;
    if (said.version != tcp_version{})
      why = describe_other_build(rank, said.version, tcp_version{});
    else if (said.size != settings_.size)
      why = concat(rank, " was started with a world size of ", said.size, ", rank 0 with ",
                   settings_.size, ": expected the same on all ranks");
    else if (rank.index() >= settings_.size)
      why = concat(rank, " came, expected ranks below ", settings_.size);
    else if (rank.index() == 0 || seats_[rank.index()].begun())
      why = came_twice(rank, caller.socket);
    if (!why.empty()) {
      turned_away_.push_back(std::move(caller.socket));
      return failure{errc::mismatch, std::move(why)};
    }
    tune_connection(caller.socket, false);
    seats_[rank.index()].connections[0] = std::move(caller.socket);
    seats_[rank.index()].instance = said.instance;
    return std::nullopt;
  }

  /// A process that was turned away at its first connection, and has yet to hear of it, gets none.
  void complete_seat(rank_id rank, tcp_callers::member& caller) {
    if (rank.index() >= settings_.size) return;
    seat& wanted = seats_[rank.index()];
    const bool belongs = wanted.begun() && !wanted.complete() &&
                         wanted.instance == caller.said.instance &&
                         caller.said.channel == tcp_channel::watch;
    if (!belongs) return;
    tune_connection(caller.socket, true);
    wanted.connections[static_cast<std::size_t>(tcp_channel::watch)] = std::move(caller.socket);
    ++complete_;
  }

  [[nodiscard]] std::string came_twice(rank_id rank, const unique_fd& second) const {
    const unique_fd& first = seats_[rank.index()].connections[0];
    return concat(rank, " came twice (", first ? describe_caller(first) : "the process at the port",
                  " and ", describe_caller(second), ") to ", describe_place(settings_),
                  ": expected each rank once, and a MASTER_PORT of its own for each group");
  }

  [[nodiscard]] failure absent() const {
    std::vector<rank_id> ranks;
    for (const rank_id peer : all_ranks{settings_.size})
      if (peer.index() != 0 && !seats_[peer.index()].complete()) ranks.push_back(peer);
    return {errc::timed_out,
            concat(describe_ranks(ranks), " of ", settings_.size, " did not join within ",
                   describe_span(span_), " at ", describe_place(settings_), " (",
                   describe_addresses(place_), ")", callers_.describe_strangers())};
  }

  void refuse_all(const failure& why) {
    const auto bytes = encode_failure(why);
    const auto tell = [&bytes](const unique_fd& socket) {
      frame_writer writer{bytes, {}};
      if (socket) (void)writer.step(socket.get());  // Fits: next to nothing was sent before.
    };
    for (const seat& one : seats_) tell(one.connections[0]);
    for (const unique_fd& socket : turned_away_) tell(socket);
  }

  /// A rank that dies here is noticed in the first collective.
  void welcome_all() {
    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::welcome);
    const auto bytes = encode_frame(header, {}, {});
    for (const seat& one : seats_) {
      frame_writer writer{bytes, {}};
      if (one.begun()) (void)writer.step(one.connections[0].get());  // Fits likewise.
    }
  }

  tcp_settings settings_;
  group_secret secret_;
  std::vector<tcp_address> place_;
  deadline until_;
  deadline::clock::duration span_;
  std::vector<unique_fd> listeners_;
  tcp_callers callers_;
  std::vector<seat> seats_;
  std::vector<unique_fd> turned_away_;  ///< one for each process
  std::size_t complete_ = 0;
};

}  // namespace peerbus::detail
