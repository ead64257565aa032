// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include <peerbus/core/error.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE unique_fd make_memory_file(const char* name, std::size_t bytes) {
  // Sizing a file beyond this limit would raise SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur)
    throw error{errc::out_of_memory,
                detail::concat("a memory file needs ", bytes, " bytes, the limit is ",
                               limit.rlim_cur, " (see `ulimit -f`)")};
  auto file = unique_fd::above_standard(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw detail::system_failure("making a memory file", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    throw error{errc::out_of_memory, detail::concat("cannot size a memory file to ", bytes,
                                                    " bytes: ", detail::describe_errno(errno))};
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw detail::system_failure("sealing the size of a memory file", errno);
  return file;
}

}  // namespace peerbus
