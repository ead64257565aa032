// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The connections, files and bytes that a non-zero rank holds after the rendezvous.
struct joined {
  std::vector<connection> connections;  ///< connections to rank 0, by channel
  std::vector<unique_fd> files;         ///< the files that rank 0 sent
  std::vector<std::byte> body;          ///< the bytes that rank 0 sent with the files
};

/// The part of a non-zero rank in a rendezvous. It calls rank 0 until all ranks have come. Until
/// the handshake is done, it does not trust the process that answers, and rank 0 does not trust its
/// callers.
class rendezvous_joiner {
 public:
  /// The largest number of bytes that come with the files.
  static constexpr std::size_t most_body_bytes = std::size_t{1} << 18;

  /// Prepares the hello. `process` is the number by which the hello identifies this process. The
  /// place must outlive this object.
  rendezvous_joiner(rendezvous_place& place, const rendezvous& ours,
                    const hello::process_id& process = hello::make_process_id())
      : place_{place}, ours_{ours}, attempts_(place.channels()) {
    greeting_.rank = static_cast<std::uint32_t>(ours.rank);
    greeting_.size = static_cast<std::uint32_t>(ours.size);
    greeting_.process = process;
  }

  /// Calls rank 0 until rank 0 reports that all ranks have come and sends `files` files. Rank 0 may
  /// start later than this rank.
  /// Throws: `error` with the reason for which rank 0 refused, mismatch if rank 0 has another
  /// secret, peer_dead, timed_out, system.
  joined join(std::uint32_t files) {
    frame_reader reader{most_body_bytes, files};
    std::optional<deadline> last_word;
    for (;;) {
      for (std::size_t channel = 0; channel < attempts_.size(); ++channel) {
        attempt& current = attempts_[channel];
        // The other channels follow the first, so that rank 0 counts a rank with another secret
        // only once.
        if (!current.link && (channel == 0 || attempts_[0].has_greeted)) call(current);
        if (current.link && !current.has_greeted) greet(current, channel);
        if (!current.has_greeted) continue;
        if (channel == 0) {
          if (auto answer = hear_answer(reader)) return welcomed(std::move(*answer), files);
        } else if (current.link.has_ended()) {
          hung_up(current);
        }
      }
      if (last_word && last_word->expired())
        throw error{errc::peer_dead,
                    concat(describe_rank_0(), " was gone before all ranks had come")};
      if (patience().expired()) throw no_answer();
      wait();
      // Rank 0 may have sent before its end why the ranks do not meet.
      if (!last_word && ours_.members.has_ended(rank_id{0}))
        last_word = deadline::after(std::chrono::milliseconds{50});
    }
  }

 private:
  /// A connection to rank 0 in one of three states: not made, made, or with its hello sent.
  struct attempt {
    connection link;
    bool has_greeted = false;
  };

  /// Calls rank 0. Calls again after rank 0 has disconnected, which it may do before it has read
  /// this rank's hello if it has too many callers. If rank 0 has died instead, the call is refused.
  void call(attempt& current) {
    // Until the first connection ends, rank 0 may still send there the reason for hanging up on
    // another connection.
    const bool may_hear_more = attempts_[0].has_greeted;
    if (was_there_ && ours_.until.expired() && !may_hear_more)
      throw error{errc::timed_out, concat(describe_rank_0(), " hung up on rank ", ours_.rank,
                                          " for ", describe_span(ours_.span))};
    current.link = place_.call(ours_.until);
    if (current.link || may_hear_more) return;
    const int number = errno;
    if (was_ours_ && number == ECONNREFUSED)
      throw error{errc::peer_dead, concat(describe_rank_0(), " hung up on rank ", ours_.rank,
                                          ": it died, or its group was complete already")};
    if (ours_.until.expired() && was_other_job_) throw of_other_job();
    if (ours_.until.expired())
      throw error{errc::timed_out,
                  concat(ours_.host, " of ", ours_.size, " did not come to ", place_.describe(),
                         " within ", describe_span(ours_.span), ", where rank ", ours_.rank,
                         " waited for it (", place_.describe_silence(number), ")")};
  }

