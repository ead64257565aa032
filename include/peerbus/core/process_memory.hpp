// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

/// A word of a process, by which another process makes sure that it reads the memory of that one:
/// the number of a process means nothing to one of another PID namespace.
struct process_word {
  static constexpr std::int32_t no_process = -1;  ///< a number that no process has

  std::int64_t pid = no_process;  ///< the number of the process, as it sees itself
  std::uint64_t address = 0;      ///< where the word lies
  std::uint64_t value = 0;        ///< the word, a random number

  /// Makes `word` a random number, and returns the description of it: one of no process if the
  /// kernel gives no random number.
  [[nodiscard]] static process_word describe(std::uint64_t& word) noexcept;
};

/// The memory of a process of this host, of which this process knows addresses. It is read by
/// process_vm_readv, also that of this process: memory that is gone ends the call, while a load
/// would end the process. The call needs the right to trace that process: the same user, and where
/// /proc/sys/kernel/yama/ptrace_scope is 1, `permit_private_reads` in that process.
/// Cost: a `process_memory` is a number. Nothing is allocated.
/// Threads: any, at the same time.
class process_memory {
 public:
  /// Refers to the memory of no process, which cannot be read.
  process_memory() = default;
  /// Returns the memory of this process.
  [[nodiscard]] static process_memory own() noexcept;
  /// Returns the memory of the process of `word`, which still lies there, or that of no process if
  /// this one may not read it.
  /// Cost: one system call.
  [[nodiscard]] static process_memory find(const process_word& word) noexcept;

  /// Returns whether the memory could be read when it was found.
  [[nodiscard]] bool is_readable() const noexcept { return pid_ != process_word::no_process; }
  /// Copies `target.size()` bytes from `address` of the process. After a failure, `target` may hold
  /// some of them.
  /// Cost: a system call (0.5 to 2 us), and one pass by the kernel, with 0.1 to 0.3 us a page.
  /// Returns: unsupported if this process may not, or may no longer, read it; out_of_range if not
  /// all of it can be read there, or `target` cannot be written; peer_dead if the process is gone.
  [[nodiscard]] errc read(std::uint64_t address, std::span<std::byte> target) const noexcept;

 private:
  explicit process_memory(pid_t pid) noexcept : pid_{pid} {}

  pid_t pid_ = process_word::no_process;
};

/// Lets all processes of this user read the private memory of this one, where Yama restricts that
/// to its ancestors: prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY). They may trace it in other ways
/// too. Peers find out when a window is made, so ranks call it before. The library never does.
/// Cost: a system call.
/// Returns whether the kernel knows such a restriction.
bool permit_private_reads() noexcept;

namespace detail {

/// Returns whether all of `memory` is mapped in this process.
/// Cost: a system call for each 4 MiB.
bool is_mapped(std::span<const std::byte> memory) noexcept;

}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/process_memory.ipp>  // IWYU pragma: keep
#endif
