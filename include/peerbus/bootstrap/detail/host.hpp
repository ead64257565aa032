// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/join.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Rank 0 while the others come. Strangers may call at its socket too: whoever is another user, or
/// does not open with a hello, is hung up on and counts for nothing.
class host {
 public:
  /// Throws: `error` mismatch if another process says that it is rank 0 here, system.
  host(const launch_settings& settings, deadline until)
      : settings_{settings},
        until_{until},
        span_{until.remaining()},
        listener_{stream_socket()},
        seats_(settings.size) {
    const meeting_point place{settings};
    while (::bind(listener_.get(), place.get(), place.bytes) != 0) {
      if (errno != EADDRINUSE)
        throw system_failure(concat("opening the meeting point ", describe_place(settings)), errno);
      challenge_other_host();
    }
    if (::listen(listener_.get(), SOMAXCONN) != 0)
      throw system_failure(concat("listening at ", describe_place(settings)), errno);
  }

  /// Waits for all ranks and gives each the state page's file.
  /// Returns: the connections by rank, the first empty. Throws: `error` timed_out, mismatch,
  /// peer_dead, system; the ranks that came are told the same.
  std::vector<unique_fd> gather(const unique_fd& states) {
    std::optional<failure> why;
    try {
      why = wait_for_all();
    } catch (const error& caught) {
      refuse_all({caught.code(), concat("rank 0 failed while the ranks met: ", caught.what())});
      throw;
    }
    if (why) {
      refuse_all(*why);
      throw error{why->code, why->text};
    }
    // A program may meet again at the same place: the name is free before anybody can come back.
    listener_.reset();
    welcome_all(states);
    return std::move(seats_);
  }

 private:
  /// Somebody who has called, but not yet said all of a hello.
  struct caller {
    unique_fd socket;
    std::array<std::byte, sizeof(hello)> said{};
    std::size_t heard = 0;
  };

