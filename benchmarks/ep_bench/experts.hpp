// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/received.hpp>

namespace ep_bench {

/// What an expert does to its rows: it multiplies them by a factor and rotates their columns, which
/// no two of 128 x hidden experts do alike, so that a row at the wrong expert cannot pass.
/// Multiplication alone rounds in one way only, whatever instructions the compiler takes.
struct transform {
  float factor;
  std::size_t rotation;

  transform(std::size_t expert, std::size_t hidden) noexcept
      : factor{1.0F + static_cast<float>(expert % 128) / 128.0F}, rotation{expert / 128 % hidden} {}
};

/// All experts of a rank, as fast as the machine allows; not timed, but part of every iteration, so
/// that outputs are as fresh as those of real experts when they are combined.
class expert_work {
 public:
  explicit expert_work(std::size_t hidden) : row_(hidden) {}

  template <class Codec>
  void run(const peerbus::moe::received<Codec>& received) noexcept {
    const auto& kernels = peerbus::kernel::best();
    for (auto& expert : received.experts()) {
      const transform apply{expert.id(), row_.size()};
      const std::size_t left = row_.size() - apply.rotation;
      for (std::size_t i = 0; i < expert.count(); ++i) {
        expert.decode(i, row_);
        for (float& value : row_) value *= apply.factor;
        peerbus::bf16* const out = expert.output(i).data();
        kernels.narrow(row_.data() + apply.rotation, left, out);
        kernels.narrow(row_.data(), apply.rotation, out + left);
      }
    }
  }

 private:
  std::vector<float> row_;
};

}  // namespace ep_bench
