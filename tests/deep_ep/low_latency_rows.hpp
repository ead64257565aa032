// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/low_latency_oracle.hpp"

/// What a low-latency dispatch brought, read and checked by its tensors alone.
namespace low_latency_suite {

namespace deep_ep = peerbus::deep_ep;
using oracle::low_latency::batch;
using oracle::low_latency::contents;
using oracle::low_latency::format;
using oracle::low_latency::sizes;
using oracle::low_latency::ways;
using oracle::low_latency::world;
using peerbus::bf16;

/// Row `i` of expert `e` as numbers, from the received tensors alone.
std::vector<float> read_row(const deep_ep::low_latency_dispatch_result& got, std::size_t e,
                            std::size_t i);

void expect_shape(const deep_ep::const_tensor& given, std::string_view expected,
                  std::string_view what);

/// Checks dtypes, sizes and strides: what a port relies on before it looks at a single row.
void check_shapes(const deep_ep::low_latency_dispatch_result& got, const batch& from,
                  std::size_t rank);

/// Checks all rows that came to `rank`, bit by bit.
void check_rows(const deep_ep::low_latency_dispatch_result& got, const batch& from,
                std::size_t rank);

}  // namespace low_latency_suite
