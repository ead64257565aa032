// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "support/ranks.hpp"

/// What ranks that are processes do to themselves, or look up.
namespace test {

/// Returns the number of descriptors that this process has open.
inline std::size_t open_files() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator{"/proc/self/fd"}, {}));
}

/// Lists what they are.
inline std::string list_open_files() {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;  // The folder that is being read is open too.
    text += ' ' + std::filesystem::read_symlink(entry.path(), gone).string();
  }
  return text;
}

/// Returns the number of mappings of this process that others may share. Those of its own grow with
/// what allocators keep.
inline std::size_t shared_mappings() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (const std::size_t rights = line.find(' '); line.compare(rights + 4, 1, "s") == 0) ++count;
  return count;
}

/// Returns the number at the line `name` of /proc/self/status.
inline std::size_t status_number(const std::string& name) {
  std::ifstream lines{"/proc/self/status"};
  for (std::string word; lines >> word;)
    if (std::size_t number = 0; word == name + ':' && lines >> number) return number;
  fail("/proc/self/status has no ", name);
}

/// What a process holds.
struct holdings {
  std::size_t files = open_files();
  std::size_t mappings = shared_mappings();
  std::size_t threads = status_number("Threads");
  std::size_t private_kib = status_number("RssAnon");

  /// Expects that this is what was held `before`, but for what an allocator keeps.
  void expect_as(const holdings& before, const std::string& when) const {
    // More than a huge page, as an allocator may get.
    constexpr std::size_t most_growth_kib = is_sanitized ? 64 * 1024 : 4 * 1024;
    expect_equal(files, before.files, "open files ", when);
    expect_equal(mappings, before.mappings, "shared mappings ", when);
    expect_equal(threads, before.threads, "threads ", when);
    expect(private_kib <= before.private_kib + most_growth_kib, private_kib, " KiB of memory ",
           when, ", expected at most ", before.private_kib + most_growth_kib);
  }
};

/// Calls `turn(i)` for each i below `turns`, after `settled` more, during which everything has been
/// there once. Nothing may be left of the others, at the end and a hundred times before.
template <class Turn>
void expect_nothing_left(std::uint64_t turns, Turn turn, std::uint64_t settled = 10) {
  for (std::uint64_t i = 0; i < settled; ++i) turn(i);
  const holdings before;
  for (std::uint64_t done = 1; done <= turns; ++done) {
    turn(settled + done - 1);
    if (done == turns || done % (turns / 100 + 1) == 0)
      holdings{}.expect_as(before, "after " + std::to_string(done) + " turns");
  }
}

inline void close_standard_streams() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(standard);
}
/// Expects that what is written to the standard streams goes nowhere.
inline void expect_no_standard_streams() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    expect(::write(standard, "a line\n", 7) < 0 && errno == EBADF, "a line for descriptor ",
           standard, " goes nowhere");
}

/// Forks. Returns true in the child, and false in the parent, once the child has ended well.
inline bool is_forked_child() {
  const pid_t child = ::fork();
  if (child == 0) return true;
  int status = -1;
  expect(::waitpid(child, &status, 0) == child && status == 0, "a child that ends well");
  return false;
}

}  // namespace test
