// SPDX-License-Identifier: MIT
//
// Built with --coverage: ranks write what they have counted before they end. The program itself
// writes none.
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp and setenv are POSIX's.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>

int main() {
  namespace files = std::filesystem;
  std::string folder = (files::temp_directory_path() / "peerbus_coverage.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 2;
  ::setenv("GCOV_PREFIX", folder.c_str(), 1);
  const int status = peerbus::run_local(2, [](peerbus::bootstrap&) {});
  std::size_t count = 0;
  for (const auto& entry : files::recursive_directory_iterator{folder})
    if (entry.path().extension() == ".gcda") ++count;
  files::remove_all(folder);
  std::printf("status %d, %zu files of counts; expected 0 and at least 1\n", status, count);
  std::fflush(stdout);
  ::_exit(status == 0 && count != 0 ? 0 : 1);  // The folder is gone.
}
