// SPDX-License-Identifier: MIT
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/pending_calls.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/request_ring.hpp>
#include <peerbus/transport/fabric/resources.hpp>

namespace peerbus::detail::ofi {

/// Returns the flags of a write. Over datagrams, the completion of the write must prove that the
/// peer can see the bytes.
[[nodiscard]] inline std::uint64_t write_flags(const resources& own) noexcept {
  return own.connects() ? FI_COMPLETION : FI_COMPLETION | FI_DELIVERY_COMPLETE;
}

/// Posts a write.
/// Returns: 0, or libfabric's error; -FI_EAGAIN if there is no room yet.
[[nodiscard]] inline long post_write(const resources& own, link& peer_link, const std::byte* source,
                                     std::size_t length, void* key,
                                     const remote_place& target) noexcept {
  request_ring& requests = peer_link.requests();
  if (!requests.has_room()) return -FI_EAGAIN;
  const iovec local{const_cast<std::byte*>(source), length};
  const fi_rma_iov remote{target.address, length, target.key};
  fi_msg_rma message{&local, &key, 1, peer_link.address(), &remote, 1, &requests.next().context, 0};
  const long failed = fi_writemsg(&peer_link.endpoint(), &message, write_flags(own));
  if (failed == 0) requests.note_posted();
  return failed;
}

/// Posts a read.
/// Returns: as `post_write`.
[[nodiscard]] inline long post_read(link& peer_link, std::byte* target, std::size_t length,
                                    void* key, const remote_place& source) noexcept {
  request_ring& requests = peer_link.requests();
  if (!requests.has_room()) return -FI_EAGAIN;
  const long failed = fi_read(&peer_link.endpoint(), target, length, key, peer_link.address(),
                              source.address, source.key, &requests.next().context);
  if (failed == 0) requests.note_posted();
  return failed;
}

/// Posts the next slice of the pending calls of a link, if the peer has taken enough earlier
/// messages and the provider takes the slice now. There must be pending calls.
/// Returns: 0, or libfabric's error; -FI_EAGAIN if it has to wait.
[[nodiscard]] inline long send_slice(const resources& own, link& peer_link,
                                     outgoing& out) noexcept {
  pending_calls& calls = peer_link.pending();
  pending_call& call = calls.first();
  if (call.what != pending_call::kind::read) {
    if (out.outstanding.needs_question())
      if (const long failed = peer_link.ask(out); failed != 0) return failed;
    if (out.asked >= backlog::most_open && !peer_link.has_acked(out.asked - backlog::most_open + 1))
      return -FI_EAGAIN;
  }
  if (call.what == pending_call::kind::notice) {
    if (!own.connects() && !peer_link.requests().is_idle()) return -FI_EAGAIN;
    if (const long failed = peer_link.post(out, call.head, call.payload.data()); failed != 0)
      return failed;
    // A signal alone is no put, which `quiet` would have to wait for.
    out.unacked |= call.head.bytes != 0;
    out.outstanding.add(backlog::notice_weight);
    calls.note_sent();
    return 0;
  }
  const std::size_t length =
      std::min({call.bytes, own.options().bulk_slice, own.info().ep_attr->max_msg_size});
  if (call.what == pending_call::kind::write) {
    out.unacked = true;
    if (const long failed = post_write(own, peer_link, call.memory, length, call.key, call.place);
        failed != 0)
      return failed;
    out.outstanding.add(backlog::write_weight + length);
  } else if (const long failed = post_read(peer_link, call.memory, length, call.key, call.place);
             failed != 0) {
    return failed;
  }
  call.memory += length;
  call.place.address += length;
  call.bytes -= length;
  if (call.bytes == 0) calls.note_sent();
  return 0;
}

}  // namespace peerbus::detail::ofi
