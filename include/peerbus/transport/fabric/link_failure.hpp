// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>

namespace peerbus::detail::ofi {

/// The reason why a connection broke, or none.
///
/// Threads: any.
class link_failure {
 public:
  /// Keeps the first reason: a libfabric error number above 0, and the provider's error number.
  /// Returns: whether the connection was whole until now.
  bool set(int reason, int providers_own) noexcept {
    std::uint64_t known = 0;
    const std::uint64_t code = static_cast<std::uint64_t>(static_cast<std::uint32_t>(reason))
                                   << 32U |
                               static_cast<std::uint32_t>(providers_own);
    return code_.compare_exchange_strong(known, code, std::memory_order_relaxed);
  }
  // order: none in this class; the code says nothing about other memory.
  [[nodiscard]] bool is_set() const noexcept { return code_.load(std::memory_order_relaxed) != 0; }

  /// Returns the reason in the words of libfabric and of the provider that `queue` belongs to.
  [[nodiscard]] std::string describe(fid_cq& queue) const {
    const std::uint64_t code = code_.load(std::memory_order_relaxed);
    const auto reason = static_cast<int>(code >> 32U);
    const auto providers_own = static_cast<int>(code & 0xffff'ffffU);
    std::string text = fi_strerror(reason);
    if (reason == FI_ETIMEDOUT)
      text += ": the peer takes nothing, its calls or its link stand still";
    if (reason == FI_ECONNRESET && providers_own == 0)
      text += ": what was sent over it may be lost";
    if (providers_own == 0) return text;
    const char* const said = fi_cq_strerror(&queue, providers_own, nullptr, nullptr, 0);
    return concat(text, " (provider: ", said == nullptr ? "" : said, ", ", providers_own, ")");
  }

 private:
  std::atomic<std::uint64_t> code_{0};
};

}  // namespace peerbus::detail::ofi
