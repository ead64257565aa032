// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/transport/concept.hpp>

#include "put_bench/contender.hpp"
#include "support/put_ping_pong.hpp"
#include "support/put_stream.hpp"

namespace put_bench {

/// peerbus's windows over a network: `put_signal` until the answer's wait has returned, and puts
/// with a signal behind them.
template <peerbus::transport Transport>
class windows final : public contender {
 public:
  windows(std::string name, Transport bus) : contender{std::move(name)}, comm_{std::move(bus)} {}

  [[nodiscard]] bool sends(std::size_t) const noexcept override { return true; }
  [[nodiscard]] bool streams() const noexcept override { return true; }

  [[nodiscard]] std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) override {
    const auto game = games_.try_emplace(bytes, comm_, bytes).first;
    return game->second.play(rounds);
  }
  [[nodiscard]] double stream(const bench::stream_shape& shape) override {
    if (!flow_ || !(shape == flowing_)) {
      if (flow_) flows_right_ = flows_right_ && flow_->right();
      flow_.reset();
      flow_.emplace(comm_, shape);
      flowing_ = shape;
    }
    return flow_->play();
  }
  [[nodiscard]] bool right() const override {
    return flows_right_ && (!flow_ || flow_->right()) &&
           std::ranges::all_of(games_, [](const auto& each) { return each.second.right(); });
  }

  /// Returns the communicator, whose transport knows its device.
  [[nodiscard]] peerbus::communicator<Transport>& comm() noexcept { return comm_; }

 private:
  peerbus::communicator<Transport> comm_;
  std::map<std::size_t, bench::put_ping_pong<Transport>> games_;
  bench::stream_shape flowing_{};
  std::optional<bench::put_stream<Transport>> flow_;
  bool flows_right_ = true;
};

}  // namespace put_bench
