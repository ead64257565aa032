// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/opened_device.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// The part of one device that a rank has for one class of traffic, and that it opens before it
/// knows any peer: completion queues, and a registration of the memory that is in no window
/// (`control_map`). Only `load` and the counts of events change afterwards.
class rail {
 public:
  static constexpr std::uint32_t most_inline_bytes = 48;

  /// Opens completion queues for `pairs` queue pairs. `control` is the memory of a `control_map`.
  /// Throws: `error` invalid_argument, unsupported, out_of_memory, system.
  rail(std::shared_ptr<const opened_device> device, const verbs_options& options, std::size_t pairs,
       std::span<std::byte> control)
      : device_{std::move(device)}, queue_depth_{options.queue_depth} {
    const auto deepest = static_cast<std::uint32_t>(port().limits.max_qp_wr);
    if (queue_depth_ > deepest)
      throw error{errc::invalid_argument, concat("verbs: queue_depth is ", queue_depth_, ", but ",
                                                 port().describe(), " takes at most ", deepest)};
    sent_ = make_completion_queue(pairs, queue_depth_, sent_events_);
    received_ = make_completion_queue(pairs, receive_depth, received_events_);
    control_ = device_->reach(control, false, "notices");
  }
  rail(const rail&) = delete;
  rail& operator=(const rail&) = delete;
  ~rail() {
    // A queue whose events are not acknowledged is never destroyed.
    if (sent_events_ != 0) ibv_ack_cq_events(sent_.get(), sent_events_);
    if (received_events_ != 0) ibv_ack_cq_events(received_.get(), received_events_);
  }

  [[nodiscard]] const std::shared_ptr<const opened_device>& device() const noexcept {
    return device_;
  }
  [[nodiscard]] const open_port& port() const noexcept { return device_->port(); }
  [[nodiscard]] ibv_cq& sent() const noexcept { return *sent_; }
  [[nodiscard]] ibv_cq& received() const noexcept { return *received_; }
  /// Returns the device's registration of the memory of the `control_map`.
  [[nodiscard]] const ibv_mr& control() const noexcept { return *control_; }
  [[nodiscard]] bool has_atomics() const noexcept { return device_->has_atomics(); }
  [[nodiscard]] rail_load& load() const noexcept { return load_; }

  /// Takes the events of a device's channel, which may belong to several rails. Only one thread at
  /// a time may call it.
  static void take_events(const opened_device& device) noexcept {
    ibv_cq* queue = nullptr;
    void* count = nullptr;
    while (ibv_get_cq_event(&device.channel(), &queue, &count) == 0)
      ++*static_cast<unsigned*>(count);
  }

  /// Makes a queue pair to which receive requests may be posted. Sets `granted` to its capacity.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] queue_pair make_queue_pair(ibv_qp_cap& granted) const {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = sent_.get();
    wanted.recv_cq = received_.get();
    wanted.qp_type = IBV_QPT_RC;
    const auto pieces = std::min<std::uint32_t>(request_chain::most_pieces,
                                                static_cast<std::uint32_t>(port().limits.max_sge));
    wanted.cap = {queue_depth_, receive_depth, pieces, 1, most_inline_bytes};
    queue_pair made{ibv_create_qp(&device_->domain(), &wanted)};
    if (!made) {
      // Not every device takes data inline.
      wanted.cap.max_inline_data = 0;
      made.reset(ibv_create_qp(&device_->domain(), &wanted));
    }
    device_->require(made, "making a queue pair");
    granted = wanted.cap;

    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = port().number;
    state.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (has_atomics()) state.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    modify(*made, state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "initialising");
    return made;
  }

  /// Changes the attributes `which` of `pair` to the values in `state`. `doing` names the step in
  /// errors.
  /// Throws: `error` system.
  void modify(ibv_qp& pair, ibv_qp_attr& state, int which, std::string_view doing) const {
    if (const int failed = ibv_modify_qp(&pair, &state, which); failed != 0)
      throw system_failure(concat("verbs: ", doing, " by ", port().describe()), failed);
  }

 private:
  /// Makes a completion queue. `events` counts its events that were taken and not acknowledged.
  [[nodiscard]] completion_queue make_completion_queue(std::size_t pairs, std::size_t depth,
                                                       unsigned& events) const {
    const auto most = static_cast<std::size_t>(port().limits.max_cqe);
    if (pairs * depth > most)
      throw error{errc::unsupported,
                  concat("verbs: ", pairs, " queue pairs need ", pairs * depth, " completions, ",
                         port().describe(), " has ", most, "; expected a smaller queue_depth")};
    completion_queue made{ibv_create_cq(port().device.get(), static_cast<int>(pairs * depth),
                                        &events, &device_->channel(), 0)};
    device_->require(made, "making a completion queue");
    return made;
  }

  // In the order in which they are made. Each needs those before it.
  std::shared_ptr<const opened_device> device_;
  std::uint32_t queue_depth_;
  unsigned sent_events_ = 0;
  unsigned received_events_ = 0;
  completion_queue sent_;
  completion_queue received_;
  memory_region control_;
  mutable rail_load load_;
};

}  // namespace peerbus::detail::rdma
