// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>
#include <peerbus/transport/verbs/spin_guard.hpp>

namespace peerbus::detail::rdma {

/// Entries of registered memory that a device writes results to; each belongs to one call until
/// that has read it.
///
/// Threads: any.
class result_entries {
 public:
  static constexpr std::size_t count = 16;

  /// Empty if all are in use.
  [[nodiscard]] std::optional<std::size_t> take() noexcept {
    std::uint32_t seen = used_.load(std::memory_order_relaxed);
    for (;;) {
      const auto free = static_cast<std::size_t>(std::countr_one(seen));
      if (free >= count) return std::nullopt;
      // order: acquire; pairs with the release in `give_back`: its last user has read it.
      if (used_.compare_exchange_weak(seen, seen | 1U << free, std::memory_order_acquire))
        return free;
    }
  }
  void give_back(std::size_t entry) noexcept {
    used_.fetch_and(~(1U << entry), std::memory_order_release);
  }

 private:
  std::atomic<std::uint32_t> used_{0};
};

/// What this rank keeps of one peer. `sending` guards what it does to the peer, the endpoint's
/// `looking` what comes from there.
struct connection {
  spin_guard sending;
  std::unique_ptr<send_queue[]> queues;  ///< as many as are configured
  signal_names names;
  /// Queue pairs but the first that have puts since the last signal, and all that have puts since
  /// the last `quiet`.
  queue_set unsignalled = 0;
  std::uint32_t unproven = 0;
  remote_place quiet_word;  ///< at the peer, for this rank alone
  /// When a wait may next ask the device whether the peer can be reached. It is kept here and not
  /// in the wait, so that many short waits ask as often as a long one.
  deadline next_probe = deadline::never();
  /// Registered memory: notices of the first queue, results, a place that nobody reads.
  std::byte* scratch = nullptr;
  std::uint32_t scratch_key = 0;
  [[nodiscard]] local_bytes registered(const std::byte* entry,
                                       std::uint32_t length) const noexcept {
    return {reinterpret_cast<std::uintptr_t>(entry), length, scratch_key};
  }
  result_entries results;

  arrivals coming;
  /// 0, or what ended it: 1 + an ibv_wc_status, or an errno beyond `errno_base`.
  std::atomic<std::uint32_t> broken{0};

  static constexpr std::uint32_t errno_base = 1U << 16U;
  static constexpr std::uint32_t code_of(ibv_wc_status why) noexcept {
    return 1U + static_cast<std::uint32_t>(why);
  }

  /// The first reason stands, but for "flushed", which only follows from another.
  /// Returns: whether the connection was whole until now.
  bool break_with(std::uint32_t code) noexcept {
    std::uint32_t seen = 0;
    if (broken.compare_exchange_strong(seen, code, std::memory_order_relaxed)) return true;
    if (seen == code_of(IBV_WC_WR_FLUSH_ERR)) broken.store(code, std::memory_order_relaxed);
    return false;
  }
  [[nodiscard]] bool is_broken() const noexcept {
    return broken.load(std::memory_order_relaxed) != 0;
  }
  /// What broke it, for people.
  [[nodiscard]] std::string describe() const {
    const std::uint32_t code = broken.load(std::memory_order_relaxed);
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
      case IBV_WC_RESP_TIMEOUT_ERR: meaning = ": the peer looked at nothing for too long"; break;
      case IBV_WC_REM_ACCESS_ERR: meaning = ": the peer's device refused the remote key"; break;
      case IBV_WC_WR_FLUSH_ERR: meaning = ": its queue pair is in the error state"; break;
      case IBV_WC_LOC_PROT_ERR: meaning = ": this device refused the local key"; break;
      default: break;
    }
    return concat(ibv_wc_status_str(status), meaning);
  }
};

}  // namespace peerbus::detail::rdma
