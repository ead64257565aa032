// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

template <transport Transport, token_codec Codec, row_layout Layout>
template <class T>
  requires std::is_trivially_copyable_v<T>
std::span<const T> exchange<Transport, Codec, Layout>::note(moe::ticket ticket, rank_id source) {
  const batch_type& batch = batches_.of("note", this, ticket, detail::stage::received);
  const auto bytes = post_.note(step_of(batch, handshake::decides(batch)), source);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <class T>
  requires std::is_trivially_copyable_v<T>
std::span<const T> exchange<Transport, Codec, Layout>::returned_attachment(moe::ticket ticket,
                                                                           std::size_t t,
                                                                           std::size_t copy) {
  const auto& batch = batches_.of("returned_attachment", this, ticket, detail::stage::returned);
  return {reinterpret_cast<const T*>(local_set(batch).returned_attachment(t, copy)),
          map_.output_attachment_bytes / sizeof(T)};
}

template <transport Transport, token_codec Codec, row_layout Layout>
row_traffic exchange<Transport, Codec, Layout>::traffic(moe::ticket ticket) {
  const batch_type& batch = batches_.of("traffic", this, ticket, detail::stage::received);
  return detail::traffic_of(batch.leaving, map_, road_.sets(batches_.set_of(batch)), comm_.rank());
}

}  // namespace peerbus::moe