  /// Two processes think that they are rank 0, or two groups meet at one place. The other one is
  /// told by a hello, so that the ranks that it has gathered learn of it too. If it goes away
  /// instead of answering, the place is free.
  void challenge_other_host() const {
    try {
      (void)join(settings_, std::min(until_, deadline::after(std::chrono::milliseconds{100}),
                                     [](deadline a, deadline b) { return a.when() < b.when(); }));
    } catch (const error& caught) {
      const bool may_go = caught.code() == errc::peer_dead || caught.code() == errc::timed_out;
      if (!may_go) throw;
    }
    if (until_.expired())
      throw error{errc::system, concat("the meeting point ", describe_place(settings_),
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
    std::vector<rank_id> seated;
    while (1 + seated.size() + turned_away_.size() < settings_.size) {
      const bool last_look = until.expired();
      entries.assign(1, {listener_.get(), POLLIN, 0});
      for (const caller& one : callers_) entries.push_back({one.socket.get(), POLLIN, 0});
      for (const rank_id peer : seated) entries.push_back({seats_[peer.index()].get(), POLLIN, 0});
      poll_for(entries, until, std::chrono::milliseconds{1000});

      const std::size_t first_seated = 1 + callers_.size();
      const bool more_call = entries[0].revents != 0;
      std::vector<rank_id> newly_seated;
      std::deque<caller> still;
      for (std::size_t i = 0; i < callers_.size(); ++i) {
        caller& one = callers_[i];
        if (entries[1 + i].revents == 0 || hear(one)) {
          still.push_back(std::move(one));
        } else if (one.heard == sizeof(hello)) {
          object(seat(one, newly_seated));
        }
      }
      callers_ = std::move(still);
      // Nobody speaks between hello and welcome: it is the end of the connection.
      for (std::size_t i = seated.size(); i-- != 0;) {
        if (entries[first_seated + i].revents == 0) continue;
        object(failure{errc::peer_dead,
                       concat(seated[i], " of ", settings_.size, " was gone ",
                              "before all ranks had come to ", describe_place(settings_))});
        turned_away_.push_back(std::move(seats_[seated[i].index()]));
        seated.erase(seated.begin() + static_cast<std::ptrdiff_t>(i));
      }
      seated.insert(seated.end(), newly_seated.begin(), newly_seated.end());
      if (more_call) accept_some();
      if (last_look) break;
    }
    if (!why && 1 + seated.size() < settings_.size) return absent();
    return why;
  }

  /// Takes some of those that wait at the listener. Not all, because callers that come faster than
  /// they are taken would keep rank 0 from its deadline and from the ranks that it has.
  void accept_some() {
    for (int some = 0; some < 64; ++some) {
      unique_fd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        throw system_failure("accepting a rank's connection", errno);
      }
      const auto who = peer_of(socket);
      if (!who || who->uid != ::geteuid()) continue;
      // A rank says its hello at once: of too many silent callers the eldest is none.
      if (callers_.size() >= settings_.size + 64) callers_.pop_front();
      callers_.emplace_back();
      callers_.back().socket = std::move(socket);
    }
  }

  /// Returns: whether the caller has more to say. If not, and its hello is not whole, it is nobody.
  static bool hear(caller& one) noexcept {
    const ssize_t got = ::recv(one.socket.get(), one.said.data() + one.heard,
                               one.said.size() - one.heard, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    one.heard += static_cast<std::size_t>(got);
    return got != 0 && one.heard < one.said.size();
  }

  /// Gives a rank its seat. Returns: why not, if so.
  std::optional<failure> seat(caller& one, std::vector<rank_id>& seated) {
    hello said;
    std::memcpy(&said, one.said.data(), sizeof said);
    if (said.magic != hello::expected_magic) return std::nullopt;
    const rank_id rank{said.rank};
    failure why{errc::mismatch, {}};
    if (said.version != hello::expected_version)
      why.text = concat(rank, " meets by version ", said.version, " of the protocol, rank 0 by ",
                        hello::expected_version, ": expected one build of peerbus on all ranks");
    else if (said.size != settings_.size)
      why.text = concat(rank, " was started with a world size of ", said.size, ", rank 0 with ",
                        settings_.size, ": expected the same on all ranks");
    else if (rank.index() >= settings_.size)
      why.text = concat(rank, " came, expected ranks below ", settings_.size);
    else if (rank.index() == 0 || seats_[rank.index()])
      why.text =
          concat(rank, " came twice", describe_pids(rank, one), " to ", describe_place(settings_),
                 ": expected each rank once, and a MASTER_PORT ", "of its own for each group");
    if (!why.text.empty()) {
      turned_away_.push_back(std::move(one.socket));
      return why;
    }
    seats_[rank.index()] = std::move(one.socket);
    seated.push_back(rank);
    return std::nullopt;
  }

  [[nodiscard]] std::string describe_pids(rank_id rank, const caller& second) const {
    const auto first_pid = rank.index() == 0 ? ::getpid() : pid_of(seats_[rank.index()]);
    return concat(" (process ", first_pid, " and process ", pid_of(second.socket), ")");
  }
  [[nodiscard]] static pid_t pid_of(const unique_fd& socket) noexcept {
    const auto who = peer_of(socket);
    return who ? who->pid : 0;
  }

  [[nodiscard]] failure absent() const {
    std::vector<rank_id> ranks;
    for (const rank_id peer : all_ranks{settings_.size})
      if (peer.index() != 0 && !seats_[peer.index()]) ranks.push_back(peer);
    return {errc::timed_out,
            concat(describe_ranks(ranks), " of ", settings_.size, " did not join within ",
                   describe_span(span_), " at ", describe_place(settings_))};
  }

  void refuse_all(const failure& why) {
    const auto bytes = encode_failure(why);
    const auto tell = [&bytes](const unique_fd& socket) {
      frame_writer writer{bytes, {}};
      if (socket) (void)writer.step(socket.get());  // Fits: nothing was sent before.
    };
    for (const unique_fd& socket : seats_) tell(socket);
    for (const unique_fd& socket : turned_away_) tell(socket);
  }

  /// A rank that dies here is noticed in the first collective.
  void welcome_all(const unique_fd& states) {
    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::welcome);
    header.fds = 1;
    const auto bytes = encode_frame(header, {}, {});
    const int file = states.get();
    const auto patience = deadline::after(
        std::max<deadline::clock::duration>(until_.remaining(), std::chrono::seconds{1}));
    for (const unique_fd& socket : seats_) {
      if (!socket) continue;
      frame_writer writer{bytes, {&file, 1}};
      for (;;) {
        const auto now = writer.step(socket.get());
        if (now == frame_writer::status::done || now == frame_writer::status::closed) break;
        if (now == frame_writer::status::failed || patience.expired())
          throw system_failure("welcoming the ranks", errno);
        std::vector<pollfd> nothing;
        poll_for(nothing, patience, throttle_pause);
      }
    }
  }

  launch_settings settings_;
  deadline until_;
  deadline::clock::duration span_;
  unique_fd listener_;
  std::deque<caller> callers_;
  std::vector<unique_fd> seats_;
  std::vector<unique_fd> turned_away_;
};

}  // namespace peerbus::detail
