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
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/detail/tcp_handshake.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// A rank's connections to rank 0, by `tcp_channel`.
using tcp_connections = std::array<unique_fd, tcp_channels>;

/// A rank other than 0 while the ranks meet. Trusts what answers at the place as little as rank 0
/// trusts its callers, until it has proved that it knows the secret.
class tcp_joiner {
 public:
  /// Throws: `error` as `join`.
  tcp_joiner(const tcp_settings& settings, std::vector<tcp_address> place, deadline until)
      : settings_{settings},
        secret_{settings.secret},
        place_{std::move(place)},
        until_{until},
        span_{until.remaining()} {
    hello_.rank = static_cast<std::uint32_t>(settings.rank);
    hello_.size = static_cast<std::uint32_t>(settings.size);
    fill_random(hello_.instance);
  }

  /// Throws: `error` what rank 0 refused with, mismatch if it has another secret or is of another
  /// build, peer_dead, timed_out, system.
  tcp_connections join() {
    for (std::size_t channel = 0; channel < tcp_channels; ++channel) {
      hello_.channel = static_cast<tcp_channel>(channel);
      met_[channel] = meet();
      tune_connection(met_[channel], hello_.channel == tcp_channel::watch);
    }
    frame_reader reader{0, 0};
    while (!hear_answer(reader)) {
      if (patience().expired()) throw no_answer();
      wait_for(met_[0], patience());
    }
    return std::move(met_);
  }

 private:
  /// Connects and greets, once more if rank 0 hung up: among too many callers it may have done so
  /// before it heard this one. If it has died instead, the next call shows that at once.
  unique_fd meet() {
    for (std::chrono::milliseconds pause{1};;) {
      unique_fd socket = connect_once(place_, until_);
      if (socket) {
        if (greet(socket)) return socket;
        was_there_ = true;
      } else {
        const int number = errno;
        if (was_there_ && number == ECONNREFUSED) {
          hear_refusal();
          throw error{errc::peer_dead, concat("rank 0 of ", settings_.size, " hung up on rank ",
                                              settings_.rank, " at ", describe_place(settings_),
                                              ": it died, or its group was complete already")};
        }
        if (until_.expired())
          throw error{errc::timed_out,
                      concat("rank 0 of ", settings_.size, " did not come to ",
                             describe_place(settings_), " within ", describe_span(span_),
                             ", where rank ", settings_.rank, " waited for it (",
                             describe_addresses(place_), ": ", describe_errno(number), ")")};
      }
      if (until_.expired()) {
        hear_refusal();
        throw error{errc::timed_out,
                    concat("rank 0 of ", settings_.size, " at ", describe_place(settings_),
                           " hung up on rank ", settings_.rank, " for ", describe_span(span_))};
      }
      hear_refusal();
      // There is nothing to wait on for a port that is not open yet.
      std::vector<pollfd> nothing;
      poll_for(nothing, until_, pause);
      pause = std::min(2 * pause, std::chrono::milliseconds{20});
    }
  }

  /// Returns: false if rank 0 hung up.
  bool greet(const unique_fd& socket) {
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    challenge::message challenged;
    if (!read_whole(socket, challenged)) return false;
    const auto theirs = challenge::decode(challenged);
    fill_random(hello_.nonce);
    tcp_hello::message said = hello_.encode();
    const auto proof = secret_.proof_of_rank(challenged, said);
    std::copy(proof.begin(), proof.end(), said.begin() + tcp_hello::proof_at);
    // A fresh connection takes these few bytes whole.
    if (::send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(said.size()))
      return false;
    verdict::message answer;
    if (!read_whole(socket, answer)) return false;
    const auto expected =
        verdict::encode(verdict::kind::welcome, secret_.proof_of_rank_0(challenged, said));
    if (!equal_in_constant_time(answer, expected)) {
      if (!theirs.has_secret && !secret_.given()) throw no_rank_0();
      throw other_secret(theirs.has_secret);
    }
    if (theirs.version != hello_.version)
      throw error{errc::mismatch,
                  describe_other_build(rank_id{settings_.rank}, hello_.version, theirs.version)};
    return true;
  }

