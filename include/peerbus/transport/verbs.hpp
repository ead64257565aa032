// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/verbs/connect.hpp>
#include <peerbus/transport/verbs/data_path.hpp>
#include <peerbus/transport/verbs/endpoint.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/window_maker.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus {

/// Connects processes, on one host or many, by RDMA: a reliable connection to every peer, RDMA
/// WRITE for puts, READ for gets, and completions at the receiver for signals. Needs libibverbs
/// (target `peerbus::verbs`) and a device; what it guarantees and how to tune it:
/// docs/transports.md.
///
/// The memory of a window is registered, and so taken and locked when it is made. Memory of peers
/// that is still in use when a rank has released a window stays until all have.
///
/// Beyond what `transport` says: puts are posted by the next `signal`, `flush`, `quiet` or
/// `progress`, or when there are enough of them. A call that finds a queue full waits for room, and
/// gives the connection up after `verbs_options::stall_timeout`. Threads that use one connection at
/// once take turns; a turn is as long as noting or posting a few requests takes, or, where the
/// queue is full, until there is room.
template <wait_policy Wait = adaptive_wait>
class basic_verbs {
 public:
  class window {
   public:
    window(window&& other) noexcept
        : network_{std::move(other.network_)}, part_{std::exchange(other.part_, nullptr)} {}
    window(const window&) = delete;
    window& operator=(window&&) = delete;
    window& operator=(const window&) = delete;
    ~window() {
      // order: release; pairs with the acquire in window_maker: all use of it is over.
      if (part_ != nullptr) part_->released.store(true, std::memory_order_release);
    }

    /// Keys and addresses, for tools and tests that look inside.
    [[nodiscard]] detail::rdma::window_part& part() const noexcept { return *part_; }

   private:
    friend basic_verbs;
    window(std::shared_ptr<detail::rdma::endpoint> network, detail::rdma::window_part* part)
        : network_{std::move(network)}, part_{part} {}
    std::shared_ptr<detail::rdma::endpoint> network_;
    detail::rdma::window_part* part_;
  };

  static constexpr rank_kind ranks_are = rank_kind::processes;
  static constexpr transport_refinements refines{.describe_trouble = true};

  /// Collective. Throws, on all ranks: `error` unsupported (no device), invalid_argument (no such
  /// device, port or address, or an impossible option), mismatch (options or versions that differ),
  /// out_of_memory (too little may be locked), system; or as `bootstrap::allgather`.
  explicit basic_verbs(bootstrap& boot, const verbs_options& chosen = {}, Wait policy = {},
                       memory_hook on_memory = {})
      : boot_{&boot},
        network_{detail::rdma::connector::connect(
            boot, chosen, sleeping_later(policy.thresholds(boot.ranks_here(), boot.cores_here())))},
        maker_{*network_},
        path_{*network_},
        on_memory_{std::move(on_memory)} {}

  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = false, .fetch_add = path_.has_atomics()};
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return window{network_, maker_.make(*boot_, shape, on_memory_, until)};
  }
  [[nodiscard]] std::span<std::byte> local(const window& at) const noexcept {
    return {at.part_->data.data(), at.part_->shape.bytes};
  }

  [[nodiscard]] errc put(rank_id peer, const window& at, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return path_.put(peer, *at.part_, offset, source);
  }
  [[nodiscard]] errc signal(rank_id peer, const window& at, signal_id id,
                            std::uint64_t value) noexcept {
    return path_.signal(peer, *at.part_, id, value);
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& at, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return path_.put_signal(peer, *at.part_, offset, source, id, value);
  }
  [[nodiscard]] errc get(rank_id peer, const window& at, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return path_.get(peer, *at.part_, offset, target);
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& at, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    return path_.fetch_add(peer, *at.part_, offset, addend, before);
  }
  [[nodiscard]] errc wait(const window& at, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return path_.wait(*at.part_, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& at, signal_id id) const noexcept {
    return path_.value(*at.part_, id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept { return path_.flush(peer); }
  [[nodiscard]] errc quiet() noexcept { return path_.quiet(); }
  [[nodiscard]] errc progress() noexcept { return path_.progress(); }

  /// Which connections broke, and why; empty if none did. Ends the text of errors.
  [[nodiscard]] std::string describe_trouble() const { return network_->describe_trouble(); }
  /// "rxe0 port 1 GID 1".
  [[nodiscard]] std::string describe_port() const { return network_->port().describe(); }
  /// What is kept for each peer besides windows, but for what the device's driver keeps.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept { return network_->bytes_per_peer(); }
  /// The queue pair itself, for tools and tests.
  [[nodiscard]] ibv_qp* queue_pair(rank_id peer, std::size_t number = 0) const noexcept {
    return network_->to(peer).queues[number].pair();
  }

 private:
  /// To sleep on a completion channel and to wake takes four system calls where a futex takes one:
  /// other ranks are given their turn more often before that. Measured with 4 ranks on 2 cores.
  static constexpr wait_thresholds sleeping_later(wait_thresholds of) noexcept {
    of.yields *= 8;
    return of;
  }

  bootstrap* boot_;
  std::shared_ptr<detail::rdma::endpoint> network_;
  detail::rdma::window_maker maker_;
  detail::rdma::data_path path_;
  memory_hook on_memory_;
};

using verbs = basic_verbs<>;
static_assert(runnable_transport<verbs> && !direct_transport<verbs>);

}  // namespace peerbus
