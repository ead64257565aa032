// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/build_version.hpp>
#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The connections that make a group a mesh: one between any two ranks except rank 0, to which all
/// ranks are already connected. Each rank opens a port of its own and calls the ranks below it, all
/// at once. The ports are closed when the connections are made.
class tcp_mesh {
 public:
  /// Opens a port that the ranks above this rank call. `settings` have an address by which they
  /// reach this host. Rank 0 opens no port.
  /// Throws: `error` system.
  tcp_mesh(const tcp_settings& settings, deadline until)
      : rank_{settings.rank},
        links_(settings.size),
        offer_{settings.rank == 0 ? offered_place{} : offered_place::of_network(settings.address)},
        place_{with_port(settings, offer_.port), until},
        callers_{place_, settings.size + 64} {
    if (settings.rank != 0) listeners_ = place_.open();
  }

  /// Returns the data by which the other ranks call this rank, with a random number. The random
  /// number of rank 0 identifies the mesh.
  [[nodiscard]] std::vector<std::byte> offer() const {
    const auto id = hello::make_process_id();
    std::vector<std::byte> bytes{id.begin(), id.end()};
    const auto place = offer_.encode();
    bytes.insert(bytes.end(), place.begin(), place.end());
    return bytes;
  }

  /// Makes the connections. `offers` are the results of `offer` on all ranks, by rank.
  /// Returns: the connections, by rank; the entries of rank 0 and of this rank are empty.
  /// Throws: `error` peer_dead if one of `members` ends before; timed_out with the ranks that did
  /// not come; system, also if an entry of `offers` is no offer.
  [[nodiscard]] std::vector<connection> connect(
      const std::vector<std::span<const std::byte>>& offers, const membership& members,
      deadline until) {
    require_complete(offers);
    if (rank_ == 0) return std::move(links_);
    greeting_.rank = static_cast<std::uint32_t>(rank_);
    greeting_.size = static_cast<std::uint32_t>(links_.size());
    std::memcpy(greeting_.process.data(), offers[0].data(), greeting_.process.size());
    const auto span = until.remaining();
    std::vector<call> calls(rank_);
    for (std::size_t peer = 1; peer < rank_; ++peer) {
      const auto there = offered_place::decode(offers[peer].subspan(greeting_.process.size()));
      calls[peer].addresses = resolve(there.address, there.port, until);
    }
    for (;;) {
      advance_all(calls, until);
      const auto missing = find_missing();
      if (missing.empty()) return std::move(links_);
      if (const auto gone = find_ended(missing, members))
        throw error{errc::peer_dead, concat("the mesh of ranks: ", members.fate(*gone))};
      if (until.expired())
        throw error{errc::timed_out, concat("the mesh of ranks: ", describe_ranks(missing),
                                            " and rank ", rank_, " were not connected within ",
                                            describe_span(span), callers_.describe_strangers())};
      wait_for(calls, until);
    }
  }

 private:
  /// A connection in the making to a rank below this one.
  struct call {
    std::vector<tcp_address> addresses;
    connection link;
    bool has_greeted = false;
  };

  void require_complete(const std::vector<std::span<const std::byte>>& offers) const {
    if (offers.size() != links_.size())
      throw error{errc::system, concat("the mesh of ranks: ", offers.size(),
                                       " places came, expected ", links_.size())};
    // The place of rank 0, which none calls, is but a port.
    constexpr std::size_t least = sizeof(hello::process_id) + sizeof(std::uint16_t);
    for (std::size_t peer = 0; peer < offers.size(); ++peer)
      if (offers[peer].size() < least + (peer == 0 ? 0 : 1))
        throw error{errc::system,
                    concat("the mesh of ranks: the place of ", rank_id{peer}, " came in ",
                           offers[peer].size(), " bytes, expected more than ", least)};
  }

  [[nodiscard]] static tcp_settings with_port(tcp_settings settings, std::uint16_t port) {
    settings.port = port;
    return settings;
  }

