// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/window_maker.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::registered {

/// A transport of requests: a data path that connects its ranks and makes windows for each class of
/// traffic. The ranks are connected for bulk traffic when the first window needs it.
///
/// `Connect(boot, options, waiting, latency)` connects the ranks, collectively. If `latency` is
/// null, it returns the network for latency traffic, otherwise the network for bulk traffic beside
/// it.
template <class DataPath, auto Connect>
class connected_transport : public DataPath {
  using network = typename DataPath::network_type;

 public:
  using window = typename DataPath::window;

  /// Makes a window of memory that is registered, and so committed and locked where the network
  /// needs that. Contract as `make_window` of `transport`. The first window for bulk traffic also
  /// throws as the constructor.
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    const auto [net, maker] = maker_for(shape, until);
    return {net, maker->make(this->boot(), shape, on_memory_, until)};
  }
  /// Makes a window of memory that the ranks have, and registers it. Contract as `adopt_window` of
  /// `transport`. Calls no memory hook. The first window for bulk traffic also throws as the
  /// constructor.
  [[nodiscard]] window adopt_window(window_memory memory, deadline until) {
    const auto [net, maker] =
        maker_for({memory.data.size(), memory.signals.size(), memory.traffic}, until);
    return {net, maker->adopt(this->boot(), std::move(memory), until)};
  }

 protected:
  /// Connects the ranks for latency traffic. Collective. Keeps a reference to `boot`.
  /// Throws: as `Connect`.
  template <class Options>
  connected_transport(bootstrap& boot, const Options& options, wait_thresholds waiting,
                      memory_hook on_memory)
      : DataPath{boot, Connect(boot, options, waiting, nullptr)},
        latency_{*this->net()},
        on_memory_{std::move(on_memory)} {}

 private:
  /// The maker of windows of a class, and its network with the reference that keeps all classes.
  struct of_class {
    std::shared_ptr<network> net;
    window_maker<network>* maker;
  };
  /// Returns the maker of windows of `shape`, and its network. For the first window for bulk
  /// traffic, connects the ranks for bulk traffic; all ranks must then be about to make a window of
  /// `shape`.
  /// Throws: as `window_maker::compare` and `Connect`.
  [[nodiscard]] of_class maker_for(window_shape shape, deadline until) {
    const std::shared_ptr<network>& net = this->net();
    if (shape.traffic == traffic_class::latency) return {net, &latency_};
    if (net->bulk() == nullptr) {
      window_maker<network>::compare(this->boot(), shape, until);
      net->add_bulk(Connect(this->boot(), net->own().options(), net->waiting(), net.get()));
      bulk_.emplace(*net->bulk());
    }
    return {{net, net->bulk()}, &*bulk_};
  }

  window_maker<network> latency_;
  std::optional<window_maker<network>> bulk_;
  memory_hook on_memory_;
};

}  // namespace peerbus::detail::registered
