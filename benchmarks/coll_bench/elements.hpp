// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/team.hpp>

#include "coll_bench/operation.hpp"

namespace coll_bench {

/// The operands of a call. Both are the same range, or one lies in the other, if it is in place.
struct operands {
  peerbus::collective::window_range<std::byte> input;
  peerbus::collective::window_range<std::byte> output;
};

/// What depends on the type of the elements and on the reduction: values, which follow from rank
/// and index, and calls of the library.
class element_calls {
 public:
  element_calls() = default;
  element_calls(const element_calls&) = delete;
  element_calls& operator=(const element_calls&) = delete;
  virtual ~element_calls() = default;

  /// The size of an element.
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// Writes the input of a rank, and other values to its output.
  virtual void fill(const operation_shape& shape, const operands& given) const noexcept = 0;
  /// Returns how many elements of the output are not what the operation gives.
  [[nodiscard]] virtual std::size_t count_wrong(const operation_shape& shape,
                                                const operands& given) const = 0;
  /// Calls the operation.
  virtual void call(const operation_shape& shape, peerbus::collective::team& on,
                    const operands& given) const = 0;
  /// Does the first half of the operation, which is no barrier.
  virtual peerbus::collective::pending start(const operation_shape& shape,
                                             peerbus::collective::team& on,
                                             const operands& given) const = 0;
};

/// The types that `make_elements` knows.
[[nodiscard]] std::vector<std::string> element_names();
[[nodiscard]] std::unique_ptr<element_calls> make_elements(std::string_view type,
                                                           std::string_view reduction);

}  // namespace coll_bench