  [[nodiscard]] std::vector<rank_id> find_missing() const {
    std::vector<rank_id> missing;
    for (std::size_t peer = 1; peer < links_.size(); ++peer)
      if (peer != rank_ && !links_[peer]) missing.emplace_back(peer);
    return missing;
  }

  /// Returns a rank that has ended: one of `missing`, or rank 0, which reports the ends of the
  /// others while they meet.
  [[nodiscard]] static std::optional<rank_id> find_ended(const std::vector<rank_id>& missing,
                                                         const membership& members) {
    for (const rank_id peer : missing)
      if (members.state(peer) != rank_state::running) return peer;
    if (members.state(rank_id{0}) != rank_state::running) return rank_id{0};
    return std::nullopt;
  }

  /// Connects to the ranks with lower numbers. An attempt at a host that does not answer takes a
  /// second for each address. So it returns after an attempt that fails, and connections of other
  /// ranks are accepted before the next attempt.
  void advance_all(std::vector<call>& calls, deadline until) {
    for (std::size_t i = 1; i < rank_; ++i) {
      const std::size_t peer = 1 + called_last_ % (rank_ - 1);
      called_last_ = peer;
      if (links_[peer]) continue;
      advance(calls[peer], peer, until);
      if (!links_[peer] && !calls[peer].link) return;
    }
  }

  /// Calls a rank, shakes hands, greets and waits for its answer, as far as that is possible now.
  /// Calls again if the other end has disconnected.
  void advance(call& current, std::size_t peer, deadline until) {
    if (!current.link) current = {current.addresses, place_.call_at(current.addresses, until)};
    if (!current.link) return;
    if (!current.has_greeted) {
      switch (current.link.shake_hands()) {
        case handshake::more: return;
        case handshake::done: break;
        case handshake::closed: current.link = {}; return;
        default:
          throw error{errc::system, concat("the mesh of ranks: what answers at ",
                                           describe_addresses(current.addresses), " is not rank ",
                                           peer, " of this group")};
      }
      const auto bytes = greeting_.encode();
      // A fresh connection takes these few bytes at once.
      current.has_greeted = current.link.send(bytes) == static_cast<ssize_t>(bytes.size());
    }
    std::byte answer{};
    const ssize_t got = current.has_greeted ? current.link.receive(std::span{&answer, 1}) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got == 1) keep(peer, current.link);
    current.link = {};
  }

  void keep(std::size_t peer, connection& link) {
    place_.tune(link, watch);
    links_[peer] = std::move(link);
  }

  /// Takes a caller that is a rank above this one, and answers by a byte. Disconnects other
  /// callers.
  void take(callers::member& caller) {
    const hello& said = caller.greeting;
    if (said.version == build_version{} && said.size == links_.size() && said.rank > rank_ &&
        said.rank < links_.size() && said.process == greeting_.process && !links_[said.rank] &&
        caller.link.send(std::array{std::byte{1}}) == 1)
      keep(said.rank, caller.link);
  }

  /// Waits for bytes or callers, and takes the ranks that have called.
  void wait_for(const std::vector<call>& calls, deadline until) {
    std::vector<pollfd> entries;
    entries.reserve(listeners_.size() + callers_.size() + calls.size());
    for (const unique_fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    callers_.append_entries(entries);
    const std::size_t heard = listeners_.size();
    const std::size_t called = callers_.size();
    for (const call& current : calls)
      if (current.link) entries.push_back({current.link.get(), POLLIN, 0});
    poll_for(entries, earlier(until, callers_.next_end()), poll_pause);
    for (auto& caller : callers_.hear_all(std::span<const pollfd>{entries}.subspan(heard, called)))
      take(caller);
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (entries[i].revents != 0) callers_.accept_some(listeners_[i]);
  }

  std::size_t rank_;
  std::vector<connection> links_;
  offered_place offer_;  ///< keeps the port
  tcp_rendezvous_place place_;
  callers callers_;
  std::vector<unique_fd> listeners_;
  hello greeting_;
  std::size_t called_last_ = 0;
};

}  // namespace peerbus::detail
