// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/direct.hpp>
#include <peerbus/transport/memory_hook.hpp>

namespace peerbus {

/// Ranks are threads of one process; a window is that process's own memory.
template <wait_policy Wait = adaptive_wait>
class basic_loopback : public direct_path {
 public:
  static constexpr rank_kind ranks_are = rank_kind::threads;

  /// Throws: `error` unsupported if the ranks of `boot` are not threads of one process.
  explicit basic_loopback(bootstrap& boot, Wait policy = {}, memory_hook on_memory = {})
      : direct_path{boot, policy.thresholds(boot.ranks_here(), boot.cores_here())},
        on_memory_{std::move(on_memory)} {
    if (boot.addresses() != address_space::shared)
      throw error{errc::unsupported,
                  "loopback connects threads of one process, but these ranks are processes: start "
                  "them with run_threads, or use unified_bus"};
  }

  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    bootstrap::contribution mine;
    auto objection = detail::objection_to(shape);
    if (!objection) {
      try {
        // One byte at least: an empty mapping does not exist.
        const auto own = std::make_shared<const mapping>(
            mapping::anonymous(direct_window::mapped_bytes(shape) + 1));
        if (on_memory_) on_memory_({own->data(), own->size()});
        mine.object = own;
      } catch (const error& problem) {
        objection = problem;
      }
    }
    const auto all = gather_or_refuse(boot(), "window", std::move(mine), objection, until);
    std::vector<std::shared_ptr<const mapping>> parts;
    parts.reserve(all.size());
    for (const auto& from : all)
      parts.push_back(std::static_pointer_cast<const mapping>(from.object));
    return window{shape, boot().rank(), std::move(parts)};
  }

 private:
  memory_hook on_memory_;
};

using loopback = basic_loopback<>;
static_assert(direct_transport<loopback>);

}  // namespace peerbus
