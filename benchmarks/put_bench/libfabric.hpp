// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>

#include "put_bench/contender.hpp"

namespace put_bench {

/// Collective: makes libfabric without peerbus's protocol, over a reliable datagram endpoint of the
/// same provider: messages, and writes with a message behind them. `domain`: empty for the loopback
/// interface. Messages are at most `bytes` bytes in all.
/// Throws: `std::runtime_error` with what libfabric says.
[[nodiscard]] std::unique_ptr<contender> make_libfabric(peerbus::bootstrap& boot,
                                                        const std::string& provider,
                                                        const std::string& domain,
                                                        std::size_t bytes);

}  // namespace put_bench
