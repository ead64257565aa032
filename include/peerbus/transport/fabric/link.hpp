// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link_checks.hpp>
#include <peerbus/transport/fabric/link_failure.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/pending_calls.hpp>
#include <peerbus/transport/fabric/request_ring.hpp>
#include <peerbus/transport/fabric/resources.hpp>
#include <peerbus/transport/registered/guarded.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// The state that sending to one peer changes.
struct outgoing {
  std::uint32_t sequence = 0;  ///< sequence of the next notice
  std::uint64_t asked = 0;     ///< number of the last question to the peer
  std::uint64_t ack = 0;       ///< number of the last question that covers puts
  bool unacked = false;        ///< whether anything was put since question `ack`
  backlog outstanding{};       ///< messages sent since the last question
  bool is_closed = false;      ///< whether this end has told the peer that it closes
  std::uint32_t posts = 0;     ///< number of sends, of all kinds
};

/// The state of one peer as a rank knows it, with the requests to that peer.
///
/// Threads: `open` and `set_endpoint` before all else, the rest from any.
class link {
 public:
  link() = default;
  link(const link&) = delete;
  link& operator=(const link&) = delete;
  ~link() = default;

  void open(const resources& own, rank_id self, rank_id peer) {
    own_ = &own;
    self_ = self;
    peer_ = peer;
    requests_.open(*this, own.options().queue_depth);
    if (own.traffic() == traffic_class::latency) return;
    pending_.open(own.options().queue_depth);
    out_.lock()->outstanding.limit(own.options().bulk_in_flight);
  }
  /// Sets how the peer is reached: by `endpoint`, at `address`. `endpoint` must outlive the last
  /// request.
  void set_endpoint(fid_ep& endpoint, fi_addr_t address) noexcept {
    endpoint_ = &endpoint;
    address_ = address;
  }

  [[nodiscard]] rank_id peer() const noexcept { return peer_; }
  /// Returns whether this is the link of a rank to itself, over which nothing is sent.
  [[nodiscard]] bool is_own() const noexcept { return peer_ == self_; }
  [[nodiscard]] fid_ep& endpoint() const noexcept { return *endpoint_; }
  [[nodiscard]] fi_addr_t address() const noexcept { return address_; }
  [[nodiscard]] registered::guarded<outgoing>& out() noexcept { return out_; }
  [[nodiscard]] request_ring& requests() noexcept { return requests_; }
  [[nodiscard]] const request_ring& requests() const noexcept { return requests_; }
  /// Returns the calls that are sent in slices. Open only on links for bulk traffic.
  [[nodiscard]] pending_calls& pending() noexcept { return pending_; }
  [[nodiscard]] const pending_calls& pending() const noexcept { return pending_; }
  [[nodiscard]] link_failure& failure() noexcept { return failure_; }
  [[nodiscard]] const link_failure& failure() const noexcept { return failure_; }
  /// Returns a number that changes whenever the peer has taken something.
  [[nodiscard]] std::uint32_t completed() const noexcept {
    return requests_.count().completed() + static_cast<std::uint32_t>(acked());
  }

  /// Sends `head` and its payload, if the provider takes them now. If `is_tracked` is true, sends
  /// them by a request that completes.
  /// Returns: 0, or libfabric's error; -FI_EAGAIN if there is no room yet.
  [[nodiscard]] long post(outgoing& out, notice head, const std::byte* payload,
                          bool is_tracked = false) noexcept {
    head.source = static_cast<std::uint32_t>(self_.index());
    head.sequence = out.sequence;
    const std::size_t size = sizeof head + head.bytes;
    const bool is_injected = !is_tracked && size <= own_->inject_bytes();
    if (!is_injected && !requests_.has_room()) return -FI_EAGAIN;
    notice_buffer copy;  // Only `size` bytes of it are written and sent.
    notice_buffer& message = is_injected ? copy : own_->sent_notice(peer_, requests_.next().place);
    std::memcpy(&message.head, &head, sizeof head);
    if (head.bytes != 0) std::memcpy(message.payload.data(), payload, head.bytes);
    const long failed = is_injected ? fi_inject(endpoint_, &message, size, address_)
                                    : fi_send(endpoint_, &message, size, own_->notice_key(),
                                              address_, &requests_.next().context);
    if (failed != 0) return failed;
    if (!is_injected) requests_.note_posted();
    ++out.sequence;
    return 0;
  }

