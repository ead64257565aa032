// SPDX-License-Identifier: MIT
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/copy.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/process_memory.hpp>

/// Copies, and the private memory of processes.
namespace memory_test {

using peerbus::errc;
using peerbus::process_memory;
using peerbus::process_word;

namespace {

constexpr std::size_t page = 4096;

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

/// Two pages of memory of which the second one can be taken away.
std::byte* two_pages() {
  void* const memory =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<std::byte*>(memory);
}

/// Returns whether there is the call by which memory is read: emulators of a processor may lack it.
bool has_reads() {
  char word = 0;
  char copy = 0;
  const iovec local{&copy, 1};
  const iovec remote{&word, 1};
  const bool works =
      ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1 || errno != ENOSYS;
  if (!works) MESSAGE("not tested: no process_vm_readv here");
  return works;
}

/// A process that has a copy of this one's memory, and changes one word of it.
class child {
 public:
  explicit child(std::uint64_t& word) {
    std::array<int, 2> ready{};
    REQUIRE(::pipe(ready.data()) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      process_word described = process_word::describe(word);
      if (::write(ready[1], &described, sizeof described) != sizeof described) ::_exit(1);
      for (;;) ::pause();
    }
    REQUIRE(::read(ready[0], &described_, sizeof described_) == sizeof described_);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() { end(); }

  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  [[nodiscard]] const process_word& word() const { return described_; }

 private:
  pid_t pid_ = 0;
  process_word described_;
};

}  // namespace

TEST_CASE("copy_bytes copies every byte and no other, wherever ranges lie in their pages") {
  std::vector<std::byte> source(6 * page);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = pattern(i);
  std::vector<std::byte> target(6 * page);
  const auto offset_of = [](std::byte* memory) {
    return page - reinterpret_cast<std::uintptr_t>(memory) % page;
  };
  std::byte* const from = source.data() + offset_of(source.data());
  std::byte* const to = target.data() + offset_of(target.data()) + 64;
  for (const std::size_t bytes : {0U, 1U, 255U, 2047U, 2048U, 2049U, 2304U, 5000U, 8191U})
    for (std::size_t shift = 0; shift < 70; shift += bytes == 5000 ? 1 : 9) {
      std::memset(target.data(), 0x55, target.size());
      peerbus::detail::copy_bytes(to + shift, from + 64, bytes);
      REQUIRE(std::memcmp(to + shift, from + 64, bytes) == 0);
      REQUIRE(to[static_cast<std::ptrdiff_t>(shift) - 1] == std::byte{0x55});
      REQUIRE(to[shift + bytes] == std::byte{0x55});
    }
  peerbus::detail::copy_bytes(to, to, 4096);
  peerbus::detail::copy_bytes(nullptr, nullptr, 0);
}

TEST_CASE("the memory of this process") {
  const std::vector<std::byte> source(5000, std::byte{3});
  std::vector<std::byte> target(5000);
  const process_memory own = process_memory::own();
  CHECK(own.is_readable());
  CHECK_FALSE(process_memory{}.is_readable());
  CHECK(process_memory{}.read(0, target) == errc::unsupported);
  if (!has_reads()) return;
  CHECK(own.read(reinterpret_cast<std::uintptr_t>(source.data()), target) == errc::ok);
  CHECK(target == source);
  std::uint64_t word = 0;
  const process_word described = process_word::describe(word);
  CHECK(word == described.value);
  CHECK(process_memory::find(described).is_readable());
}

TEST_CASE("the memory of another process") {
  if (!has_reads()) return;
  std::byte* const memory = two_pages();
  for (std::size_t i = 0; i < page; ++i) memory[i] = pattern(i);
  std::uint64_t word = 5;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  ::munmap(memory + page, page);
  child other{word};
  std::memset(memory, 0, page);

  const process_memory theirs = process_memory::find(other.word());
  REQUIRE(theirs.is_readable());
  std::vector<std::byte> target(page);
  CHECK(theirs.read(begin + 3, std::span{target}.first(page - 3)) == errc::ok);
  for (std::size_t i = 0; i + 3 < page; ++i) REQUIRE(target[i] == pattern(i + 3));
  CHECK(theirs.read(begin, {}) == errc::ok);
  // A part of it is not there, or all of it.
  CHECK(theirs.read(begin + 1, target) == errc::out_of_range);
  CHECK(theirs.read(begin + page, std::span{target}.first(1)) == errc::out_of_range);

  // The same number may be that of another process in another namespace.
  process_word wrong = other.word();
  ++wrong.value;
  CHECK_FALSE(process_memory::find(wrong).is_readable());
  wrong = other.word();
  wrong.pid = ::getpid();
  CHECK_FALSE(process_memory::find(wrong).is_readable());

  other.end();
  CHECK(theirs.read(begin, target) == errc::peer_dead);
  CHECK_FALSE(process_memory::find(other.word()).is_readable());
  ::munmap(memory, page);
}

TEST_CASE("is_mapped") {
  std::byte* const memory = two_pages();
  CHECK(peerbus::detail::is_mapped({memory, 2 * page}));
  CHECK(peerbus::detail::is_mapped({}));
  ::munmap(memory + page, page);
  CHECK(peerbus::detail::is_mapped({memory + 1, page - 1}));
  CHECK_FALSE(peerbus::detail::is_mapped({memory + 1, page}));
  ::munmap(memory, page);
  // More than one call of the kernel looks at.
  constexpr std::size_t large = std::size_t{9} << 20U;
  void* const all = ::mmap(nullptr, large, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(all != MAP_FAILED);
  const std::span whole{static_cast<std::byte*>(all), large};
  CHECK(peerbus::detail::is_mapped(whole));
  ::munmap(whole.data() + large - page, page);
  CHECK_FALSE(peerbus::detail::is_mapped(whole));
  ::munmap(all, large);
}

}  // namespace memory_test
