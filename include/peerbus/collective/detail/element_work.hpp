// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>

#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/reduction.hpp>

namespace peerbus::collective::detail {

/// What an operation does to elements: it reduces them, encodes them by a codec, or only moves
/// them. The codec is an object of the type that the function which carries out the operation
/// expects.
struct element_work {
  reducer reduce{};             ///< the reduction, if any
  const void* codec = nullptr;  ///< the codec, if any
};

/// An `element_work` with a copy of the reduction's callable or of the codec, for operations that
/// outlast the call that began them.
class kept_work {
 public:
  /// The size of the largest object that can be copied, in bytes.
  static constexpr std::size_t most_bytes = 64;

  /// Makes the work of operations that only move elements.
  kept_work() noexcept = default;
  /// Copies `callable`, the callable of `reduce`.
  template <class Callable>
  kept_work(const reducer& reduce, const Callable& callable) noexcept : reduce_{reduce} {
    keep(callable);
  }
  /// Returns the reduction of `T` by a copy of `op`.
  template <class T, reduction<T> Op>
  [[nodiscard]] static kept_work reduction_of(const Op& op) noexcept {
    return {reducer::of<T>(op), op};
  }
  /// Returns the work of a copy of `codec`.
  template <class Codec>
  [[nodiscard]] static kept_work by_codec(const Codec& codec) noexcept {
    kept_work made;
    made.has_codec_ = true;
    made.keep(codec);
    return made;
  }

  /// Returns the work, which refers to this object.
  [[nodiscard]] element_work get() const noexcept {
    if (has_codec_) return {{}, copy_.data()};
    return {reduce_.by(copy_.data()), nullptr};
  }

 private:
  template <class Copied>
  void keep(const Copied& copied) noexcept {
    static_assert(std::is_trivially_copyable_v<Copied> && sizeof(Copied) <= most_bytes &&
                  alignof(Copied) <= alignof(std::max_align_t));
    std::memcpy(copy_.data(), std::addressof(copied), sizeof copied);
  }

  reducer reduce_;
  bool has_codec_ = false;
  alignas(std::max_align_t) std::array<std::byte, most_bytes> copy_{};
};

}  // namespace peerbus::collective::detail
