// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/verbs/append_bytes.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/endpoint.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/registration.hpp>

namespace peerbus::detail::rdma {

/// What ranks tell each other before they connect, followed by the numbers of the sender's queue
/// pairs: [ranks][queue pairs per peer].
struct greeting {
  std::uint64_t control_address = 0;
  std::uint32_t control_key = 0;
  std::uint32_t mtu = 0;
  std::uint32_t reads = 0;  ///< and atomics that may be on their way to the sender, per queue pair
  std::uint16_t lid = 0;
  std::uint16_t unused = 0;
  std::uint32_t first_packet = 0;  ///< number of the sender's first, 24 bits
  std::uint32_t unused_too = 0;
  ibv_gid gid{};
};
static_assert(sizeof(greeting) == 48);

/// Makes endpoints. What one rank cannot do ends it on all, by name.
class connector {
 public:
  /// Of what notices and greetings look like on the wire.
  static constexpr std::uint64_t protocol_version = 1;
  static constexpr std::uint32_t most_inline_bytes = 48;

  /// Collective. Throws, on all ranks: `error` unsupported, invalid_argument, mismatch,
  /// out_of_memory, system; or as `bootstrap::allgather`.
  static std::shared_ptr<endpoint> connect(bootstrap& boot, const verbs_options& chosen,
                                           wait_thresholds waiting) {
    const auto until = deadline::after(chosen.setup_timeout);
    std::shared_ptr<endpoint> made;
    std::optional<error> objection;
    try {
      check(chosen);
      made = std::make_shared<endpoint>(boot, port_search{chosen}.find(), chosen, waiting);
      connector{*made}.open();
    } catch (const error& problem) {
      objection = problem;
    } catch (const std::bad_alloc&) {
      objection = error{errc::out_of_memory, "verbs: no memory for its queues"};
    }
    const std::vector<declared> values{
        {"protocol version", protocol_version},
        {"byte order", std::endian::native == std::endian::little ? "little-endian" : "big-endian"},
        {"queue pairs per peer", chosen.queue_pairs_per_peer},
        {"atomics", made && made->port().limits.atomic_cap != IBV_ATOMIC_NONE ? "yes" : "no"},
        {"link layer", made && made->port().is_ethernet() ? "Ethernet" : "InfiniBand"}};
    agree(boot, "verbs", values, until, objection);

    const auto all = gather_or_refuse(boot, "verbs", connector{*made}.greet(), std::nullopt, until);
    try {
      for (const rank_id peer : all_ranks{boot.size()})
        connector{*made}.join(peer, all[peer.index()].bytes);
    } catch (const error& problem) {
      objection = problem;
    }
    // Nobody sends before all can receive, and who cannot is named to all.
    agree(boot, "verbs connected", {}, until, objection);
    return made;
  }

 private:
  explicit connector(endpoint& made) : net_{made} {}

  static void check(const verbs_options& chosen) {
    const auto within = [](std::string_view name, std::uint64_t given, std::uint64_t least,
                           std::uint64_t most) {
      if (given < least || given > most)
        throw error{errc::invalid_argument,
                    concat("verbs: ", name, " is ", given, ", expected ", least, " to ", most)};
    };
    within("queue_pairs_per_peer", chosen.queue_pairs_per_peer, 1, most_queue_pairs);
    within("queue_depth", chosen.queue_depth, 2, 16384);
    within("ack_timeout", chosen.ack_timeout, 0, 31);
    within("retries", chosen.retries, 0, 7);
    within("service_level", chosen.service_level, 0, 15);
    if (chosen.gid_index > 255 || chosen.gid_index < -1)
      throw error{errc::invalid_argument,
                  concat("verbs: gid_index is ", chosen.gid_index, ", expected -1 to 255")};
  }