  /// Asks the peer to acknowledge all puts, unless there were none since the last request, if the
  /// provider takes the question now.
  /// Returns: 0, or libfabric's error.
  [[nodiscard]] long request_ack(outgoing& out) noexcept {
    if (!out.unacked) return 0;
    const long failed = ask(out);
    if (failed == 0) {
      out.ack = out.asked;
      out.unacked = false;
    }
    return failed;
  }
  /// Asks the peer to answer when it has taken all earlier notices, if the provider takes the
  /// question now. Only if `request_ack` calls this does the answer prove that puts were delivered.
  /// Returns: 0, or libfabric's error.
  [[nodiscard]] long ask(outgoing& out) noexcept {
    notice question;
    question.kind = notice_kind::ack_request;
    question.value = out.asked + 1;
    const long failed = post(out, question, nullptr);
    if (failed == 0) {
      ++out.asked;
      out.outstanding.note_asked();
    }
    return failed;
  }
  /// Sends the notices owed to the peer, if the provider takes them now. These are answers to its
  /// questions and a check of the connection, or, if the link is broken, the notice of that.
  /// Returns: 0, or libfabric's error.
  [[nodiscard]] long answer(outgoing& out) noexcept {
    if (failure_.is_set())
      return checks_.send_loss([&](notice_kind kind) { return post(out, kind); });
    const long unsent = checks_.send([&](notice_kind kind) { return post(out, kind); });
    if (unsent == 0) checks_.note_sent();
    if (unsent == -FI_EAGAIN && requests_.is_idle() && checks_.is_stuck()) return -FI_ECONNRESET;
    if (unsent != 0 || owed() == answered()) return unsent;
    notice reply;
    reply.kind = notice_kind::ack;
    reply.value = owed();
    const long failed = post(out, reply, nullptr);
    if (failed == 0) note_answered(reply.value);
    return failed;
  }

  ///@{
  /// Notes and reads proofs of delivery: the peer asks for a proof by a number, and gets that
  /// number back.
  /// order: release for questions and for acknowledgements, each paired with the acquire of its
  /// reader. So memory that this rank has taken before it answers is there, and so is memory that
  /// the peer says it wrote. Relaxed for answers, which change under the lock of `out`.
  void note_asked(std::uint64_t number) noexcept { owed_.store(number, std::memory_order_release); }
  [[nodiscard]] bool owes_answer() const noexcept {
    return failure_.is_set() ? checks_.owes_loss() : checks_.owes() || owed() != answered();
  }
  void note_ack(std::uint64_t number) noexcept { acked_.store(number, std::memory_order_release); }
  [[nodiscard]] bool has_acked(std::uint64_t number) const noexcept { return acked() >= number; }
  ///@}

  /// Returns the checks of the connection, and the state of the notice that it is broken.
  [[nodiscard]] link_checks& checks() noexcept { return checks_; }
  [[nodiscard]] const link_checks& checks() const noexcept { return checks_; }

  /// Notes that the peer has closed its end.
  void note_left() noexcept { left_.store(true, std::memory_order_release); }
  [[nodiscard]] bool has_left() const noexcept { return left_.load(std::memory_order_acquire); }

 private:
  [[nodiscard]] long post(outgoing& out, notice_kind kind) noexcept {
    notice head;
    head.kind = kind;
    // By a request, because the provider says nothing of a copied message that fails. Over a link
    // that is broken, requests may hold all places.
    return post(out, head, nullptr, kind != notice_kind::lost);
  }
  [[nodiscard]] std::uint64_t answered() const noexcept {
    return answered_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t owed() const noexcept {
    return owed_.load(std::memory_order_acquire);
  }
  void note_answered(std::uint64_t number) noexcept {
    answered_.store(number, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t acked() const noexcept {
    return acked_.load(std::memory_order_acquire);
  }

  const resources* own_ = nullptr;
  rank_id self_;
  rank_id peer_;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t address_ = FI_ADDR_NOTAVAIL;
  registered::guarded<outgoing> out_;
  request_ring requests_;
  pending_calls pending_;  ///< added to and sent under the lock of `out_`
  link_failure failure_;
  link_checks checks_;
  std::atomic<std::uint64_t> owed_{0};
  std::atomic<std::uint64_t> answered_{0};
  std::atomic<std::uint64_t> acked_{0};
  std::atomic<bool> left_{false};
};

}  // namespace peerbus::detail::ofi
