// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/align.hpp>
#include <peerbus/core/mapping.hpp>

namespace bench {

/// Reads every cache line, as if the bytes had just been computed: what is timed next finds them as
/// near as a layer of a model leaves its result.
inline void recall(std::span<const std::byte> bytes) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += peerbus::cache_line_bytes)
    sum += static_cast<std::uint64_t>(bytes[i]);
  asm volatile("" : : "r"(sum));
}

/// An array in pages of its own, huge ones where the machine has any, as those of windows are: what
/// is compared should not differ in where its source lies.
template <class T>
class pages {
 public:
  explicit pages(std::size_t count)
      : memory_{peerbus::mapping::anonymous(std::max<std::size_t>(count * sizeof(T), 1))},
        count_{count} {}

  [[nodiscard]] std::span<T> all() const noexcept {
    return {reinterpret_cast<T*>(memory_.data()), count_};
  }

  void recall() const noexcept { bench::recall(std::as_bytes(all())); }

 private:
  peerbus::mapping memory_;
  std::size_t count_;
};

}  // namespace bench
