// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include <peerbus/core/mapping.hpp>
#include <peerbus/core/read_once.hpp>

namespace bench {

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

  /// Reads all, as if it had just been computed: what is timed next finds it as near as a layer of
  /// a model leaves its result.
  void recall() const noexcept { peerbus::read_once(std::as_bytes(all())); }

 private:
  peerbus::mapping memory_;
  std::size_t count_;
};

}  // namespace bench
