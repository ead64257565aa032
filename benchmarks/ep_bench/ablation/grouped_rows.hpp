// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace ep_bench {

/// The rows of one expert after a basic dispatch, with the names that `peerbus::moe::expert_rows`
/// has for them.
template <class Codec>
class grouped_rows {
 public:
  struct memory {
    const std::byte* rows;
    const std::byte* scales;
    peerbus::bf16* outputs;
  };

  grouped_rows(std::size_t id, std::size_t hidden, std::size_t count, memory at)
      : id_{id}, hidden_{hidden}, count_{count}, at_{at} {}

  [[nodiscard]] std::size_t id() const noexcept { return id_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::span<const std::byte> row(std::size_t i) const noexcept {
    return {at_.rows + i * Codec::row_bytes(hidden_), Codec::row_bytes(hidden_)};
  }
  [[nodiscard]] std::span<const std::byte> scales() const noexcept {
    return {at_.scales, count_ * Codec::scale_bytes(hidden_)};
  }
  void decode(std::size_t i, std::span<float> out) const noexcept {
    const std::size_t scale = Codec::scale_bytes(hidden_);
    Codec{}.decode(row(i), scales().subspan(i * scale, scale), out);
  }
  [[nodiscard]] std::span<peerbus::bf16> output(std::size_t i) const noexcept {
    return {at_.outputs + i * hidden_, hidden_};
  }

 private:
  std::size_t id_;
  std::size_t hidden_;
  std::size_t count_;
  memory at_;
};

/// All of a rank's.
template <class Codec>
class arrivals {
 public:
  [[nodiscard]] const std::vector<grouped_rows<Codec>>& experts() const noexcept {
    return experts_;
  }
  [[nodiscard]] std::vector<grouped_rows<Codec>>& experts() noexcept { return experts_; }

 private:
  std::vector<grouped_rows<Codec>> experts_;
};

}  // namespace ep_bench
