// SPDX-License-Identifier: MIT
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fp8.hpp>

#include "support/ranks.hpp"

namespace tensor_test {

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::fp8_e4m3;
using peerbus::deep_ep::const_tensor;
using peerbus::deep_ep::dtype;
using peerbus::deep_ep::dtype_of;
using peerbus::deep_ep::tensor;
using peerbus::deep_ep::view;

static_assert(dtype_of<bool> == dtype::boolean && dtype_of<std::int8_t> == dtype::int8);
static_assert(dtype_of<std::int32_t> == dtype::int32 && dtype_of<std::int64_t> == dtype::int64);
static_assert(dtype_of<float> == dtype::float32 && dtype_of<bf16> == dtype::bfloat16);
static_assert(dtype_of<const fp8_e4m3> == dtype::float8_e4m3fn);
static_assert(std::is_convertible_v<tensor, const_tensor>);
static_assert(!std::is_convertible_v<const_tensor, tensor>);
static_assert(std::is_same_v<decltype(view(std::declval<std::vector<float>&>(), {1})), tensor>);
static_assert(
    std::is_same_v<decltype(view(std::declval<const std::vector<float>&>(), {1})), const_tensor>);

template <class T>
constexpr bool right_size = peerbus::deep_ep::bytes_of(dtype_of<T>) == sizeof(T);
static_assert(right_size<bool> && right_size<std::int8_t> && right_size<std::int32_t> &&
              right_size<std::int64_t> && right_size<float> && right_size<bf16> &&
              right_size<fp8_e4m3>);
static_assert(to_string(dtype::boolean) == "bool" && to_string(dtype::int8) == "int8" &&
              to_string(dtype::int32) == "int32" && to_string(dtype::int64) == "int64" &&
              to_string(dtype::float32) == "float32" && to_string(dtype::bfloat16) == "bfloat16" &&
              to_string(dtype::float8_e4m3fn) == "float8_e4m3fn");

}  // namespace

TEST_CASE("a tensor without dimensions is none") {
  const tensor none;
  CHECK(!none);
  CHECK(none.dims() == 0);
  CHECK(none.elements() == 0);
  CHECK(none.describe() == "none");
  CHECK(none.data() == nullptr);
  // One without elements is none the less one.
  const const_tensor empty{nullptr, dtype::bfloat16, {0, 7168}};
  CHECK(static_cast<bool>(empty));
  CHECK(empty.elements() == 0);
  CHECK(empty.contiguous());
  CHECK(empty.describe() == "bfloat16 [0, 7168]");
}

TEST_CASE("elements of a tensor, by indices and strides") {
  std::vector<std::int32_t> memory(24);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::int32_t>(i);
  const tensor rows = view(memory, {2, 3, 4});
  CHECK(rows.dims() == 3);
  CHECK(rows.stride(0) == 12);
  CHECK(rows.stride(1) == 4);
  CHECK(rows.stride(2) == 1);
  CHECK(rows.contiguous());
  CHECK(rows.at<std::int32_t>(1, 2, 3) == 23);
  rows.at<std::int32_t>(1, 0, 1) = -1;
  CHECK(memory[13] == -1);
  CHECK(rows.values<std::int32_t>().size() == 24);
  CHECK(rows.values<std::int32_t>().data() == memory.data());

  const const_tensor columns{memory.data(), dtype::int32, {3, 4}, {1, 3}};
  CHECK(!columns.contiguous());
  CHECK(columns.at<std::int32_t>(2, 1) == 5);
  CHECK(columns.describe() == "int32 [3, 4] with strides [1, 3]");
  const const_tensor gaps{memory.data(), dtype::int32, {2, 5}, {8, 1}};
  CHECK(!gaps.contiguous());
  CHECK(gaps.at<std::int32_t>(1, 4) == 12);
  // Strides of dimensions of one element, or of no elements at all, do not matter.
  CHECK(const_tensor{memory.data(), dtype::int32, {1, 4}, {99, 1}}.contiguous());
  CHECK(const_tensor{memory.data(), dtype::int32, {4, 1}, {1, 99}}.contiguous());
  CHECK(const_tensor{nullptr, dtype::int32, {0, 4}, {9, 9}}.contiguous());
  CHECK(const_tensor{memory.data(), dtype::int32, {7}}.describe() == "int32 [7]");
}

TEST_CASE("a tensor of another type, or of other sizes than its memory, is refused") {
  std::array<float, 6> memory{};
  const tensor rows = view(memory, {2, 3});
  test::expect_error(errc::invalid_argument, {"float32 [2, 3]", "bfloat16"},
                     [&] { static_cast<void>(rows.as<bf16>()); });
  test::expect_error(errc::invalid_argument, {"float32 [2, 3]", "int32"},
                     [&] { static_cast<void>(rows.at<std::int32_t>(0, 0)); });
  test::expect_error(errc::invalid_argument, {"float32 [2, 3]", "int64"},
                     [&] { static_cast<void>(rows.values<std::int64_t>()); });
  test::expect_error(errc::invalid_argument, {"float32 [2, 4]", "given 6", "expected 8"},
                     [&] { static_cast<void>(view(memory, {2, 4})); });
  test::expect_error(errc::invalid_argument, {"4 sizes", "at most 3"}, [&] {
    const const_tensor never{memory.data(), dtype::float32, {1, 1, 2, 3}};
  });
  test::expect_error(errc::invalid_argument, {"2 sizes and 1 strides"},
                     [&] { const const_tensor never{memory.data(), dtype::float32, {2, 3}, {3}}; });
}

TEST_CASE("events and hooks of calls that left nothing to wait for") {
  const peerbus::deep_ep::event_overlap event;
  event.current_stream_wait();
  event.current_stream_wait();
  const peerbus::deep_ep::recv_hook hook;
  CHECK(!hook);
  test::expect_error(errc::invalid_argument, {"hook", "without return_recv_hook"}, [&] { hook(); });
}

}  // namespace tensor_test
