// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Returns a pidfd of process `pid`. Empty if the kernel or a container's filter does not allow it.
inline unique_fd open_pidfd(pid_t pid) noexcept {
#ifdef SYS_pidfd_open
  return unique_fd::above_standard(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
#else
  (void)pid;
  return {};
#endif
}

/// Returns random bytes.
/// Throws: `error` system.
template <std::size_t Count>
std::array<std::byte, Count> draw_bytes() {
  static_assert(Count <= 256, "getrandom gives these whole, without an interruption");
  std::array<std::byte, Count> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    throw system_failure("drawing random bytes", errno);
  return random;
}

/// Returns 32 random hexadecimal digits.
/// Throws: `error` system.
inline std::string draw_digits() {
  std::string drawn;
  constexpr std::string_view digits = "0123456789abcdef";
  for (const std::byte each : draw_bytes<16>()) {
    const auto value = std::to_integer<std::size_t>(each);
    drawn += digits[value / 16];
    drawn += digits[value % 16];
  }
  return drawn;
}

/// Makes a Unix stream connection between rank 0 and `leaf`. Returns both ends, in this order.
/// Throws: `error` system.
inline std::pair<unique_fd, unique_fd> connected_pair(rank_id leaf) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw system_failure(concat("connecting rank 0 and ", leaf), errno);
  std::pair<unique_fd, unique_fd> made{unique_fd::above_standard(ends[0]),
                                       unique_fd::above_standard(ends[1])};
  if (!made.first || !made.second)
    throw system_failure(concat("connecting rank 0 and ", leaf), errno);
  return made;
}

/// Returns a duplicate of `fd`. If `fd` is empty, the duplicate is empty.
/// Throws: `error` system.
inline unique_fd duplicate(const unique_fd& fd) {
  if (!fd) return {};
  auto copy = unique_fd::above_standard(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_failure("duplicating a file descriptor", errno);
  return copy;
}

/// Describes the limit of open files if it leaves this process fewer than `needed` further
/// descriptors, otherwise returns an empty string. `newest` was just opened: its number estimates
/// the number of open descriptors.
inline std::string describe_lack_of_descriptors(std::size_t needed, const unique_fd& newest) {
  rlimit limit{};
  const auto total = static_cast<rlim_t>(newest.get()) + 1 + needed;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= total) return {};
  return concat("a process may open ", limit.rlim_cur, " files (ulimit -n), expected at least ",
                total);
}

/// Calls poll(2). Returns at the first event, at `until`, after `slice` or on a signal, whichever
/// comes first. Callers loop.
inline void poll_for(std::span<pollfd> entries, deadline until,
                     std::chrono::milliseconds slice) noexcept {
  for (pollfd& entry : entries) entry.revents = 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<deadline::clock::duration>(until.remaining(), slice));
  if (::poll(entries.data(), entries.size(), static_cast<int>(left.count())) < 0)
    for (pollfd& entry : entries) entry.revents = 0;
}

/// The time between two polls of states that no descriptor reports, such as words in shared memory.
inline constexpr std::chrono::milliseconds poll_pause{10};

/// Returns a duration as text for messages, such as "30 s", "1.5 s" or "20 ms".
inline std::string describe_span(deadline::clock::duration span) {
  if (span == deadline::clock::duration::max()) return "an unlimited time";
  const auto left = std::max(span, deadline::clock::duration::zero());
  const auto ms = std::chrono::round<std::chrono::milliseconds>(left).count();
  if (ms < 1000) return concat(ms, " ms");
  const auto tenths = (ms + 50) / 100;
  return tenths % 10 == 0 ? concat(tenths / 10, " s") : concat(tenths / 10, ".", tenths % 10, " s");
}

/// Returns text such as "rank 3" or "ranks 1, 3-9", in the order of `ranks`.
inline std::string describe_ranks(const std::vector<rank_id>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1].index() == ranks[last].index() + 1) ++last;
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i].index());
    if (last != i) text += concat(last == i + 1 ? ", " : "-", ranks[last].index());
    i = last + 1;
  }
  return text;
}

}  // namespace peerbus::detail
