// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>

#include "put_bench/contender.hpp"

namespace put_bench {

/// Collective: adds UCX's one-sided puts over `transports`, in UCX's words, such as "posix".
/// Payloads have at most `bytes` bytes.
/// Throws: `peerbus::error` system with what UCX says.
void add_ucx(contenders& all, peerbus::bootstrap& boot, const std::string& transports,
             std::size_t bytes);

/// Returns the version of UCX.
[[nodiscard]] std::string ucx_version();

}  // namespace put_bench
