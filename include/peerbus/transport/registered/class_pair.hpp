// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/registered/link_watch.hpp>

namespace peerbus::detail::registered {

/// The base of a rank's network for one class of traffic. It joins the networks of both classes:
/// the network for latency traffic owns the network for bulk traffic, if it exists.
///
/// `Network` derives from this class. It has `own()` with its options, `windows()`, and for its own
/// class `describe_trouble()` and `bytes_per_peer()`.
template <class Network>
class class_pair : public idle_work::task {
 public:
  /// Takes the connected network for bulk traffic. May be called once.
  void add_bulk(std::unique_ptr<Network> made) noexcept {
    own_bulk_ = std::move(made);
    bulk_.store(own_bulk_.get(), std::memory_order_release);  // order: pairs with `bulk`.
  }
  /// Returns the network for bulk traffic, or nullptr if there is none.
  [[nodiscard]] Network* bulk() const noexcept { return bulk_.load(std::memory_order_acquire); }
  /// Calls `step` with the network of each class, until it returns something other than ok. Must be
  /// called on the network for latency traffic.
  template <class Step>
  [[nodiscard]] errc for_classes(Step&& step) noexcept {
    const errc code = step(self());
    Network* const other = bulk();
    return code == errc::ok && other != nullptr ? step(*other) : code;
  }

  [[nodiscard]] const membership& members() const noexcept { return *members_; }
  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  [[nodiscard]] const wait_thresholds& waiting() const noexcept { return waiting_; }
  [[nodiscard]] std::chrono::milliseconds stall_timeout() const noexcept {
    return self().own().options().stall_timeout;
  }

  /// Returns the local key of memory in a window of any class, which serves both classes. Empty if
  /// the memory is in no window.
  [[nodiscard]] auto key_of(std::span<const std::byte> memory) const noexcept {
    auto key = self().windows().key_of(memory);
    const Network* const other = latency_ != nullptr ? latency_ : bulk();
    if (!key && other != nullptr) key = other->windows().key_of(memory);
    return key;
  }
  /// Returns the reason why `broken` is broken, or closed by its peer: peer_dead or unreachable.
  /// Contract as `registered::why_broken`.
  template <class Link>
  [[nodiscard]] errc why_broken(const Link& broken) const noexcept {
    return registered::why_broken(*members_, broken.peer());
  }

  ///@{
  /// Returns the text, or the sum of bytes, of both classes. Must be called on the network for
  /// latency traffic.
  [[nodiscard]] std::string describe_classes() const {
    std::string text = self().describe_trouble();
    const std::string of_bulk = bulk() == nullptr ? std::string{} : bulk()->describe_trouble();
    text += text.empty() || of_bulk.empty() ? of_bulk : "; " + of_bulk;
    return text;
  }
  [[nodiscard]] std::size_t bytes_per_peer_of_classes() const noexcept {
    return self().bytes_per_peer() + (bulk() == nullptr ? 0 : bulk()->bytes_per_peer());
  }
  ///@}

 protected:
  /// Makes the base of a network. `latency` is null for latency traffic. For bulk traffic it is the
  /// network for latency traffic, which outlives this network.
  // A private one, with `Network` as a friend, would make g++ take the destructor for accessible.
  // NOLINTNEXTLINE(bugprone-crtp-constructor-accessibility)
  class_pair(const bootstrap& boot, wait_thresholds waiting, Network* latency)
      : members_{boot.members()}, idle_{boot.idle()}, waiting_{waiting}, latency_{latency} {}
  ~class_pair() = default;

  /// Ends the network for bulk traffic. The destructor of `Network` must call it, because that
  /// network uses members of this network.
  void drop_bulk() noexcept {
    bulk_.store(nullptr, std::memory_order_relaxed);  // order: none; nobody else looks any more.
    own_bulk_.reset();
  }
  [[nodiscard]] idle_work& idle() noexcept { return *idle_; }
  [[nodiscard]] bool is_bulk() const noexcept { return latency_ != nullptr; }
  /// Returns the network for latency traffic.
  [[nodiscard]] Network& first() noexcept { return latency_ == nullptr ? self() : *latency_; }

 private:
  [[nodiscard]] Network& self() noexcept { return static_cast<Network&>(*this); }
  [[nodiscard]] const Network& self() const noexcept { return static_cast<const Network&>(*this); }

  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_;
  wait_thresholds waiting_;
  Network* latency_;
  std::unique_ptr<Network> own_bulk_;
  std::atomic<Network*> bulk_{nullptr};
};

}  // namespace peerbus::detail::registered
