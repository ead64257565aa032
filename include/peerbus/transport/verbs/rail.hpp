// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/rail_load.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// One device of a rank, and the objects that the rank opens on it before it knows any peer:
/// completion queues, and a registration of the memory that belongs to no window. Only `load`
/// changes afterwards.
class rail {
 public:
  static constexpr std::uint32_t most_inline_bytes = 48;

  /// With completion queues for `pairs` queue pairs. `control` is the memory that belongs to no
  /// window. Throws: `error` invalid_argument, unsupported, out_of_memory, system.
  rail(open_port port, const verbs_options& options, std::size_t pairs,
       std::span<std::byte> control)
      : port_{std::move(port)}, queue_depth_{options.queue_depth} {
    const auto deepest = static_cast<std::uint32_t>(port_.limits.max_qp_wr);
    if (queue_depth_ > deepest)
      throw error{errc::invalid_argument, concat("verbs: queue_depth is ", queue_depth_, ", but ",
                                                 port_.describe(), " takes at most ", deepest)};
    domain_.reset(ibv_alloc_pd(port_.device.get()));
    require(domain_, "making a protection domain");
    channel_.reset(ibv_create_comp_channel(port_.device.get()));
    require(channel_, "making a completion channel");
    // A thread that looks for an event that another one took must not wait for the next.
    ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    sent_ = make_completion_queue(pairs, queue_depth_, nullptr);
    received_ = make_completion_queue(pairs, receive_depth, channel_.get());
    control_ = register_memory(domain_, port_, control, false, "notices");
  }
  rail(const rail&) = delete;
  rail& operator=(const rail&) = delete;
  ~rail() = default;

  [[nodiscard]] const open_port& port() const noexcept { return port_; }
  [[nodiscard]] ibv_comp_channel& channel() const noexcept { return *channel_; }
  [[nodiscard]] ibv_cq& sent() const noexcept { return *sent_; }
  [[nodiscard]] ibv_cq& received() const noexcept { return *received_; }
  /// The device's registration of the memory that belongs to no window.
  [[nodiscard]] const ibv_mr& control() const noexcept { return *control_; }
  [[nodiscard]] bool has_atomics() const noexcept {
    return port_.limits.atomic_cap != IBV_ATOMIC_NONE;
  }
  [[nodiscard]] rail_load& load() const noexcept { return load_; }

  /// Lets the device and peers reach the memory of a window.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] memory_region register_window(std::span<std::byte> memory,
                                              bool relaxed_ordering) const {
    return register_memory(domain_, port_, memory, relaxed_ordering, "a window");
  }

  /// Makes a queue pair that receives requests may be posted to. `granted` is what it can do.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] queue_pair make_queue_pair(ibv_qp_cap& granted) const {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = sent_.get();
    wanted.recv_cq = received_.get();
    wanted.qp_type = IBV_QPT_RC;
    const auto pieces = std::min<std::uint32_t>(request_chain::most_pieces,
                                                static_cast<std::uint32_t>(port_.limits.max_sge));
    wanted.cap = {queue_depth_, receive_depth, pieces, 1, most_inline_bytes};
    queue_pair made{ibv_create_qp(domain_.get(), &wanted)};
    if (!made) {
      // Not every device takes data inline.
      wanted.cap.max_inline_data = 0;
      made.reset(ibv_create_qp(domain_.get(), &wanted));
    }
    require(made, "making a queue pair");
    granted = wanted.cap;

    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = port_.number;
    state.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (has_atomics()) state.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    modify(*made, state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "initialising");
    return made;
  }

  /// Throws: `error` system.
  void modify(ibv_qp& pair, ibv_qp_attr& state, int which, std::string_view doing) const {
    if (const int failed = ibv_modify_qp(&pair, &state, which); failed != 0)
      throw system_failure(concat("verbs: ", doing, " by ", port_.describe()), failed);
  }

 private:
  [[nodiscard]] completion_queue make_completion_queue(std::size_t pairs, std::size_t depth,
                                                       ibv_comp_channel* channel) const {
    const auto most = static_cast<std::size_t>(port_.limits.max_cqe);
    if (pairs * depth > most)
      throw error{errc::unsupported,
                  concat("verbs: ", pairs, " queue pairs need ", pairs * depth, " completions, ",
                         port_.describe(), " has ", most, "; expected a smaller queue_depth")};
    completion_queue made{
        ibv_create_cq(port_.device.get(), static_cast<int>(pairs * depth), nullptr, channel, 0)};
    require(made, "making a completion queue");
    return made;
  }

  template <class Handle>
  void require(const Handle& made, std::string_view doing) const {
    if (made) return;
    const int reason = errno;
    throw error{reason == ENOMEM ? errc::out_of_memory : errc::system,
                concat("verbs: ", doing, " with ", port_.describe(), ": ", describe_errno(reason),
                       reason == ENOMEM ? describe_lock_limit() : "")};
  }

  // In the order in which they are made. Each needs those before it.
  open_port port_;
  std::uint32_t queue_depth_;
  protection_domain domain_;
  completion_channel channel_;
  completion_queue sent_;
  completion_queue received_;
  memory_region control_;
  mutable rail_load load_;
};

}  // namespace peerbus::detail::rdma