  /// Makes everything that needs no peer; the queue pairs can receive from then on, and what
  /// arrives is looked at while this rank waits for the others.
  void open() {
    const std::size_t queues = net_.size() * net_.options_.queue_pairs_per_peer;
    const auto deepest = static_cast<std::uint32_t>(net_.port_.limits.max_qp_wr);
    if (net_.options_.queue_depth > deepest)
      throw error{errc::invalid_argument,
                  concat("verbs: queue_depth is ", net_.options_.queue_depth, ", but ",
                         net_.port_.describe(), " takes at most ", deepest)};
    net_.domain_.reset(ibv_alloc_pd(net_.port_.device.get()));
    require(net_.domain_, "making a protection domain");
    net_.channel_.reset(ibv_create_comp_channel(net_.port_.device.get()));
    require(net_.channel_, "making a completion channel");
    // A thread that looks for an event that another one took must not wait for the next.
    ::fcntl(net_.channel_->fd, F_SETFL, ::fcntl(net_.channel_->fd, F_GETFL) | O_NONBLOCK);
    net_.sent_ = completions(queues * net_.options_.queue_depth, nullptr);
    net_.received_ = completions(queues * receive_depth, net_.channel_.get());

    const std::size_t bytes = net_.map_.bytes();
    net_.control_ = mapping::anonymous(bytes);
    net_.registration_ =
        register_memory(net_.domain_, net_.port_, net_.control_, bytes, false, "notices");
    net_.connections_ = std::make_unique<connection[]>(net_.size());
    for (const rank_id peer : all_ranks{net_.size()}) {
      connection& to = net_.to(peer);
      to.queues = std::make_unique<send_queue[]>(net_.options_.queue_pairs_per_peer);
      to.coming.open(receive_depth);
      to.next_probe = deadline::after(net_.options_.probe_interval);
      to.scratch = net_.control_.data() + net_.map_.scratch(peer);
      to.scratch_key = net_.registration_->lkey;
      for (std::uint32_t q = 0; q < net_.options_.queue_pairs_per_peer; ++q) open_queue(peer, q);
    }
    net_.idle_->add(net_);
  }

  [[nodiscard]] completion_queue completions(std::size_t wanted, ibv_comp_channel* channel) const {
    const auto most = static_cast<std::size_t>(net_.port_.limits.max_cqe);
    if (wanted > most)
      throw error{errc::unsupported,
                  concat("verbs: ", net_.size(), " ranks with ", net_.options_.queue_pairs_per_peer,
                         " queue pairs each need ", wanted, " completions, ", net_.port_.describe(),
                         " has ", most, "; expected a smaller queue_depth")};
    completion_queue made{
        ibv_create_cq(net_.port_.device.get(), static_cast<int>(wanted), nullptr, channel, 0)};
    require(made, "making a completion queue");
    return made;
  }

  void open_queue(rank_id peer, std::uint32_t number) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = net_.sent_.get();
    wanted.recv_cq = net_.received_.get();
    wanted.qp_type = IBV_QPT_RC;
    const auto pieces = std::min<std::uint32_t>(
        request_chain::most_pieces, static_cast<std::uint32_t>(net_.port_.limits.max_sge));
    wanted.cap = {net_.options_.queue_depth, receive_depth, pieces, 1, most_inline_bytes};
    queue_pair made{ibv_create_qp(net_.domain_.get(), &wanted)};
    if (!made) {
      // Not every device takes data inline.
      wanted.cap.max_inline_data = 0;
      made.reset(ibv_create_qp(net_.domain_.get(), &wanted));
    }
    require(made, "making a queue pair");

    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = net_.port_.number;
    state.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (net_.port_.limits.atomic_cap != IBV_ATOMIC_NONE)
      state.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    modify(made.get(), state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "initialising");
    const auto tag =
        static_cast<std::uint32_t>(peer.index() * net_.options_.queue_pairs_per_peer + number);
    net_.to(peer).queues[number].open(std::move(made), tag, net_.options_.queue_depth, wanted.cap);
    for (std::uint32_t slot = 0; slot < receive_depth; ++slot)
      if (const int failed = net_.post_receive(net_.to(peer), number, slot); failed != 0)
        throw system_failure(
            concat("verbs: posting a receive request with ", net_.port_.describe()), failed);
  }

