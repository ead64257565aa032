// SPDX-License-Identifier: MIT
// What an exchange must not be made of or given.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/loopback.hpp>

using peerbus::bf16;
using communicator = peerbus::communicator<peerbus::loopback>;

#if PEERBUS_CASE == 0
void use(communicator& comm, std::vector<bf16>& tokens, const std::vector<std::int32_t>& experts,
         const std::vector<float>& weights) {
  peerbus::moe::exchange moe{
      comm, {.experts = 1, .hidden = 8, .top_k = 1, .max_tokens = 1}, peerbus::codec::bf16{}};
  const auto rows = moe.dispatch(tokens, {experts, weights});
  moe.combine(rows, tokens);
  static_cast<void>(comm.make_window(8, 1).put(peerbus::rank_id{0}, 0, std::span{weights}));
}
#endif

#if PEERBUS_CASE == 1
// case 1: expect "constraint"
template class peerbus::moe::exchange<int, peerbus::codec::bf16>;
#endif

#if PEERBUS_CASE == 2
// case 2: expect "constraint"
template class peerbus::moe::exchange<peerbus::loopback, int>;
#endif

#if PEERBUS_CASE == 3
// case 3: expect "deleted"
using exchange = peerbus::moe::exchange<peerbus::loopback, peerbus::codec::bf16>;
exchange copy(const exchange& from) { return from; }
#endif

#if PEERBUS_CASE == 4
// case 4: expect "could not convert|no known conversion|cannot convert|no matching"
// A rank is no number.
auto put(communicator& comm, std::span<const float> from) {
  return comm.make_window(8, 1).put(1, 0, from);
}
#endif

#if PEERBUS_CASE == 5
// case 5: expect "no matching|could not convert|no known conversion"
// Expert ids have 32 or 64 bits.
peerbus::moe::routing route(const std::vector<short>& experts, const std::vector<float>& weights) {
  return {experts, weights};
}
#endif

#if PEERBUS_CASE == 6
// case 6: expect "discards qualifiers|no matching|n.t convert|no known conversion"
// What combine writes to cannot be constant.
using received = peerbus::moe::received<peerbus::codec::bf16>;
void combine(peerbus::moe::exchange<peerbus::loopback, peerbus::codec::bf16>& moe,
             const received& rows, const std::vector<bf16>& out) {
  moe.combine(rows, out);
}
#endif

#if PEERBUS_CASE == 7
// case 7: expect "constraint"
// A layout is one of those that there are.
template class peerbus::moe::exchange<peerbus::loopback, peerbus::codec::bf16, int>;
#endif

#if PEERBUS_CASE == 8
// case 8: expect "cannot convert|no viable conversion|no matching|no known conversion"
// The rows of one layout are no rows of another.
void combine(peerbus::moe::exchange<peerbus::loopback, peerbus::codec::bf16>& moe,
             const peerbus::moe::received_tokens<peerbus::codec::bf16>& rows,
             std::vector<bf16>& out) {
  moe.combine(rows, out);
}
#endif

#if PEERBUS_CASE == 9
// case 9: expect "constraint|no matching"
// What travels beside a token is bytes.
auto names(const peerbus::moe::received_tokens<peerbus::codec::bf16>& rows) {
  return rows.attachment<std::vector<int>>(0);
}
#endif
