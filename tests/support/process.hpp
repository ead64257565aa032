// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
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