  [[nodiscard]] bootstrap::contribution greet() const {
    greeting mine;
    mine.control_address = net_.address_of(0);
    mine.control_key = net_.registration_->rkey;
    mine.mtu = net_.port_.attributes.active_mtu;
    mine.reads = own_reads();
    mine.lid = net_.port_.attributes.lid;
    mine.gid = net_.port_.gid;
    mine.first_packet = net_.first_packet_;
    bootstrap::contribution said;
    append_bytes(said.bytes, mine);
    for (const rank_id peer : all_ranks{net_.size()})
      for (std::uint32_t q = 0; q < net_.options_.queue_pairs_per_peer; ++q)
        append_bytes(said.bytes, net_.to(peer).queues[q].pair()->qp_num);
    return said;
  }

  [[nodiscard]] std::uint32_t own_reads() const noexcept {
    return static_cast<std::uint32_t>(std::clamp(
        std::min(net_.port_.limits.max_qp_rd_atom, net_.port_.limits.max_qp_init_rd_atom), 1, 16));
  }

  void join(rank_id peer, const std::vector<std::byte>& said) {
    const std::uint32_t queues = net_.options_.queue_pairs_per_peer;
    const std::size_t expected = sizeof(greeting) + net_.size() * queues * sizeof(std::uint32_t);
    if (said.size() != expected)
      throw error{errc::mismatch, concat("verbs: ", peer, " introduced itself by ", said.size(),
                                         " bytes, expected ", expected)};
    greeting theirs;
    std::memcpy(&theirs, said.data(), sizeof theirs);
    net_.to(peer).quiet_word = {theirs.control_address + net_.map_.quiet_word(net_.rank()),
                                theirs.control_key};
    for (std::uint32_t q = 0; q < queues; ++q) {
      std::uint32_t pair = 0;
      const std::size_t at = net_.rank().index() * queues + q;
      std::memcpy(&pair, said.data() + sizeof theirs + at * sizeof pair, sizeof pair);
      join_queue(net_.to(peer).queues[q].pair(), theirs, pair, peer);
    }
  }

  void join_queue(ibv_qp* mine, const greeting& theirs, std::uint32_t pair, rank_id peer) const {
    const verbs_options& chosen = net_.options_;
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu =
        static_cast<ibv_mtu>(std::min<std::uint32_t>(theirs.mtu, net_.port_.attributes.active_mtu));
    state.dest_qp_num = pair;
    state.rq_psn = theirs.first_packet;
    state.max_dest_rd_atomic = static_cast<std::uint8_t>(own_reads());
    state.min_rnr_timer =
        12;  // 0.64 ms, until a peer whose signals are not looked at is asked again.
    ibv_ah_attr& route = state.ah_attr;
    route.dlid = theirs.lid;
    route.sl = chosen.service_level;
    route.port_num = net_.port_.number;
    route.is_global = net_.port_.is_ethernet() || chosen.gid_index >= 0 ? 1 : 0;
    route.grh.dgid = theirs.gid;
    route.grh.sgid_index = net_.port_.gid_index;
    route.grh.hop_limit = 64;
    route.grh.traffic_class = chosen.traffic_class;
    const std::string doing = concat("connecting to ", peer);
    modify(mine, state,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           doing);
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = net_.first_packet_;
    state.timeout = chosen.ack_timeout;
    state.retry_cnt = chosen.retries;
    state.rnr_retry = 7;  // Without end: a peer may compute for as long as it likes.
    state.max_rd_atomic = static_cast<std::uint8_t>(std::min(own_reads(), theirs.reads));
    modify(mine, state,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           doing);
  }

  void modify(ibv_qp* pair, ibv_qp_attr& state, int which, std::string_view doing) const {
    if (const int failed = ibv_modify_qp(pair, &state, which); failed != 0)
      throw system_failure(concat("verbs: ", doing, " by ", net_.port_.describe()), failed);
  }
  template <class Handle>
  void require(const Handle& made, std::string_view doing) const {
    if (made) return;
    const int reason = errno;
    throw error{reason == ENOMEM ? errc::out_of_memory : errc::system,
                concat("verbs: ", doing, " with ", net_.port_.describe(), ": ",
                       describe_errno(reason), reason == ENOMEM ? describe_lock_limit() : "")};
  }

  endpoint& net_;
};

}  // namespace peerbus::detail::rdma
