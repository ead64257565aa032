// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include <peerbus/core/home_process.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// Gives a verbs object back. Its result is ignored: nobody could act on it, and the object ends
/// with the process at the latest. A child by fork gives nothing back: the kernel would take it
/// from its parent, with whom it shares the device.
template <auto Release>
struct releaser {
  home_process home{};

  template <class Object>
  void operator()(Object* object) const noexcept {
    if (home.is_here()) static_cast<void>(Release(object));
  }
};

template <class Object, auto Release>
using handle = std::unique_ptr<Object, releaser<Release>>;

using device_list = handle<ibv_device*, &ibv_free_device_list>;
using context = handle<ibv_context, &ibv_close_device>;
using protection_domain = handle<ibv_pd, &ibv_dealloc_pd>;
using memory_region = handle<ibv_mr, &ibv_dereg_mr>;
using completion_channel = handle<ibv_comp_channel, &ibv_destroy_comp_channel>;
using completion_queue = handle<ibv_cq, &ibv_destroy_cq>;
using queue_pair = handle<ibv_qp, &ibv_destroy_qp>;

}  // namespace peerbus::detail::rdma