  /// Returns: false if rank 0 hung up. Throws: `error` system if it is none, timed_out.
  bool read_whole(const unique_fd& socket, std::span<std::byte> message) {
    for (std::size_t filled = 0; filled < message.size();) {
      const ssize_t got =
          ::recv(socket.get(), message.data() + filled, message.size() - filled, MSG_DONTWAIT);
      if (got == 0) return false;
      if (got > 0) {
        filled += static_cast<std::size_t>(got);
        const std::size_t known = std::min(filled, tcp_magic.size());
        if (!std::equal(tcp_magic.begin(), tcp_magic.begin() + static_cast<std::ptrdiff_t>(known),
                        message.begin()))
          throw no_rank_0();
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
      hear_refusal();
      if (patience().expired()) throw no_answer();
      wait_for(socket, patience());
    }
    return true;
  }

  /// Returns: whether rank 0 said that all have come. Throws: `error` what it says instead.
  bool hear_answer(frame_reader& reader) {
    switch (reader.step(met_[0].get())) {
      case frame_reader::status::more: return false;
      case frame_reader::status::closed:
        throw error{errc::peer_dead,
                    concat("rank 0 of ", settings_.size, " hung up on rank ", settings_.rank,
                           " at ", describe_place(settings_), " before all ranks had come")};
      case frame_reader::status::done: break;
      default: throw no_rank_0();
    }
    const frame answer = reader.take();
    if (answer.header.kind == static_cast<std::uint32_t>(frame_kind::refuse)) {
      const failure why = told_failure(answer);
      throw error{why.code, why.text};
    }
    if (answer.header.kind != static_cast<std::uint32_t>(frame_kind::welcome)) throw no_rank_0();
    return true;
  }

  /// While the second connection is made, rank 0 may already say on the first that it was in vain.
  void hear_refusal() {
    if (!met_[0]) return;
    pollfd entry{met_[0].get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) != 1) return;
    // What it says is one short frame, sent whole.
    for (frame_reader reader{0, 0}; !hear_answer(reader);) {
      if (patience().expired()) throw no_answer();
      wait_for(met_[0], patience());
    }
    throw no_rank_0();
  }

  static void wait_for(const unique_fd& socket, deadline until) {
    std::vector<pollfd> entries{{socket.get(), POLLIN, 0}};
    poll_for(entries, until, std::chrono::milliseconds{100});
  }

  /// Rank 0 gives up at `until_`, and says for whom it waited.
  [[nodiscard]] deadline patience() const noexcept {
    constexpr std::chrono::seconds head_start{1};
    return deadline{until_.when() > deadline::clock::time_point::max() - head_start
                        ? until_.when()
                        : until_.when() + head_start};
  }

  [[nodiscard]] error no_answer() const {
    return error{errc::timed_out,
                 concat("rank 0 of ", settings_.size, " at ", describe_place(settings_),
                        " did not answer within ", describe_span(span_))};
  }
  [[nodiscard]] error no_rank_0() const {
    return error{errc::system, concat("what answers at ", describe_place(settings_),
                                      " does not speak as rank 0 of a group should: give another "
                                      "MASTER_PORT")};
  }
  [[nodiscard]] error other_secret(bool rank_0_has_one) const {
    const char* who_has = !rank_0_has_one   ? " has none but this rank does"
                          : secret_.given() ? " has another than this rank"
                                            : " has one but this rank none";
    return error{errc::mismatch,
                 concat("the secret differs: rank 0 of ", settings_.size, " at ",
                        describe_place(settings_), who_has, " (rank ", settings_.rank,
                        "); expected the same PEERBUS_SECRET or PEERBUS_SECRET_FILE on all ranks, "
                        "and a MASTER_PORT of its own for each group")};
  }

  tcp_settings settings_;
  group_secret secret_;
  std::vector<tcp_address> place_;
  deadline until_;
  deadline::clock::duration span_;
  tcp_hello hello_;
  tcp_connections met_;
  bool was_there_ = false;
};

}  // namespace peerbus::detail
