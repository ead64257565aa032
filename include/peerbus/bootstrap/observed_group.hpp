// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/state_page_header.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// The state of a process, as the kernel shows it.
enum class process_state : std::uint8_t {
  unknown,  ///< the kernel does not show it to this user
  running,  ///< runs, sleeps or waits for a device
  stopped,  ///< stopped by a signal or a debugger
  gone,     ///< has ended, even if its parent has not waited for it
};

/// Returns the name of a state, such as "stopped".
[[nodiscard]] const char* name_of(process_state state) noexcept;

/// The state of a rank, as seen by a process outside its group.
struct observed_rank {
  rank_id rank;                                ///< the number of the rank in the group
  pid_t process = 0;                           ///< the process of the rank; 0 if no process has
                                               ///< become the rank yet
  process_state is = process_state::unknown;   ///< the state of the process
  rank_state announced = rank_state::running;  ///< the announced state; `running` in a group that
                                               ///< met over TCP
  std::optional<activity> latest;              ///< the latest wait; empty if the rank has not
                                               ///< waited yet
};

namespace detail {
class state_page;
}  // namespace detail

/// A group whose ranks run in other processes of this host, for programs that look at it from
/// outside. It reads the memory in which the ranks record their waits. No rank notices this or
/// takes part in it, so that a stopped rank can be read as well as a running one. It keeps that
/// memory alive, so that a group can be read after its ranks have ended.
///
/// Threads: `read` may be called by several threads at once.
class observed_group {
 public:
  /// Finds the groups whose memory `process` holds, in the order in which the process opened them:
  /// the groups in which it is a rank, or several as threads, the groups that it has started by
  /// `run_local`, and the groups of a process that forked it.
  ///
  /// Cost: a system call for each open file of the process, and a mapping for each group.
  ///
  /// Throws: `error` invalid_argument if there is no such process; system if the kernel refuses to
  /// show its open files, as it does for processes of other users; unsupported if the process is in
  /// a container with process numbers of its own, or holds no group; mismatch if its build of
  /// peerbus has another layout of this memory.
  [[nodiscard]] static std::vector<observed_group> attach(pid_t process);

  /// Returns a number that is the same for all observers of one group, such as the observers of the
  /// processes of a group that met over TCP.
  [[nodiscard]] std::uint64_t id() const noexcept {
    return header_.group == 0 ? inode_ : header_.group;
  }

  /// Returns whether both read the same memory, which observers of two ranks of one group may do.
  friend bool operator==(const observed_group& a, const observed_group& b) noexcept {
    return a.inode_ == b.inode_;
  }

  /// Returns the number of ranks of the group.
  [[nodiscard]] std::size_t size() const noexcept { return header_.group_size; }

  /// Returns the host of a rank: the name that its settings gave it (`PEERBUS_HOST`), otherwise an
  /// address. It is the same for all ranks of a host. Empty in a group that met on one host, and
  /// while a group meets over TCP.
  /// Throws: `error` out_of_range if the group has no rank `rank`.
  [[nodiscard]] std::string host_of(rank_id rank) const;

  /// Returns the present state of the ranks that share this memory, in ascending order. These are
  /// all ranks of the group or, if it met over TCP, the rank of the process.
  /// Cost: a system call or two for each process.
  [[nodiscard]] std::vector<observed_rank> read() const;

 private:
  observed_group(std::shared_ptr<const detail::state_page> page, std::uint64_t inode,
                 const detail::state_page_header& header) noexcept;

  std::shared_ptr<const detail::state_page> page_;
  std::uint64_t inode_;  ///< the inode of `page_`
  detail::state_page_header header_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/observed_group.ipp>  // IWYU pragma: keep
#endif
