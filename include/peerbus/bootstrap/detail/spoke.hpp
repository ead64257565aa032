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
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// How long a sender waits when too many descriptors are under way, which nothing signals.
inline constexpr std::chrono::milliseconds throttle_pause{1};

/// What the connections of a star can carry: descriptors go over Unix sockets only.
enum class carries { bytes, descriptors };

/// The failure that a `refuse` frame tells of.
inline failure told_failure(const frame& from) {
  const auto last = static_cast<std::uint32_t>(errc::unreachable);
  const bool known = from.header.code >= 1 && from.header.code <= last;
  return {known ? static_cast<errc>(from.header.code) : errc::system, from.text};
}

inline std::vector<std::byte> encode_failure(const failure& why) {
  frame_header header;
  header.kind = static_cast<std::uint32_t>(frame_kind::refuse);
  header.code = static_cast<std::uint32_t>(why.code);
  return encode_frame(header, why.text, {});
}

/// The star as any rank but 0 sees it: one connection.
class spoke final : public star {
 public:
  using contribution = bootstrap::contribution;

  explicit spoke(connection hub, carries what = carries::descriptors) noexcept
      : hub_{std::move(hub)}, carries_{what} {}

  [[gnu::cold]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing,
                                                    const membership& members,
                                                    idle_work& idle) override {
    doing = doing.substr(0, most_text_bytes);
    if (broken_) throw error{errc::poisoned, poisoned_by(doing, *broken_).text};
    // Until it has gone well: an exception from elsewhere leaves the stream out of step too.
    broken_ = "interrupted";
    ++sequence_;
    std::vector<contribution> given;
    if (auto why = try_allgather(mine, given, until, doing, members, idle)) {
      broken_ = why->text;
      throw error{why->code, why->text};
    }
    broken_.reset();
    return given;
  }

 private:
  [[gnu::cold]] std::optional<failure> try_allgather(const contribution& mine,
                                                     std::vector<contribution>& given,
                                                     deadline until, std::string_view doing,
                                                     const membership& members, idle_work& idle) {
    constexpr auto most = bootstrap::max_contribution_bytes;
    if (mine.bytes.size() > most)
      return give_up(too_many_bytes(doing, members.rank(), mine.bytes.size(), most), false);
    const bool any_fd = carries_ == carries::descriptors;
    if (mine.fd && !any_fd) return give_up(cannot_carry_fd(doing, members.rank()), false);

    frame_header header;
    header.kind = static_cast<std::uint32_t>(frame_kind::give);
    header.sequence = sequence_;
    header.fds = mine.fd ? 1 : 0;
    const auto bytes = encode_frame(header, doing, mine.bytes);
    const std::vector<int> fds(header.fds, mine.fd.get());
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

  /// Sends and receives until there is an answer (empty), or says why there is none. Reads while
  /// it sends: rank 0 may refuse before it has read everything.
  [[gnu::cold]] std::optional<failure> exchange(frame_writer& writer, frame_reader& reader,
                                                deadline until, std::string_view doing,
                                                const membership& members, idle_work& idle) {
    const auto span = until.remaining();
    // Rank 0 gives up at `until` and says whom it missed; only if it is away this rank has to.
    constexpr std::chrono::seconds head_start{1};
    const auto patience = deadline::after(
        span > deadline::clock::duration::max() - head_start ? span : span + head_start);
    std::optional<deadline> last_word;
    std::vector<pollfd> entries(1);
    bool sent = false;
    for (;;) {
      bool throttled = false;
      if (!sent) {
        const auto now = writer.step(hub_);
        if (now == frame_writer::status::failed)
          return failure{errc::system, concat("allgather for '", doing, "': ", members.rank(),
                                              " sending to rank 0: ", describe_errno(errno))};
        // A rank 0 that has closed may have said why before.
        sent = now == frame_writer::status::done || now == frame_writer::status::closed;
        throttled = now == frame_writer::status::throttled;
      }
      switch (reader.step(hub_)) {
        case frame_reader::status::done: return std::nullopt;
        case frame_reader::status::more: break;
        case frame_reader::status::closed:
          return gone_ranks(doing, describe_closed(rank_id{0}, members));
        case frame_reader::status::malformed: return malformed(doing);
        case frame_reader::status::no_descriptors:
          return no_descriptors(doing, members.rank(), members.size());
      }
      if (last_word && last_word->expired()) return gone_ranks(doing, members.describe_missing());
      if (patience.expired())
        return failure{errc::timed_out,
                       concat("allgather for '", doing, "': rank 0 of ", members.size(),
                              " did not come within ", describe_span(span))};
      entries[0] = {hub_.get(), static_cast<short>(sent || throttled ? POLLIN : POLLIN | POLLOUT),
                    0};
      poll_for(entries, patience, idle.advance(throttled ? throttle_pause : look_around));
      // If rank 0 takes part it is about to say the same, to everybody; it may also be busy.
      if (!last_word && members.first_failed())
        last_word = deadline::after(std::chrono::milliseconds{50});
    }
  }

  /// Tells rank 0, and through it everybody, if a frame can still be begun; then hangs up.
  failure give_up(failure why, bool amid_frame) {
    if (!amid_frame) {
      const auto bytes = encode_failure(why);
      frame_writer writer{bytes, {}};
      // One try: a connection that takes nothing tells as much by its end.
      (void)writer.step(hub_);
    }
    hub_.hang_up();
    return why;
  }

  static failure malformed(std::string_view doing) {
    return {errc::system, concat("allgather for '", doing, "': rank 0 sent a malformed message")};
  }

  connection hub_;
  carries carries_;
  std::uint64_t sequence_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace peerbus::detail
