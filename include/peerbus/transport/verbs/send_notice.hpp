// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

namespace peerbus::detail::rdma {

/// Sends 32 bits with the last write of `queue`, if the write is not posted yet, or otherwise with
/// an empty write. `poster` is as for `send_notice`.
template <class Poster>
[[nodiscard]] errc send_immediate(send_queue& queue, std::uint32_t bits, Poster& poster) noexcept {
  ibv_send_wr* carrier = queue.chain().last_plain_write();
  if (carrier == nullptr) {
    if (const errc code = poster.make_room(queue); code != errc::ok) return code;
    carrier = &queue.chain().append(IBV_WR_RDMA_WRITE, {}, {});
  }
  carrier->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  carrier->imm_data = htonl(bits);
  return poster.post(queue);
}

/// Sends the notice of a signal over `peer_link` after all earlier puts, as part of the last write
/// if it is not posted yet. On queue pairs other than the first, fences follow the puts.
///
/// `poster.make_room(queue)` makes room for a request in the chain of a queue pair, and
/// `poster.post(queue)` posts the chain. Both return ok, or the error that this function then
/// returns.
template <class Poster>
[[nodiscard]] errc send_notice(const resources& own, const link& peer_link, outgoing& out,
                               const raised_signal& raised, Poster& poster) noexcept {
  send_queue& first = out.queues[0];
  // First, as the peer must hear of every fence, and of whatever the table of names learns.
  if (const errc code = poster.make_room(first); code != errc::ok) return code;
  for (std::size_t q = 1; out.unsignalled >> (q - 1) != 0; ++q) {
    if ((out.unsignalled >> (q - 1) & 1U) == 0) continue;
    if (const errc code = send_immediate(out.queues[q], 0, poster); code != errc::ok) return code;
  }
  const queue_set after = std::exchange(out.unsignalled, queue_set{0});
  const std::uint8_t name = signal_names::name_of(raised);
  if (const auto growth = out.names.update(raised))
    return send_immediate(first, short_notice{name, after, *growth}.encode(), poster);
  const notice full{raised, name, after};
  const std::size_t offset =
      own.map().scratch(peer_link.peer()) + control_map::notice(first.next_place());
  std::memcpy(own.memory(offset), &full, sizeof full);
  first.chain().append(IBV_WR_SEND, own.registered(0, offset, sizeof full), {});
  return poster.post(first);
}

}  // namespace peerbus::detail::rdma
