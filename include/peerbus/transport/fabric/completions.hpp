// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/fabric/arrivals.hpp>
#include <peerbus/transport/fabric/connections.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/request_ring.hpp>
#include <peerbus/transport/fabric/resources.hpp>
#include <peerbus/transport/fabric/signal_notice.hpp>
#include <peerbus/transport/registered/spin_guard.hpp>

namespace peerbus::detail::ofi {

/// Takes the completions of a rank's endpoint: acts on arriving notices, counts complete requests,
/// and marks links whose requests fail. Providers without a thread move data only inside these
/// calls.
///
/// Threads: any.
class completions {
 public:
  /// Posts all receives. `connected` are the connections to peers, or null if peers are reached by
  /// datagrams.
  /// Throws: `error` system; std::bad_alloc.
  completions(const resources& own, std::span<link> links, const window_table& windows,
              connections* connected)
      : own_{&own},
        links_{links},
        windows_{&windows},
        connected_{connected},
        buffers_{own.receive_buffers()},
        receives_{own.receive_requests()},
        arrivals_{links.size(), buffers_} {
    unposted_.reserve(buffers_.size());
    for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
      receives_[i].place = i;
      if (const long failed = post_receive(i); failed != 0)
        throw fabric_failure("posting a receive", failed);
    }
  }
  completions(const completions&) = delete;
  completions& operator=(const completions&) = delete;
  ~completions() = default;

  /// Takes completions, unless another thread is taking them.
  void poll() noexcept {
    const std::unique_lock turn{polling_, std::try_to_lock};
    if (turn) take(1, connected_ != nullptr && next_poll_.expired());
  }
  /// Takes completions and events of connections, after any other thread that is taking them.
  void poll_all() noexcept {
    const std::lock_guard turn{polling_};
    take(most_reads, connected_ != nullptr);
  }
  /// Calls `change` while no arrival is taken, so that only `change` raises signals.
  template <class Change>
  void exclude_arrivals(Change&& change) noexcept {
    const std::lock_guard turn{polling_};
    change();
  }

  /// Makes arrivals until `disarm` set the descriptor readable, unless another thread takes them
  /// first. Only one thread at a time is armed.
  /// Returns: false, at once, if another thread is armed or parked, if the provider cannot wake a
  /// sleeper, or if something has arrived already.
  [[nodiscard]] bool arm() noexcept {
    if (own_->wake_descriptor() < 0 || !parking_.try_lock()) return false;
    if (nothing_is_here()) return true;
    parking_.unlock();
    return false;
  }
  /// Ends `arm`. The thread that armed must call it.
  void disarm() noexcept { parking_.unlock(); }

  /// Sleeps until something happens here or at `second`, if it is not null, or until `until`. Does
  /// not sleep if `is_here()`, which is called after later arrivals are sure to end the sleep. Only
  /// one thread at a time may sleep. If another thread takes the awaited arrival later, the sleep
  /// lasts until `until`.
  /// Returns: false, at once, if another thread sleeps or is armed, or if the provider cannot wake
  /// a sleeper.
  template <class IsHere>
  [[nodiscard]] bool park(deadline until, IsHere&& is_here,
                          const completions* second = nullptr) noexcept {
    const std::unique_lock turn{parking_, std::try_to_lock};
    const int fd = own_->wake_descriptor();
    const int its_fd = second == nullptr ? -1 : second->own_->wake_descriptor();
    if (!turn || fd < 0 || (second != nullptr && its_fd < 0)) return false;
    if (nothing_is_here() && (second == nullptr || second->nothing_is_here()) && !is_here())
      wait_readable(fd, its_fd, until);
    return true;
  }
  /// Returns whether the queue is empty, and the next arrival will make its descriptor readable.
  [[nodiscard]] bool nothing_is_here() const noexcept {
    fid* waited = &own_->queue().fid;
    return fi_trywait(&own_->fabric(), &waited, 1) == 0;
  }
  /// Returns the number of completions that were ever taken, which wraps around.
  [[nodiscard]] std::uint32_t taken() const noexcept {
    return taken_.load(std::memory_order_relaxed);  // order: none; it says when, not what.
  }

