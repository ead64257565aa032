// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/transport/verbs.hpp>

#include "conformance/window_suite.hpp"
#include "support/ranks.hpp"

namespace {

using group = test::processes_over<peerbus::verbs>;

constexpr std::size_t all_sizes[] = {1, 2, 3, 4, 5, 8};

}  // namespace

TEST_CASE("a fresh window is zero") {
  for (const std::size_t n : all_sizes) conformance::check_fresh_windows<group>(n);
}

TEST_CASE("put, signal, put_signal and wait among all ranks") {
  for (const std::size_t n : all_sizes) conformance::check_all_to_all<group>(n);
}

TEST_CASE("get") {
  for (const std::size_t n : all_sizes) conformance::check_get<group>(n);
}

TEST_CASE("what does not exist is refused before a byte is written") {
  for (const std::size_t n : all_sizes) conformance::check_ranges<group>(n);
}

TEST_CASE("memory outside windows is refused") {
  for (const std::size_t n : all_sizes) conformance::check_foreign_memory<group>(n);
}

TEST_CASE("signals hold 64 bits and never fall") {
  for (const std::size_t n : all_sizes) conformance::check_signals<group>(n);
}

TEST_CASE("a signal comes after its puts, and signals in order") {
  for (const std::size_t n : all_sizes) conformance::check_stream<group>(n);
}

TEST_CASE("a barrier orders what came before it") {
  for (const std::size_t n : all_sizes) conformance::check_barrier<group>(n, 100);
}

TEST_CASE("fetch_add") {
  for (const std::size_t n : all_sizes) conformance::check_fetch_add<group>(n);
}

TEST_CASE("windows are independent") {
  for (const std::size_t n : all_sizes) conformance::check_many_windows<group>(n);
}
