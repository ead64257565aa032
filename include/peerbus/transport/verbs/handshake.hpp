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

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/resources.hpp>

namespace peerbus::detail::rdma {

/// The addresses of one device that a rank tells the others before they connect. A message has one
/// greeting per device, followed by the numbers of the queue pairs, indexed by [rank][queue pair].
struct greeting {
  std::uint64_t control_address = 0;  ///< address of the registered memory that is in no window
                                      ///< (`control_map`), the same for all devices
  std::uint32_t control_key = 0;
  std::uint32_t mtu = 0;
  std::uint32_t reads = 0;  ///< reads and atomics that may be in flight to the sender, per queue
                            ///< pair
  std::uint16_t lid = 0;
  std::uint16_t unused = 0;
  std::uint32_t first_packet = 0;  ///< number of the sender's first packet, 24 bits
  std::uint32_t unused_too = 0;
  ibv_gid gid{};
};
static_assert(sizeof(greeting) == 48);

/// Connects the queue pairs of a network to the queue pairs of its peers.
class handshake {
 public:
  /// The version of `greeting` and `notice`, the messages whose form both ends must share.
  static constexpr std::uint64_t protocol_version = 2;

  explicit handshake(network& net) : net_{&net} {}

  /// Returns this rank's message: a greeting per device, then the numbers of its queue pairs.
  [[nodiscard]] bootstrap::contribution greet() const {
    bootstrap::contribution greetings;
    for (const auto& rail : net_->own().rails()) {
      const open_port& port = rail->port();
      greeting own;
      own.control_address = reinterpret_cast<std::uintptr_t>(net_->own().memory(0));
      own.control_key = rail->control().rkey;
      own.mtu = port.attributes.active_mtu;
      own.reads = own_reads(port);
      own.lid = port.attributes.lid;
      own.gid = port.gid;
      own.first_packet = first_packet_;
      append_bytes(greetings.bytes, &own, sizeof own);
    }
    for (const rank_id peer : all_ranks{net_->size()})
      for (const queue_pair& pair : net_->to(peer).pairs())
        append_bytes(greetings.bytes, &pair->qp_num, sizeof pair->qp_num);
    return greetings;
  }

  /// Connects to `peer`, which introduced itself by `greetings`.
  /// Throws: `error` mismatch, system.
  void join(rank_id peer, const std::vector<std::byte>& greetings) const {
    link& peer_link = net_->to(peer);
    const std::size_t queues = peer_link.pairs().size();
    const std::size_t rails = net_->own().rails().size();
    const std::size_t expected =
        rails * sizeof(greeting) + net_->size() * queues * sizeof(std::uint32_t);
    if (greetings.size() != expected)
      throw error{errc::mismatch, concat("verbs: ", peer, " introduced itself by ",
                                         greetings.size(), " bytes, expected ", expected)};
    std::vector<greeting> theirs(rails);
    std::memcpy(theirs.data(), greetings.data(), rails * sizeof(greeting));
    remote_place quiet_word{
        theirs.front().control_address + net_->own().map().quiet_word(net_->rank()), {}};
    for (std::size_t i = 0; i < rails; ++i) quiet_word.key[i] = theirs[i].control_key;
    peer_link.out().lock()->quiet_word = quiet_word;
    for (std::size_t q = 0; q < queues; ++q) {
      std::uint32_t number = 0;
      const std::size_t position = net_->rank().index() * queues + q;
      std::memcpy(&number, greetings.data() + rails * sizeof(greeting) + position * sizeof number,
                  sizeof number);
      const std::size_t rail_number = net_->own().rail_of(q);
      join_pair(*net_->own().rails()[rail_number], *peer_link.pairs()[q], theirs[rail_number],
                number, peer);
    }
  }

 private:
  [[nodiscard]] static std::uint32_t own_reads(const open_port& port) noexcept {
    const ibv_device_attr& limits = port.limits;
    return static_cast<std::uint32_t>(
        std::clamp(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 1, 16));
  }

  void join_pair(const rail& own_rail, ibv_qp& pair, const greeting& theirs, std::uint32_t number,
                 rank_id peer) const {
    const verbs_options& options = net_->own().options();
    const open_port& port = own_rail.port();
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu =
        static_cast<ibv_mtu>(std::min<std::uint32_t>(theirs.mtu, port.attributes.active_mtu));
    state.dest_qp_num = number;
    state.rq_psn = theirs.first_packet;
    state.max_dest_rd_atomic = static_cast<std::uint8_t>(own_reads(port));
    // 0.64 ms, until a peer that does not look at its signals is asked again.
    state.min_rnr_timer = 12;
    ibv_ah_attr& route = state.ah_attr;
    route.dlid = theirs.lid;
    route.sl = static_cast<std::uint8_t>(net_->own().service_level());
    route.port_num = port.number;
    route.is_global = port.is_ethernet() || options.gid_index >= 0 ? 1 : 0;
    route.grh.dgid = theirs.gid;
    route.grh.sgid_index = port.gid_index;
    route.grh.hop_limit = 64;
    route.grh.traffic_class = static_cast<std::uint8_t>(net_->own().route_class());
    const std::string doing = concat("connecting to ", peer);
    own_rail.modify(pair, state,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                    doing);
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = first_packet_;
    state.timeout = options.ack_timeout;
    state.retry_cnt = options.retries;
    state.rnr_retry = 7;  // Without end: a peer may compute for as long as it likes.
    state.max_rd_atomic = static_cast<std::uint8_t>(std::min(own_reads(port), theirs.reads));
    own_rail.modify(pair, state,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                    doing);
  }

  network* net_;
  /// The number of the first packet. It is random, so that delayed packets of an earlier connection
  /// do not match this connection.
  std::uint32_t first_packet_ = std::random_device{}() & 0xff'ffffU;
};

}  // namespace peerbus::detail::rdma