  /// Breaks a link for a libfabric error number above 0, unless it is broken already. The peer is
  /// told, unless the error is FI_ETIMEDOUT, because the peer then takes nothing.
  void break_link(link& broken, int reason, int providers_own = 0) noexcept {
    if (!note_broken(broken, reason, providers_own) || reason == FI_ETIMEDOUT) return;
    broken.checks().owe_loss();
    note_asked();
  }
  /// Lets a check be sent to a peer for which a rank waits, if a check is due. This also finds a
  /// connection whose other end disappeared silently.
  void probe(link& awaited) noexcept {
    if (!awaited.checks().is_due()) return;
    awaited.checks().owe_check();
    note_asked();
  }
  /// Returns whether any link is broken.
  [[nodiscard]] bool any_broken() const noexcept {
    return broken_.load(std::memory_order_relaxed) != 0;  // order: none; `link_failure` says which.
  }
  ///@{
  /// Returns whether `note_asked` was called since the last call. It is called when a peer is owed
  /// a notice, such as an acknowledgement that it has asked for.
  /// order: acq_rel for both exchanges, which pair with each other. An exchange that takes `true`
  /// sees the stores of `link::note_asked` before each note that it takes, also if several threads
  /// have made notes. A note after an exchange leaves `true` for the next. The load is relaxed: a
  /// poll that misses a fresh note leaves it to the next poll.
  [[nodiscard]] bool take_asked() noexcept {
    return asked_.load(std::memory_order_relaxed) &&
           asked_.exchange(false, std::memory_order_acq_rel);
  }
  void note_asked() noexcept { asked_.exchange(true, std::memory_order_acq_rel); }
  ///@}

 private:
  static constexpr std::size_t completions_at_once = 16;
  static constexpr int most_reads = 1024;  ///< limit, so that a flood does not keep a thread here
  /// The interval at which polls look for events of connections, which takes a system call.
  static constexpr std::chrono::milliseconds poll_interval{1};

  /// Reads the queue up to `reads` times, until it is empty. If `looks`, first takes events of
  /// connections. If a connection has ended, empties the queue, so that everything that arrived
  /// over it is taken, such as the notice that the peer has left.
  void take(int reads, bool looks) noexcept {
    const bool any_ended = looks && connected_->take();
    if (looks) next_poll_ = deadline::after(poll_interval);
    if (any_ended) reads = most_reads;
    std::array<fi_cq_msg_entry, completions_at_once> batch;
    for (; reads > 0; --reads) {
      const auto count = fi_cq_read(&own_->queue(), batch.data(), batch.size());
      if (count == -FI_EAVAIL)
        take_error();
      else if (count <= 0) {
        if (arrivals_.any_held()) give_up_on_gaps();
        break;
      }
      if (count > 0)
        taken_.store(taken() + static_cast<std::uint32_t>(count), std::memory_order_relaxed);
      for (long i = 0; i < count; ++i) {
        const fi_cq_msg_entry& entry = batch[static_cast<std::size_t>(i)];
        request& finished = request::of(entry.op_context);
        if (finished.owner != nullptr)
          finished.owner->requests().complete(finished);
        else
          take_arrival(finished.place, entry.len);
      }
    }
    if (any_ended)
      connected_->take_ended([this](link& ended, int reason) noexcept {
        if (!ended.has_left()) note_broken(ended, reason, 0);
      });
    while (!unposted_.empty() && post_receive(unposted_.back()) == 0) unposted_.pop_back();
  }

  /// Marks a link as broken. Returns whether it was whole until now and its peer had not left.
  bool note_broken(link& broken, int reason, int providers_own) noexcept {
    if (!broken.failure().set(reason, providers_own) || broken.has_left()) return false;
    broken_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  void take_error() noexcept {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(&own_->queue(), &entry, 0) <= 0) return;
    // A message that the provider had copied, to a peer that it does not name.
    if (entry.op_context == nullptr) return check_all();
    const request& failed = request::of(entry.op_context);
    if (failed.owner == nullptr) return receive_again(failed.place);
    const int reason = entry.err == 0 ? FI_EOTHER : entry.err;
    if (connected_ == nullptr)
      break_link(*failed.owner, reason, entry.prov_errno);
    else if (reason == FI_ECANCELED)  // By the end of the connection, which the peer sees too.
      note_broken(*failed.owner, FI_ECONNRESET, 0);
    else
      note_broken(*failed.owner, reason, entry.prov_errno);
  }

