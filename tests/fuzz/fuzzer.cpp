// SPDX-License-Identifier: MIT
//
// For libFuzzer, which looks for bytes that reach new code. PEERBUS_FUZZ_TARGET names the target,
// which is one of the folders of tests/fuzz/corpus. tests/run.sh builds and runs it (stage search).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "fuzz/c_targets.hpp"
#include "fuzz/file_targets.hpp"
#include "fuzz/library_targets.hpp"
#include "fuzz/tcp_targets.hpp"

namespace {

void (*chosen)(fuzz::bytes) = nullptr;

void choose(std::span<const fuzz::target> targets, std::string_view name) {
  for (const fuzz::target& known : targets)
    if (known.name == name) chosen = known.read;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  const char* const name = std::getenv("PEERBUS_FUZZ_TARGET");
  if (name != nullptr) {
    choose(fuzz::tcp_targets, name);
    choose(fuzz::library_targets, name);
    choose(fuzz::c_targets, name);
    choose(fuzz::file_targets, name);
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "PEERBUS_FUZZ_TARGET is %s, expected a folder of tests/fuzz/corpus\n",
                 name == nullptr ? "not set" : name);
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen(std::as_bytes(std::span{data, size}));
  return 0;
}
