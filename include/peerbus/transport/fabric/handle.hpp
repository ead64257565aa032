// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <peerbus/core/home_process.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep
#include <peerbus/transport/fabric/libfabric.hpp>

namespace peerbus::detail::ofi {

/// Releases a libfabric object. Ignores the result, because no caller could act on it, and the
/// object ends with the process at the latest. A child by fork releases nothing, because a provider
/// would close the connections of its parent.
struct closer {
  home_process home{};

  template <class Object>
  void operator()(Object* object) const noexcept {
    if (home.is_here()) static_cast<void>(fi_close(&object->fid));
  }
  void operator()(fi_info* list) const noexcept { fi_freeinfo(list); }
};

template <class Object>
using handle = std::unique_ptr<Object, closer>;

using provider_info = handle<fi_info>;  ///< one provider's offer, or a list of offers

}  // namespace peerbus::detail::ofi
