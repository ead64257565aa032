// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <peerbus/core/object_bytes.hpp>
#include <peerbus/core/process_memory.hpp>

namespace peerbus {

PEERBUS_INLINE process_word process_word::describe(std::uint64_t& word) noexcept {
  if (::getrandom(&word, sizeof word, 0) != sizeof word) return {};
  return {::getpid(), reinterpret_cast<std::uintptr_t>(&word), word};
}

PEERBUS_INLINE process_memory process_memory::find(const process_word& word) noexcept {
  const process_memory memory{static_cast<pid_t>(word.pid)};
  std::uint64_t value = 0;
  if (memory.read(word.address, detail::writable_object_bytes(value)) != errc::ok ||
      value != word.value)
    return {};
  return memory;
}

PEERBUS_INLINE process_memory process_memory::own() noexcept { return process_memory{::getpid()}; }

PEERBUS_INLINE errc process_memory::read(std::uint64_t address,
                                         std::span<std::byte> target) const noexcept {
  if (!is_readable()) return errc::unsupported;
  while (!target.empty()) {
    const iovec local{target.data(), target.size()};
    const iovec remote{reinterpret_cast<void*>(address),  // NOLINT(performance-no-int-to-ptr)
                       target.size()};
    const ssize_t read = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (read <= 0) {
      if (read == 0 || errno == EFAULT) return errc::out_of_range;
      return errno == ESRCH ? errc::peer_dead : errc::unsupported;
    }
    // Fewer bytes: the next call says why, if that is a failure.
    address += static_cast<std::uint64_t>(read);
    target = target.subspan(static_cast<std::size_t>(read));
  }
  return errc::ok;
}

PEERBUS_INLINE bool permit_private_reads() noexcept {
  // Through a variable, because the type of the constant differs between C libraries.
  const unsigned long any_process = PR_SET_PTRACER_ANY;
  return ::prctl(PR_SET_PTRACER, any_process, 0UL, 0UL, 0UL) == 0;
}

namespace detail {

PEERBUS_INLINE bool is_mapped(std::span<const std::byte> memory) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::array<unsigned char, 1024> states;
  const std::uintptr_t end = address + memory.size();
  for (std::uintptr_t at = address / page * page; at < end; at += states.size() * page) {
    const std::size_t bytes = std::min<std::size_t>(end - at, states.size() * page);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    if (::mincore(reinterpret_cast<void*>(at), bytes, states.data()) != 0 && errno == ENOMEM)
      return false;
  }
  return true;
}

}  // namespace detail

}  // namespace peerbus
