// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/put_stream.hpp"

namespace put_bench {

/// A way in which two ranks move bytes to each other. Contenders take turns, so that all meet the
/// same moods of the machine. All calls but those of constants are collective.
class contender {
 public:
  /// `reference`: the name of the contender that this one is compared with; empty: the first one.
  explicit contender(std::string name, std::string reference = {})
      : name_{std::move(name)}, reference_{std::move(reference)} {}
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  virtual ~contender() = default;

  /// Returns what the table calls it.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& reference() const noexcept { return reference_; }
  /// Returns whether it can send a small payload of `bytes`.
  [[nodiscard]] virtual bool sends(std::size_t bytes) const noexcept = 0;
  /// Returns whether it has `stream`.
  [[nodiscard]] virtual bool streams() const noexcept { return false; }

  /// Sends a small payload there and back, `rounds` times. Returns: microseconds one way, half of
  /// each round trip, or half of their mean where one takes less than reading the clock; on rank 0.
  [[nodiscard]] virtual std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) = 0;
  /// Sends messages from rank 0 to rank 1. Returns: microseconds from the first one until rank 1's
  /// answer has come; on rank 0.
  [[nodiscard]] virtual double stream(const bench::stream_shape& shape) = 0;

  /// Returns whether every payload so far has arrived as it was sent.
  [[nodiscard]] virtual bool right() const = 0;

 private:
  std::string name_;
  std::string reference_;
};

using contenders = std::vector<std::unique_ptr<contender>>;

}  // namespace put_bench
