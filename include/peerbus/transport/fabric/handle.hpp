// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <peerbus/core/home_process.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep
#include <peerbus/transport/fabric/libfabric.hpp>

namespace peerbus::detail::ofi {

/// The deleter of libfabric objects. Ignores the result, because no caller could act on it, and the
/// object ends with the process at the latest. In a child made by fork it closes no object, because
/// a provider would close the connections of the parent; it only frees lists of `fi_info`.
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
