// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail::rdma {

/// The reason why a connection broke, or none.
///
/// Threads: any.
class link_failure {
 public:
  /// Returns the code of a failed completion.
  static constexpr std::uint32_t code_of(ibv_wc_status status) noexcept {
    return 1U + static_cast<std::uint32_t>(status);
  }
  /// Returns the code of a request that the device refused with errno `reason`.
  static constexpr std::uint32_t code_of_errno(int reason) noexcept {
    return errno_base + static_cast<std::uint32_t>(reason);
  }

  /// Keeps the first reason. But any other reason replaces "flushed", which is only a consequence.
  /// Returns: whether the connection was whole until now.
  bool set(std::uint32_t code, std::size_t rail) noexcept {
    code |= static_cast<std::uint32_t>(rail) << rail_shift;
    std::uint32_t known = 0;
    if (code_.compare_exchange_strong(known, code, std::memory_order_relaxed)) return true;
    if (reason_in(known) == code_of(IBV_WC_WR_FLUSH_ERR))
      code_.store(code, std::memory_order_relaxed);
    return false;
  }
  // order: none in this class; the code says nothing about other memory.
  [[nodiscard]] bool is_set() const noexcept { return code_.load(std::memory_order_relaxed) != 0; }

  /// Returns the number of the device on which the connection broke. It must be broken.
  [[nodiscard]] std::size_t rail() const noexcept {
    return code_.load(std::memory_order_relaxed) >> rail_shift;
  }
  /// Returns the reason as text. The connection must be broken.
  [[nodiscard]] std::string describe() const {
    const std::uint32_t code = reason_in(code_.load(std::memory_order_relaxed));
    if (code > errno_base)
      return concat("a request was not taken: ",
                    describe_errno(static_cast<int>(code - errno_base)));
    const auto status = static_cast<ibv_wc_status>(code - 1U);
    const char* meaning = "";
    switch (status) {
      case IBV_WC_RETRY_EXC_ERR:
        meaning = ": nothing was acknowledged; its link is down or its process gone";
        break;
      case IBV_WC_LOC_QP_OP_ERR:
        meaning = ": this host's device could not send; is the link of its port up?";
        break;
      case IBV_WC_RESP_TIMEOUT_ERR:
        meaning = ": a link is down, or the peer looked at nothing for too long";
        break;
      case IBV_WC_REM_ACCESS_ERR: meaning = ": the peer's device refused the remote key"; break;
      case IBV_WC_WR_FLUSH_ERR: meaning = ": its queue pair is in the error state"; break;
      case IBV_WC_LOC_PROT_ERR: meaning = ": this device refused the local key"; break;
      default: break;
    }
    return concat(ibv_wc_status_str(status), meaning);
  }

 private:
  static constexpr std::uint32_t errno_base = 1U << 16U;
  static constexpr std::uint32_t rail_shift = 24;  ///< number of bits below the rail, enough for
                                                   ///< all reasons
  static constexpr std::uint32_t reason_in(std::uint32_t code) noexcept {
    return code & ((1U << rail_shift) - 1);
  }

  std::atomic<std::uint32_t> code_{0};
};

}  // namespace peerbus::detail::rdma
