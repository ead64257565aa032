// SPDX-License-Identifier: MIT
#pragma once

#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>

namespace bench {

/// Where something lies in the address space of another process.
using far_address = std::uint64_t;

/// Lets the other ranks write into this process where Yama restricts that to parents
/// (ptrace_scope 1). Elsewhere it changes nothing.
inline void allow_kernel_copies() noexcept {
#if defined(PR_SET_PTRACER)
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
}

/// Copies `bytes` from here to `to` of process `process` through the kernel: what a copy engine
/// does for a basic collective, with a start-up cost per message.
/// Returns: 0, or an errno.
inline int try_kernel_copy(pid_t process, far_address to, const std::byte* from,
                           std::size_t bytes) noexcept {
  while (bytes != 0) {
    iovec here{const_cast<std::byte*>(from), bytes};  // The system call reads only.
    iovec there{reinterpret_cast<void*>(to), bytes};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t done = ::process_vm_writev(process, &here, 1, &there, 1, 0);
    if (done < 0) return errno;
    if (done == 0) return EIO;
    from += done;
    to += static_cast<far_address>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return 0;
}

/// Throws: `peerbus::error` system.
inline void kernel_copy(pid_t process, far_address to, const std::byte* from, std::size_t bytes) {
  if (const int code = try_kernel_copy(process, to, from, bytes); code != 0)
    throw peerbus::system_failure("copying by process_vm_writev", code);
}

}  // namespace bench
