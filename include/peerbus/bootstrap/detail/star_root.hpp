// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/gathered.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The end of a star at rank 0: a connection to each other rank. It never blocks on one of them, so
/// that it sees the death of any other rank at once.
class star_root final : public star {
 public:
  using contribution = bootstrap::contribution;

  /// Takes the connections `leaves` by rank. The entry of rank 0 is empty.
  explicit star_root(std::vector<connection> leaves, carries payload = carries::descriptors)
      : leaves_{std::move(leaves)}, carries_{payload} {}

  std::vector<contribution> allgather(contribution own_part, deadline until, std::string_view doing,
                                      const membership& members, idle_work& idle) override {
    doing = doing.substr(0, most_text_bytes);
    if (broken_) throw error{errc::poisoned, poisoned_by(doing, *broken_).text};
    broken_ = "interrupted";
    ++sequence_;
    std::vector<contribution> given(leaves_.size());
    given[0] = std::move(own_part);
    if (auto why = try_allgather(given, until, doing, members, idle)) {
      refuse_all(*why);
      broken_ = why->text;
      throw_failure(*why, members);
    }
    broken_.reset();
    return given;
  }

 private:
  struct seat {
    frame_reader reader;
    bool has_given = false;
  };

  std::optional<failure> try_allgather(std::vector<contribution>& given, deadline until,
                                       std::string_view doing, const membership& members,
                                       idle_work& idle) {
    try {
      constexpr auto most = bootstrap::max_contribution_bytes;
      if (given[0].bytes.size() > most)
        return too_many_bytes(doing, rank_id{0}, given[0].bytes.size(), most);
      if (given[0].fd && carries_ == carries::bytes) return cannot_carry_fd(doing, rank_id{0});
      if (auto why = collect(given, until, doing, members, idle)) return why;
      return distribute(given, until, doing, idle);
    } catch (const std::bad_alloc&) {
      return failure{errc::out_of_memory,
                     concat("allgather for '", doing, "': rank 0 has no memory for what ",
                            leaves_.size(), " ranks give")};
    }
  }

  /// Receives the contributions of all other ranks into `given`.
  /// Returns: the failure, if there is one.
  std::optional<failure> collect(std::vector<contribution>& given, deadline until,
                                 std::string_view doing, const membership& members,
                                 idle_work& idle) {
    const auto span = until.remaining();
    std::vector<seat> seats;
    // All ranks are watched to the end, also those that have contributed, because they may die
    // meanwhile.
    std::vector<pollfd> entries;
    for (const connection& leaf : leaves_) {
      seats.push_back({frame_reader{bootstrap::max_contribution_bytes,
                                    carries_ == carries::descriptors ? 1U : 0U},
                       false});
      entries.push_back({leaf.get(), POLLIN, 0});
    }
    std::size_t missing = leaves_.size() - 1;
    std::size_t total = given[0].bytes.size() + leaves_.size() * sizeof(gathered_entry);
    while (missing != 0) {
      const bool last_poll = until.expired();
      poll_for(entries, until, idle.advance(poll_pause));
      std::string gone;
      for (const rank_id peer : all_ranks{leaves_.size()}) {
        if (entries[peer.index()].revents == 0) continue;
        seat& giver = seats[peer.index()];
        const auto progress = giver.reader.step(leaves_[peer.index()]);
        if (progress == frame_reader::status::more) continue;
        if (progress == frame_reader::status::no_descriptors)
          return no_descriptors(doing, rank_id{0}, leaves_.size());
        if (progress == frame_reader::status::closed) {
          gone += (gone.empty() ? "" : ", ") + describe_closed(peer, members);
          entries[peer.index()].fd = -1;
          continue;
        }
        if (progress == frame_reader::status::malformed) return malformed(doing, peer);
        if (auto why = take_seat(giver, given[peer.index()], doing, peer)) return why;
        --missing;
        total += given[peer.index()].bytes.size();
        if (total > most_gathered_bytes)
          return failure{
              errc::invalid_argument,
              concat("allgather for '", doing, "': ", leaves_.size(), " ranks gave more ", "than ",
                     most_gathered_bytes, " bytes together")};
      }
      if (!gone.empty()) return gone_ranks(doing, gone);
      if (missing == 0) return taken_back(seats);
      const auto awaited = absent(seats);
      // The end of a rank does not always close its connection: a child process of the rank may
      // hold it open.
      if (members.first_failed() || std::any_of(awaited.begin(), awaited.end(), [&](rank_id peer) {
            return members.state(peer) == rank_state::left;
          }))
        return gone_ranks(doing, members.describe_missing());
      if (last_poll) return missing_ranks(doing, awaited, members, span);
    }
    return std::nullopt;
  }

