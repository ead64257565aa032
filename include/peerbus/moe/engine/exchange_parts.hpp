// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/batch_ring.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/engine/reporting_path.hpp>
#include <peerbus/moe/engine/timed_path.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/any_row_path.hpp>
#include <peerbus/moe/stores.hpp>

namespace peerbus::moe::detail {

/// A function that makes the path of an exchange over its window.
using row_path_maker =
    peerbus::detail::function_ref<std::unique_ptr<any_row_path>(any_window&, const memory_map&)>;

/// The parts of one level of an exchange, without types. An exchange that relays has two levels.
struct exchange_parts {
  /// Takes the window `made`. `exchange` is the address in tickets, and `stores_by` decides between
  /// kinds of stores.
  exchange_parts(const void* exchange, const exchange_config& agreed, const memory_map& places,
                 std::unique_ptr<any_window> made, batch_ring plans, store_reason stores_by,
                 row_path_maker make_row_path)
      : config{agreed},
        map{places},
        window{std::move(made)},
        batches{std::move(plans)},
        path{reporting_path::over(timed_path::over(make_row_path(*window, map), *window, map),
                                  window->group(), map, batches)},
        core{exchange, {config, map, *window, batches, *path}, stores_by} {}
  exchange_parts(const exchange_parts&) = delete;
  exchange_parts& operator=(const exchange_parts&) = delete;
  ~exchange_parts() = default;

  exchange_config config;
  memory_map map;
  std::unique_ptr<any_window> window;
  batch_ring batches;
  std::unique_ptr<any_row_path> path;
  exchange_core core;
};

}  // namespace peerbus::moe::detail
