// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/registered/append_bytes.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/resources.hpp>

namespace peerbus::detail::rdma {

/// The addresses that a rank tells the others before they connect. The numbers of its queue pairs
/// follow: [ranks][queue pairs per peer].
struct greeting {
  std::uint64_t control_address = 0;
  std::uint32_t control_key = 0;
  std::uint32_t mtu = 0;
  std::uint32_t reads = 0;  ///< and atomics that may be in flight to the sender, per queue pair
  std::uint16_t lid = 0;
  std::uint16_t unused = 0;
  std::uint32_t first_packet = 0;  ///< number of the sender's first, 24 bits
  std::uint32_t unused_too = 0;
  ibv_gid gid{};
};
static_assert(sizeof(greeting) == 48);

/// Connects the queue pairs of a network to those of its peers.
class handshake {
 public:
  /// Of `greeting` and `notice`, the messages whose form both ends must share.
  static constexpr std::uint64_t protocol_version = 1;

  explicit handshake(network& net) : net_{&net} {}

  /// Returns this rank's greeting.
  [[nodiscard]] bootstrap::contribution greet() const {
    const open_port& port = net_->own().port();
    greeting own;
    own.control_address = net_->own().place().address;
    own.control_key = net_->own().place().key;
    own.mtu = port.attributes.active_mtu;
    own.reads = own_reads();
    own.lid = port.attributes.lid;
    own.gid = port.gid;
    own.first_packet = first_packet_;
    bootstrap::contribution told;
    registered::append_bytes(told.bytes, own);
    for (const rank_id peer : all_ranks{net_->size()})
      for (const queue_pair& pair : net_->to(peer).pairs())
        registered::append_bytes(told.bytes, pair->qp_num);
    return told;
  }

  /// Connects to `peer`, whose greeting is `told`. Throws: `error` mismatch, system.
  void join(rank_id peer, const std::vector<std::byte>& told) const {
    link& to = net_->to(peer);
    const std::size_t queues = to.pairs().size();
    const std::size_t expected = sizeof(greeting) + net_->size() * queues * sizeof(std::uint32_t);
    if (told.size() != expected)
      throw error{errc::mismatch, concat("verbs: ", peer, " introduced itself by ", told.size(),
                                         " bytes, expected ", expected)};
    greeting theirs;
    std::memcpy(&theirs, told.data(), sizeof theirs);
    to.out().lock()->quiet_word = {
        theirs.control_address + net_->own().map().quiet_word(net_->rank()), theirs.control_key};
    for (std::size_t q = 0; q < queues; ++q) {
      std::uint32_t number = 0;
      const std::size_t position = net_->rank().index() * queues + q;
      std::memcpy(&number, told.data() + sizeof theirs + position * sizeof number, sizeof number);
      join_pair(*to.pairs()[q], theirs, number, peer);
    }
  }

 private:
  [[nodiscard]] std::uint32_t own_reads() const noexcept {
    const ibv_device_attr& limits = net_->own().port().limits;
    return static_cast<std::uint32_t>(
        std::clamp(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 1, 16));
  }

  void join_pair(ibv_qp& pair, const greeting& theirs, std::uint32_t number, rank_id peer) const {
    const verbs_options& options = net_->own().options();
    const open_port& port = net_->own().port();
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu =
        static_cast<ibv_mtu>(std::min<std::uint32_t>(theirs.mtu, port.attributes.active_mtu));
    state.dest_qp_num = number;
    state.rq_psn = theirs.first_packet;
    state.max_dest_rd_atomic = static_cast<std::uint8_t>(own_reads());
    // 0.64 ms, until a peer that does not look at its signals is asked again.
    state.min_rnr_timer = 12;
    ibv_ah_attr& route = state.ah_attr;
    route.dlid = theirs.lid;
    route.sl = options.service_level;
    route.port_num = port.number;
    route.is_global = port.is_ethernet() || options.gid_index >= 0 ? 1 : 0;
    route.grh.dgid = theirs.gid;
    route.grh.sgid_index = port.gid_index;
    route.grh.hop_limit = 64;
    route.grh.traffic_class = options.traffic_class;
    const std::string doing = concat("connecting to ", peer);
    net_->own().modify(pair, state,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                       doing);
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = first_packet_;
    state.timeout = options.ack_timeout;
    state.retry_cnt = options.retries;
    state.rnr_retry = 7;  // Without end: a peer may compute for as long as it likes.
    state.max_rd_atomic = static_cast<std::uint8_t>(std::min(own_reads(), theirs.reads));
    net_->own().modify(pair, state,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                       doing);
  }

  network* net_;
  /// Random, so that delayed packets of an earlier connection do not match this one.
  std::uint32_t first_packet_ = std::random_device{}() & 0xff'ffffU;
};

}  // namespace peerbus::detail::rdma