  /// Returns the failure of a rank that has contributed and then given up. If rank 0 comes so late
  /// that the other ranks have timed out, it must not succeed alone.
  std::optional<failure> taken_back(std::vector<seat>& seats) {
    for (const rank_id peer : all_ranks{leaves_.size()}) {
      if (!leaves_[peer.index()]) continue;
      frame_reader& reader = seats[peer.index()].reader;
      if (reader.step(leaves_[peer.index()]) != frame_reader::status::done) continue;
      const frame message = reader.take();
      if (message.header.kind == static_cast<std::uint32_t>(frame_kind::refuse))
        return told_failure(message);
    }
    return std::nullopt;
  }

  /// Moves the message of `peer` into `given`, or returns why it is refused.
  std::optional<failure> take_seat(seat& giver, contribution& given, std::string_view doing,
                                   rank_id peer) const {
    frame message = giver.reader.take();
    if (message.header.kind == static_cast<std::uint32_t>(frame_kind::refuse))
      return told_failure(message);
    if (message.header.kind != static_cast<std::uint32_t>(frame_kind::give) || giver.has_given ||
        message.header.sequence != sequence_)
      return malformed(doing, peer);
    if (message.text != doing) return different_collectives(rank_id{0}, doing, peer, message.text);
    giver.has_given = true;
    given.bytes = std::move(message.body);
    if (!message.fds.empty()) given.fd = std::move(message.fds.front());
    return std::nullopt;
  }

  /// Sends the result to all other ranks. If a rank dies meanwhile, the other ranks still get the
  /// result, because that rank has contributed. They learn of the death when they next wait.
  std::optional<failure> distribute(const std::vector<contribution>& given, deadline until,
                                    std::string_view doing, idle_work& idle) {
    // A complete result is sent even if the deadline has just passed.
    constexpr std::chrono::seconds least{1};
    const auto patience = until.remaining() < least ? deadline::after(least) : until;
    const auto span = patience.remaining();
    const auto body = encode_gathered(given);
    std::vector<int> fds;
    for (const contribution& part : given)
      if (part.fd) fds.push_back(part.fd.get());
    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::result);
    header.sequence = sequence_;
    header.fds = static_cast<std::uint32_t>(fds.size());
    const auto bytes = encode_frame(header, {}, body);

    std::vector<frame_writer> writers(leaves_.size(), frame_writer{bytes, fds});
    // A rank that got half a result would take a refusal for the other half, so its connection is
    // closed.
    const auto give_up = [&](failure why) {
      for (const rank_id peer : all_ranks{leaves_.size()})
        if (writers[peer.index()].amid()) leaves_[peer.index()].hang_up();
      return why;
    };
    std::vector<rank_id> waiting;
    for (const rank_id peer : all_ranks{leaves_.size()})
      if (peer.index() != 0) waiting.push_back(peer);
    std::vector<pollfd> entries;
    for (;;) {
      bool throttled = false;
      std::vector<rank_id> still;
      entries.clear();
      for (const rank_id peer : waiting) {
        connection& leaf = leaves_[peer.index()];
        const auto progress = writers[peer.index()].step(leaf);
        if (progress == frame_writer::status::failed)
          return give_up({errc::system, concat("allgather for '", doing, "': sending to ", peer,
                                               ": ", describe_errno(errno))});
        if (progress == frame_writer::status::done || progress == frame_writer::status::closed)
          continue;
        throttled = throttled || progress == frame_writer::status::throttled;
        still.push_back(peer);
        entries.push_back({leaf.get(), POLLOUT, 0});
      }
      waiting = std::move(still);
      if (waiting.empty()) return std::nullopt;
      if (patience.expired()) break;
      if (throttled) entries.clear();
      poll_for(entries, patience, idle.advance(throttled ? throttle_pause : poll_pause));
    }
    return give_up(
        {errc::timed_out,
         concat("allgather for '", doing, "': ", describe_ranks(waiting), " of ", leaves_.size(),
                " did not take the result within ", describe_span(span))});
  }

  /// Sends the failure to all connected ranks. They read it in this collective or in their next
  /// one.
  void refuse_all(const failure& why) {
    const auto bytes = encode_failure(why);
    for (connection& leaf : leaves_) {
      if (!leaf) continue;
      frame_writer writer{bytes, {}};
      // A single try succeeds, unless the rank has left many bytes unread. Then it learns of the
      // failure by the closed connection.
      if (writer.step(leaf) != frame_writer::status::done) leaf.hang_up();
    }
  }

  [[nodiscard]] static std::vector<rank_id> absent(const std::vector<seat>& seats) {
    std::vector<rank_id> ranks;
    for (const rank_id peer : all_ranks{seats.size()})
      if (peer.index() != 0 && !seats[peer.index()].has_given) ranks.push_back(peer);
    return ranks;
  }

  static failure malformed(std::string_view doing, rank_id peer) {
    return {errc::system,
            concat("allgather for '", doing, "': ", peer, " sent a malformed message")};
  }

  std::vector<connection> leaves_;
  carries carries_;
  std::uint64_t sequence_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace peerbus::detail
