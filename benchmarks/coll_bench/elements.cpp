// SPDX-License-Identifier: MIT
#include "coll_bench/elements.hpp"

#include <cstdint>
#include <type_traits>

#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

namespace coll_bench {
namespace {

namespace coll = peerbus::collective;
using peerbus::rank_id;

template <class T, class Op>
class elements_of final : public element_calls {
 public:
  [[nodiscard]] std::size_t bytes() const noexcept override { return sizeof(T); }

  void fill(const operation_shape& shape, const operands& given) const noexcept override {
    for (T& each : as_elements(given.output)) each = T{};
    const auto input = as_elements(given.input);
    if (shape.which == operation::broadcast && !shape.is_root()) return;
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = value(shape, shape.rank, i);
  }

  [[nodiscard]] std::size_t count_wrong(const operation_shape& shape,
                                        const operands& given) const override {
    const auto output = as_elements(given.output);
    const std::size_t row = shape.gets_rows() ? output.size() / shape.ranks : output.size();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < output.size(); ++i)
      if (!(output[i] == expected(shape, row, i))) ++wrong;
    return wrong;
  }

  void call(const operation_shape& shape, coll::team& on, const operands& given) const override {
    const auto input = typed(given.input);
    const auto output = typed(given.output);
    const rank_id root{shape.root};
    switch (shape.which) {
      case operation::all_reduce: coll::all_reduce(on, input, output, Op{}); break;
      case operation::all_gather: coll::all_gather(on, input, output); break;
      case operation::all_to_all: coll::all_to_all(on, input, output); break;
      case operation::reduce_scatter: coll::reduce_scatter(on, input, output, Op{}); break;
      case operation::broadcast: coll::broadcast(on, output, root); break;
      case operation::reduce: coll::reduce(on, input, output, Op{}, root); break;
      case operation::gather: coll::gather(on, input, output, root); break;
      case operation::scatter: coll::scatter(on, input, output, root); break;
      case operation::barrier: break;
    }
  }

  coll::pending start(const operation_shape& shape, coll::team& on,
                      const operands& given) const override {
    const auto input = typed(given.input);
    const auto output = typed(given.output);
    const rank_id root{shape.root};
    switch (shape.which) {
      case operation::all_reduce: return coll::start_all_reduce(on, input, output, Op{});
      case operation::all_gather: return coll::start_all_gather(on, input, output);
      case operation::all_to_all: return coll::start_all_to_all(on, input, output);
      case operation::reduce_scatter: return coll::start_reduce_scatter(on, input, output, Op{});
      case operation::broadcast: return coll::start_broadcast(on, output, root);
      case operation::reduce: return coll::start_reduce(on, input, output, Op{}, root);
      case operation::gather: return coll::start_gather(on, input, output, root);
      case operation::scatter: return coll::start_scatter(on, input, output, root);
      case operation::barrier: break;
    }
    return {};
  }

 private:
  static std::span<T> as_elements(const coll::window_range<std::byte>& bytes) noexcept {
    const std::span all{bytes};
    return {reinterpret_cast<T*>(all.data()), all.size() / sizeof(T)};
  }
  static coll::window_range<T> typed(const coll::window_range<std::byte>& bytes) noexcept {
    return {as_elements(bytes), bytes.place()};
  }

  /// Small whole numbers: whatever reduces them does so exactly, in any order.
  static T value(const operation_shape& shape, std::size_t rank, std::size_t index) noexcept {
    std::uint64_t mixed = (index * 1024 + rank + 1) * 0x9e37'79b9'7f4a'7c15U;
    mixed ^= mixed >> 29U;
    mixed *= 0xbf58'476d'1ce4'e5b9U;
    const auto number = 1 + (mixed >> 32U) % (shape.reduces() ? 2 : 127);
    return static_cast<T>(static_cast<coll::accumulator_t<T>>(number));
  }

  static T expected(const operation_shape& shape, std::size_t row, std::size_t index) noexcept {
    const std::size_t own = shape.rank * row + index;
    switch (shape.which) {
      case operation::all_gather:
      case operation::gather: return value(shape, index / row, index % row);
      case operation::all_to_all: return value(shape, index / row, shape.rank * row + index % row);
      case operation::broadcast: return value(shape, shape.root, index);
      case operation::scatter: return value(shape, shape.root, own);
      default: return reduced(shape, shape.which == operation::reduce_scatter ? own : index);
    }
  }
  static T reduced(const operation_shape& shape, std::size_t index) noexcept {
    using sum_type = coll::accumulator_t<T>;
    auto total = static_cast<sum_type>(value(shape, 0, index));
    for (std::size_t rank = 1; rank < shape.ranks; ++rank)
      total = static_cast<sum_type>(Op{}(total, static_cast<sum_type>(value(shape, rank, index))));
    return static_cast<T>(total);
  }
};

template <class T>
std::unique_ptr<element_calls> make_for(std::string_view reduction) {
  if (reduction == "prod") return std::make_unique<elements_of<T, coll::product>>();
  if (reduction == "min") return std::make_unique<elements_of<T, coll::minimum>>();
  if (reduction == "max") return std::make_unique<elements_of<T, coll::maximum>>();
  return std::make_unique<elements_of<T, coll::sum>>();
}

}  // namespace

std::vector<std::string> element_names() { return {"f32", "f64", "bf16", "i32", "u8"}; }

std::unique_ptr<element_calls> make_elements(std::string_view type, std::string_view reduction) {
  if (type == "f64") return make_for<double>(reduction);
  if (type == "bf16") return make_for<peerbus::bf16>(reduction);
  if (type == "i32") return make_for<std::int32_t>(reduction);
  if (type == "u8") return make_for<std::uint8_t>(reduction);
  return make_for<float>(reduction);
}

}  // namespace coll_bench
