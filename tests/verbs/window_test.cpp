// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>
#include <string>

#include <doctest/doctest.h>

#include "conformance/window_suite.hpp"
#include "verbs/support.hpp"

// The numbered semantics of `transport` over a device, with the usual options and with several
// small queues per peer. Afterwards the kernel keeps nothing for us.

namespace {
using verbs_test::plain;
using verbs_test::striped;

constexpr std::size_t all_sizes[] = {1, 2, 3, 4, 5, 8};
constexpr std::size_t few_sizes[] = {1, 2, 3};

struct nothing_stays {
  std::string before = verbs_test::resources();
  ~nothing_stays() { CHECK(verbs_test::resources() == before); }
};
}  // namespace

TEST_CASE("a fresh window is zero") {
  const nothing_stays checked;
  for (const std::size_t n : all_sizes) conformance::check_fresh_windows<plain>(n);
}

TEST_CASE("put, signal, put_signal and wait among all ranks") {
  const nothing_stays checked;
  for (const std::size_t n : all_sizes) conformance::check_all_to_all<plain>(n);
  for (const std::size_t n : few_sizes) conformance::check_all_to_all<striped>(n);
}

TEST_CASE("get") {
  for (const std::size_t n : all_sizes) conformance::check_get<plain>(n);
  for (const std::size_t n : few_sizes) conformance::check_get<striped>(n);
}

TEST_CASE("what does not exist is refused before a byte is written") {
  for (const std::size_t n : all_sizes) conformance::check_ranges<plain>(n);
}

TEST_CASE("memory outside windows is refused") {
  for (const std::size_t n : all_sizes) conformance::check_foreign_memory<plain>(n);
}

TEST_CASE("signals hold 64 bits and never fall") {
  for (const std::size_t n : all_sizes) conformance::check_signals<plain>(n);
  for (const std::size_t n : few_sizes) conformance::check_signals<striped>(n);
}

TEST_CASE("short waits learn of a rank that left") {
  for (const std::size_t n : few_sizes) conformance::check_short_waits<plain>(n);
}

TEST_CASE("a signal comes after its puts, and signals in order") {
  for (const std::size_t n : all_sizes) conformance::check_stream<plain>(n);
  for (const std::size_t n : few_sizes) conformance::check_stream<striped>(n);
}

TEST_CASE("a barrier orders what came before it") {
  for (const std::size_t n : all_sizes) conformance::check_barrier<plain>(n, 100);
  for (const std::size_t n : few_sizes) conformance::check_barrier<striped>(n, 50);
}

TEST_CASE("fetch_add") {
  for (const std::size_t n : all_sizes) conformance::check_fetch_add<plain>(n);
}

TEST_CASE("windows are independent") {
  const nothing_stays checked;
  for (const std::size_t n : all_sizes) conformance::check_many_windows<plain>(n);
}
