// SPDX-License-Identifier: MIT
//
// Built for coverage: ranks write what they have counted, into the folder that the argument names,
// before they end. The program itself writes nothing.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>

int main(int argc, char** argv) {
  namespace files = std::filesystem;
  if (argc != 2) return 2;
  files::remove_all(argv[1]);
  files::create_directories(argv[1]);
  const int status = peerbus::run_local(2, [](peerbus::bootstrap&) {});
  std::size_t count = 0;
  for (const auto& entry : files::recursive_directory_iterator{argv[1]})
    if (entry.is_regular_file() && entry.file_size() != 0) ++count;
  std::printf("status %d, %zu files of counts; expected 0 and at least 1\n", status, count);
  std::fflush(stdout);
  ::_exit(status == 0 && count != 0 ? 0 : 1);
}
