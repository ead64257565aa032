// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

/// A random word in the memory of a process. Another process reads it to make sure that it reads
/// the right memory, because a process number has no meaning in another PID namespace.
struct process_word {
  static constexpr std::int32_t no_process = -1;  ///< a number that no process has

  std::int64_t pid = no_process;  ///< the number of the process in its own PID namespace
  std::uint64_t address = 0;      ///< the address of the word
  std::uint64_t value = 0;        ///< the value of the word, a random number

  /// Sets `word` to a random number and returns its description. If the kernel gives no random
  /// number, returns a description of no process.
  [[nodiscard]] static process_word describe(std::uint64_t& word) noexcept;
};

/// The memory of a process of this host, read at addresses that the process has sent. It is read by
/// process_vm_readv, also if the process is this one, because the call fails if the memory is gone,
/// while a load would end the process. The call needs the right to trace the process: the same user
/// and, if /proc/sys/kernel/yama/ptrace_scope is 1, `permit_private_reads` in the process that is
/// read.
/// Cost: a `process_memory` is a number. Nothing is allocated.
/// Threads: any, at the same time.
class process_memory {
 public:
  /// Refers to the memory of no process, which cannot be read.
  process_memory() = default;
  /// Returns the memory of this process.
  [[nodiscard]] static process_memory own() noexcept;
  /// Returns the memory of the process that `word` describes. Returns the memory of no process if
  /// the word is not there any more, or if this process may not read it.
  /// Cost: one system call.
  [[nodiscard]] static process_memory find(const process_word& word) noexcept;

  /// Returns whether this is the memory of a process. A later `read` may still fail.
  [[nodiscard]] bool is_readable() const noexcept { return pid_ != process_word::no_process; }
  /// Copies `target.size()` bytes from `address` of the process to `target`. After a failure, a
  /// part of `target` may be written.
  /// Cost: a system call (0.5 to 2 us), and one pass by the kernel, with 0.1 to 0.3 us a page.
  /// Returns: unsupported if this process may not read that memory, or may not any more;
  /// out_of_range if not all bytes can be read there or `target` cannot be written; peer_dead if
  /// the process is gone.
  [[nodiscard]] errc read(std::uint64_t address, std::span<std::byte> target) const noexcept;

 private:
  explicit process_memory(pid_t pid) noexcept : pid_{pid} {}

  pid_t pid_ = process_word::no_process;
};

/// Lets all processes of this user read the private memory of this process, if Yama restricts that
/// to its ancestors: prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY). They may then trace it in other
/// ways too. Peers test the right when a window is made, so ranks call this earlier. The library
/// never calls it.
/// Cost: a system call.
/// Returns: whether the kernel accepts the request. It does not if it has no Yama.
bool permit_private_reads() noexcept;

namespace detail {

/// Returns whether all pages of `memory` are mapped in this process.
/// Cost: a system call for each 4 MiB.
bool is_mapped(std::span<const std::byte> memory) noexcept;

}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/process_memory.ipp>  // IWYU pragma: keep
#endif
