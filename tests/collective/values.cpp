// SPDX-License-Identifier: MIT
#include "collective/values.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/collective/reduction.hpp>
#include <peerbus/core/bf16.hpp>

namespace collective_suite {

template <class T>
std::vector<T> values(std::size_t rank, std::size_t count, std::uint64_t salt, std::size_t first) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = value<T>(rank, first + i, salt);
  return made;
}

template <class T, class Op>
std::vector<T> all_reduced(std::size_t ranks, std::size_t count, std::uint64_t salt, Op op,
                           std::size_t first) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = reduced<T>(ranks, first + i, salt, op);
  return made;
}

#define PEERBUS_TEST_VALUES(T) \
  template std::vector<T> values<T>(std::size_t, std::size_t, std::uint64_t, std::size_t)
PEERBUS_TEST_VALUES(bf16);
PEERBUS_TEST_VALUES(double);
PEERBUS_TEST_VALUES(float);
PEERBUS_TEST_VALUES(std::int32_t);
PEERBUS_TEST_VALUES(std::int64_t);
PEERBUS_TEST_VALUES(std::uint16_t);
PEERBUS_TEST_VALUES(std::uint8_t);
#undef PEERBUS_TEST_VALUES

#define PEERBUS_TEST_REDUCED(T, Op)                                               \
  template std::vector<T> all_reduced<T>(std::size_t, std::size_t, std::uint64_t, \
                                         peerbus::collective::Op, std::size_t)
PEERBUS_TEST_REDUCED(bf16, sum);
PEERBUS_TEST_REDUCED(double, product);
PEERBUS_TEST_REDUCED(float, sum);
PEERBUS_TEST_REDUCED(std::int32_t, maximum);
PEERBUS_TEST_REDUCED(std::int32_t, sum);
PEERBUS_TEST_REDUCED(std::int64_t, minimum);
PEERBUS_TEST_REDUCED(std::uint8_t, sum);
#undef PEERBUS_TEST_REDUCED

}  // namespace collective_suite
