// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include <peerbus/core/home_process.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// Releases a verbs object. Ignores the result, because no caller could act on it, and the object
/// ends with the process at the latest. A child by fork releases nothing, because the kernel would
/// take the object from its parent, with which it shares the device.
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