  void take_arrival(std::uint32_t buffer, std::size_t length) noexcept {
    const notice& head = buffers_[buffer].head;
    // Anybody who reaches the endpoint can send to it.
    if (length < sizeof head || head.source >= links_.size() || links_[head.source].is_own() ||
        head.bytes > notice::most_payload || length != buffers_[buffer].size() ||
        arrivals_.is_given_up(head.source))
      return receive_again(buffer);
    if (head.kind == notice_kind::lost) {
      lose(head.source);
      return receive_again(buffer);
    }
    const std::size_t source = head.source;
    arrivals_.came(buffer, [this](std::uint32_t next) noexcept {
      act_on(buffers_[next]);
      receive_again(next);
    });
    // So many of one peer would leave none for the others.
    if (arrivals_.held_of(source) > buffers_.size() / 4 * 3) lose(source);
  }

  /// Gives up on peers whose early notices wait although the queue is empty. Over sockets, the
  /// missing notices were lost with a connection that the provider has silently remade.
  void give_up_on_gaps() noexcept {
    if (!own_->opens_sockets()) return;
    for (std::size_t source = 0; source < links_.size(); ++source)
      if (arrivals_.held_of(source) != 0) lose(source);
  }
  /// Breaks the link to a peer of which notices are missing. Nothing of that peer is taken any
  /// more.
  void lose(std::size_t source) noexcept {
    break_link(links_[source], FI_ECONNRESET);
    arrivals_.give_up(source, [this](std::uint32_t buffer) noexcept { receive_again(buffer); });
  }
  /// Sends a check to all peers, because something was lost on the way to one of them.
  void check_all() noexcept {
    for (link& peer_link : links_)
      if (!peer_link.is_own()) peer_link.checks().owe_check();
    note_asked();
  }

  void act_on(const notice_buffer& arrival) noexcept {
    link& from = links_[arrival.head.source];
    switch (arrival.head.kind) {
      case notice_kind::signal: raise_signal(*windows_, arrival); break;
      case notice_kind::ack_request:
        from.note_asked(arrival.head.value);
        note_asked();
        break;
      case notice_kind::ack: from.note_ack(arrival.head.value); break;
      case notice_kind::leave:
        from.note_left();
        from.note_asked(arrival.head.value);
        note_asked();
        break;
      case notice_kind::check:
        from.checks().owe_checked();
        note_asked();
        break;
      case notice_kind::checked: from.checks().note_checked(); break;
      case notice_kind::lost: break;  // Was taken out of turn.
    }
  }

  [[nodiscard]] long post_receive(std::uint32_t buffer) noexcept {
    return fi_recv(&own_->receiver(), &buffers_[buffer], sizeof(notice_buffer), own_->notice_key(),
                   FI_ADDR_UNSPEC, &receives_[buffer].context);
  }
  void receive_again(std::uint32_t buffer) noexcept {
    if (post_receive(buffer) != 0) unposted_.push_back(buffer);  // There is room for all.
  }

  const resources* own_;
  std::span<link> links_;
  const window_table* windows_;
  connections* connected_;  ///< guarded by `polling_`
  deadline next_poll_ = deadline::after(poll_interval);
  std::span<notice_buffer> buffers_;
  std::span<request> receives_;          ///< requests of receives, by buffer
  arrivals arrivals_;                    ///< guarded by `polling_`
  std::vector<std::uint32_t> unposted_;  ///< buffers that the provider did not take yet

  registered::spin_guard polling_;
  registered::spin_guard parking_;
  std::atomic<std::uint32_t> broken_{0};
  std::atomic<bool> asked_{false};
  std::atomic<std::uint32_t> taken_{0};  ///< changed only by the thread that holds `polling_`
};

}  // namespace peerbus::detail::ofi
