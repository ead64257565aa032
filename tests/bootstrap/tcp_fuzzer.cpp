// SPDX-License-Identifier: MIT
//
// For libFuzzer, which looks for bytes that reach new code:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude
//     tests/bootstrap/tcp_fuzzer.cpp -o tcp_fuzzer -lssl -lcrypto
//   ./tcp_fuzzer -max_len=4096
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz_targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::callers hellos{false};
  static fuzz::callers first_flights{true};
  if (size == 0) return 0;
  // The first byte says to whom the others are said.
  const fuzz::bytes said = std::as_bytes(std::span{data + 1, size - 1});
  switch (data[0] % 5) {
    case 0: fuzz::read_frames(said); break;
    case 1: fuzz::gather(said); break;
    case 2: fuzz::hear_news(said); break;
    case 3: hellos.hear(said); break;
    default: first_flights.hear(said); break;
  }
  return 0;
}
