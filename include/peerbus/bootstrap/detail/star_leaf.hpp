// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
#include <peerbus/bootstrap/detail/told_code.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The time for which a sender waits before it tries again, if too many descriptors are in flight.
/// No event reports that their number has fallen.
inline constexpr std::chrono::milliseconds throttle_pause{1};

/// The payload that the connections of a star can carry. Descriptors need Unix sockets.
enum class carries { bytes, descriptors };

/// Decodes the failure in a `refuse` frame. An unknown code becomes `system`.
inline failure told_failure(const frame& refusal) {
  return {told_code(refusal.header.code), refusal.text};
}

/// Encodes a failure as a `refuse` frame.
inline std::vector<std::byte> encode_failure(const failure& why) {
  frame_header header;
  header.kind = static_cast<std::uint32_t>(frame_kind::refuse);
  header.code = static_cast<std::uint32_t>(why.code);
  return encode_frame(header, why.text, {});
}

/// The end of a star at a non-zero rank: one connection to rank 0.
class star_leaf final : public star {
 public:
  using contribution = bootstrap::contribution;

  explicit star_leaf(connection root, carries payload = carries::descriptors) noexcept
      : root_{std::move(root)}, carries_{payload} {}

  std::vector<contribution> allgather(contribution own_part, deadline until, std::string_view doing,
                                      const membership& members, idle_work& idle) override {
    doing = doing.substr(0, most_text_bytes);
    if (broken_) throw error{errc::poisoned, poisoned_by(doing, *broken_).text};
    // Reset on success. Any other exception also leaves the stream out of step.
    broken_ = "interrupted";
    ++sequence_;
    std::vector<contribution> given;
    if (auto why = try_allgather(own_part, given, until, doing, members, idle)) {
      broken_ = why->text;
      throw_failure(*why, members);
    }
    broken_.reset();
    return given;
  }

 private:
  std::optional<failure> try_allgather(const contribution& own_part,
                                       std::vector<contribution>& given, deadline until,
                                       std::string_view doing, const membership& members,
                                       idle_work& idle) {
    constexpr auto most = bootstrap::max_contribution_bytes;
    if (own_part.bytes.size() > most)
      return give_up(too_many_bytes(doing, members.rank(), own_part.bytes.size(), most), false);
    const bool any_fd = carries_ == carries::descriptors;
    if (own_part.fd && !any_fd) return give_up(cannot_carry_fd(doing, members.rank()), false);

    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::give);
    header.sequence = sequence_;
    header.fds = own_part.fd ? 1 : 0;
    const auto bytes = encode_frame(header, doing, own_part.bytes);
    const std::vector<int> fds(header.fds, own_part.fd.get());
    frame_writer writer{bytes, fds};
    frame_reader reader{most_gathered_bytes,
                        any_fd ? static_cast<std::uint32_t>(members.size()) : 0U};
    auto why = exchange(writer, reader, until, doing, members, idle);
    if (why) return give_up(std::move(*why), writer.amid());
    frame answer = reader.take();
    if (answer.header.kind == static_cast<std::uint32_t>(frame_kind::refuse))
      return told_failure(answer);
    if (answer.header.kind == static_cast<std::uint32_t>(frame_kind::result) &&
        answer.header.sequence == sequence_)
      if (decode_gathered(std::move(answer), members.size(), given)) return std::nullopt;
    return give_up(malformed(doing), false);
  }

  /// Sends the contribution and receives the answer of rank 0. Reads while it sends, because rank 0
  /// may refuse before it has read everything.
  /// Returns: the failure, or nothing if the answer has arrived.
  std::optional<failure> exchange(frame_writer& writer, frame_reader& reader, deadline until,
                                  std::string_view doing, const membership& members,
                                  idle_work& idle) {
    const auto span = until.remaining();
    // Rank 0 gives up at `until` and sends the names of the missing ranks. This rank gives up
    // later, for the case that rank 0 is gone.
    constexpr std::chrono::seconds head_start{1};
    const auto patience = deadline::after(
        span > deadline::clock::duration::max() - head_start ? span : span + head_start);
    std::optional<deadline> last_word;
    std::vector<pollfd> entries(1);
    bool sent = false;
    for (;;) {
      bool throttled = false;
      if (!sent) {
        const auto progress = writer.step(root_);
        if (progress == frame_writer::status::failed)
          return failure{errc::system, concat("allgather for '", doing, "': ", members.rank(),
                                              " sending to rank 0: ", describe_errno(errno))};
        // If rank 0 has closed the connection, it may have sent a reason before, which is still to
        // be read.
        sent = progress == frame_writer::status::done || progress == frame_writer::status::closed;
        throttled = progress == frame_writer::status::throttled;
      }
      switch (reader.step(root_)) {
        case frame_reader::status::done: return std::nullopt;
        case frame_reader::status::more: break;
        case frame_reader::status::closed:
          return gone_ranks(doing, describe_closed(rank_id{0}, members));
        case frame_reader::status::malformed: return malformed(doing);
        case frame_reader::status::no_descriptors:
          return no_descriptors(doing, members.rank(), members.size());
      }
      if (last_word && last_word->expired()) return gone_ranks(doing, members.describe_missing());
      if (patience.expired()) return missing_ranks(doing, {rank_id{0}}, members, span);
      entries[0] = {root_.get(), static_cast<short>(sent || throttled ? POLLIN : POLLIN | POLLOUT),
                    0};
      poll_for(entries, patience, idle.advance(throttled ? throttle_pause : poll_pause));
      // If rank 0 takes part in this collective, it is about to report the same failure to all
      // ranks. It may also be busy elsewhere, so this rank waits only a moment for it.
      if (!last_word && members.first_failed())
        last_word = deadline::after(std::chrono::milliseconds{50});
    }
  }

  /// Reports the failure to rank 0, which reports it to all ranks, and closes the connection. In
  /// the middle of a frame, only closes the connection.
  /// Returns: `why`.
  failure give_up(failure why, bool amid_frame) {
    if (!amid_frame) {
      const auto bytes = encode_failure(why);
      frame_writer writer{bytes, {}};
      // A single try is enough: if the connection takes no bytes, its end reports the failure.
      (void)writer.step(root_);
    }
    root_.hang_up();
    return why;
  }

  static failure malformed(std::string_view doing) {
    return {errc::system, concat("allgather for '", doing, "': rank 0 sent a malformed message")};
  }

  connection root_;
  carries carries_;
  std::uint64_t sequence_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace peerbus::detail