  /// Advances the handshake of a connection and then sends the hello.
  void greet(attempt& current, std::size_t channel) {
    switch (const auto how = current.link.shake_hands()) {
      case handshake::more: return;
      case handshake::closed:
        // It may have been the rank 0 of an earlier job that has just died: so call again.
        was_there_ = true;
        current = {};
        return;
      case handshake::stranger: throw no_rank_0();
      case handshake::other_secret:
      case handshake::no_secret:
        throw error{errc::mismatch,
                    concat("the secret differs: ", describe_rank_0(), place_.describe_secrets(how),
                           " (rank ", ours_.rank, "); expected the same PEERBUS_SECRET or ",
                           "PEERBUS_SECRET_FILE on all ranks, and a MASTER_PORT of its own for ",
                           "each group")};
      case handshake::other_job:
        // Either job may be about to end: an old one whose place is wanted, or one that comes late.
        if (ours_.until.expired()) throw of_other_job();
        was_other_job_ = true;
        current = {};
        return;
      case handshake::done: break;
    }
    place_.tune(current.link, channel);
    greeting_.channel = static_cast<std::uint32_t>(channel);
    const auto bytes = greeting_.encode();
    // A fresh connection takes these few bytes at once.
    current.has_greeted = current.link.send(bytes) == static_cast<ssize_t>(bytes.size());
    if (!current.has_greeted) hung_up(current);
  }

  void hung_up(attempt& current) noexcept {
    current = {};
    was_there_ = true;
    was_ours_ = true;
  }

  [[nodiscard]] std::optional<frame> hear_answer(frame_reader& reader) {
    switch (reader.step(attempts_[0].link)) {
      case frame_reader::status::more: return std::nullopt;
      case frame_reader::status::closed:
        hung_up(attempts_[0]);
        (void)reader.take();
        return std::nullopt;
      case frame_reader::status::no_descriptors:
        throw system_failure("taking files from rank 0", EMFILE);
      case frame_reader::status::malformed: throw no_rank_0();
      case frame_reader::status::done: break;
    }
    return reader.take();
  }

  [[nodiscard]] joined welcomed(frame answer, std::uint32_t files) {
    if (answer.header.kind == static_cast<std::uint32_t>(frame_kind::refuse)) {
      const failure why = told_failure(answer);
      throw error{why.code, why.text};
    }
    if (answer.header.kind != static_cast<std::uint32_t>(frame_kind::welcome) ||
        answer.fds.size() != files)
      throw no_rank_0();
    joined met;
    for (attempt& made : attempts_) met.connections.push_back(std::move(made.link));
    met.files = std::move(answer.fds);
    met.body = std::move(answer.body);
    return met;
  }

  void wait() {
    std::vector<pollfd> entries;
    for (const attempt& made : attempts_)
      if (made.link) entries.push_back({made.link.get(), POLLIN, 0});
    if (entries.size() == attempts_.size()) {
      poll_for(entries, patience(), ours_.pause());
    } else {
      // No descriptor reports that a place has been opened, so this rank calls again after a pause.
      poll_for(entries, patience(), pause_);
      pause_ = std::min(2 * pause_, std::chrono::milliseconds{20});
    }
  }

  /// Returns a deadline one second after the common one, because rank 0 gives up at the common
  /// deadline and then sends the names of the missing ranks.
  [[nodiscard]] deadline patience() const noexcept {
    return postponed(ours_.until, std::chrono::seconds{1});
  }

  [[nodiscard]] std::string describe_rank_0() const {
    return concat(ours_.host, " of ", ours_.size, " at ", place_.describe());
  }
  [[nodiscard]] error of_other_job() const {
    return error{errc::timed_out,
                 concat(describe_rank_0(), " is of another job than rank ", ours_.rank,
                        " and did not make room within ", describe_span(ours_.span),
                        "; expected the same PEERBUS_JOB on all ranks, and a MASTER_PORT of its "
                        "own for each job that runs")};
  }
  [[nodiscard]] error no_answer() const {
    return error{errc::timed_out,
                 concat(describe_rank_0(), " did not answer within ", describe_span(ours_.span))};
  }
  [[nodiscard]] error no_rank_0() const {
    return error{errc::system, concat("what answers at ", place_.describe(),
                                      " does not speak as rank 0 of a group should: give another "
                                      "MASTER_PORT")};
  }

  rendezvous_place& place_;
  rendezvous ours_;
  hello greeting_;
  std::vector<attempt> attempts_;
  bool was_there_ = false;      ///< whether a process has disconnected this rank
  bool was_ours_ = false;       ///< whether that process had shown that it was rank 0 of this job
  bool was_other_job_ = false;  ///< whether a process of another job has answered
  std::chrono::milliseconds pause_{1};
};

}  // namespace peerbus::detail
