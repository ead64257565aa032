// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep {

/// The element type of a tensor, with the names that torch uses.
enum class dtype : std::uint8_t {
  boolean,       ///< torch.bool, C++ `bool`
  int8,          ///< C++ `std::int8_t`
  int32,         ///< C++ `std::int32_t`
  int64,         ///< C++ `std::int64_t`
  float32,       ///< C++ `float`
  bfloat16,      ///< `peerbus::bf16`
  float8_e4m3fn  ///< `peerbus::fp8_e4m3`
};

/// Returns torch's name of the type, such as "bool" for `boolean`.
constexpr std::string_view to_string(dtype type) noexcept {
  constexpr std::array<std::string_view, 7> names{"bool",    "int8",     "int32",        "int64",
                                                  "float32", "bfloat16", "float8_e4m3fn"};
  const auto index = static_cast<std::size_t>(type);
  return index < names.size() ? names[index] : "unknown";
}

/// Returns the size of one element in bytes.
constexpr std::size_t bytes_of(dtype type) noexcept {
  constexpr std::array<std::size_t, 7> bytes{1, 1, 4, 8, 4, 2, 1};
  return bytes[static_cast<std::size_t>(type)];
}

namespace detail {
template <class T>
struct dtype_named;  // Not defined: there is no dtype for other element types.
template <>
struct dtype_named<bool> {
  static constexpr dtype value = dtype::boolean;
};
template <>
struct dtype_named<std::int8_t> {
  static constexpr dtype value = dtype::int8;
};
template <>
struct dtype_named<std::int32_t> {
  static constexpr dtype value = dtype::int32;
};
template <>
struct dtype_named<std::int64_t> {
  static constexpr dtype value = dtype::int64;
};
template <>
struct dtype_named<float> {
  static constexpr dtype value = dtype::float32;
};
template <>
struct dtype_named<bf16> {
  static constexpr dtype value = dtype::bfloat16;
};
template <>
struct dtype_named<fp8_e4m3> {
  static constexpr dtype value = dtype::float8_e4m3fn;
};
}  // namespace detail

/// The `dtype` of elements of type `T`, which is one of the seven types, const or not. Other types
/// do not compile.
template <class T>
inline constexpr dtype dtype_of = detail::dtype_named<std::remove_const_t<T>>::value;

/// A read-only view of an array of up to three dimensions in memory of the caller or of a buffer:
/// element type, sizes, and strides in elements. Without dimensions it stands for Python's None.
/// Cheap to copy. `tensor` is the view of memory that may be written.
class const_tensor {
 public:
  /// The largest number of dimensions.
  static constexpr std::size_t most_dims = 3;
  /// An array with one number for each dimension that a tensor may have.
  using extents = std::array<std::size_t, most_dims>;

  constexpr const_tensor() noexcept = default;

  /// Makes a view of elements that lie row by row, without gaps. The memory of `values` must
  /// outlive the view.
  /// Throws: `error` invalid_argument for more than three dimensions, or unless `values` has as
  /// many elements as the product of `sizes`.
  template <class T>
  const_tensor(std::span<const T> values, std::initializer_list<std::size_t> sizes)
      : const_tensor{values.data(), dtype_of<T>, sizes} {
    if (values.size() != elements())
      throw error{errc::invalid_argument,
                  peerbus::detail::concat("tensor ", describe(), " was given ", values.size(),
                                          " elements, expected ", elements())};
  }
  /// Makes a view with the given strides in elements. Without strides, the elements lie row by row,
  /// without gaps. `data` must outlive the view.
  /// Throws: `error` invalid_argument for more than three dimensions, or if the number of strides
  /// is neither 0 nor the number of sizes.
  const_tensor(const void* data, dtype type, std::initializer_list<std::size_t> sizes,
               std::initializer_list<std::size_t> strides = {})
      : data_{data}, type_{type}, dims_{sizes.size()} {
    if (dims_ > most_dims || (strides.size() != 0 && strides.size() != dims_))
      throw error{errc::invalid_argument,
                  peerbus::detail::concat("tensor with ", dims_, " sizes and ", strides.size(),
                                          " strides, expected at most ", most_dims,
                                          " and as many strides as sizes, or none")};
    std::size_t i = 0;
    for (const std::size_t size : sizes) sizes_[i++] = size;
    i = 0;
    for (const std::size_t stride : strides) strides_[i++] = stride;
    if (strides.size() == 0)
      for (std::size_t d = dims_, next = 1; d-- > 0; next *= sizes_[d]) strides_[d] = next;
  }

  /// Returns whether this is a tensor, even one without elements. False stands for Python's None.
  [[nodiscard]] explicit operator bool() const noexcept { return dims_ != 0; }
  /// Returns the element type. It has no meaning for None.
  [[nodiscard]] dtype type() const noexcept { return type_; }
  /// Returns the number of dimensions, 0 for None.
  [[nodiscard]] std::size_t dims() const noexcept { return dims_; }
  /// Returns the size of dimension `dim`, or 0 if `dim` is not below `dims()`. It must be below
  /// `most_dims`.
  [[nodiscard]] std::size_t size(std::size_t dim) const noexcept { return sizes_[dim]; }
  /// Returns the stride of a dimension, in elements.
  [[nodiscard]] std::size_t stride(std::size_t dim) const noexcept { return strides_[dim]; }
  /// Returns the product of the sizes, 0 for None.
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t all = dims_ == 0 ? 0 : 1;
    for (std::size_t d = 0; d < dims_; ++d) all *= sizes_[d];
    return all;
  }
  /// Returns the size of all elements in bytes, without gaps.
  [[nodiscard]] std::size_t bytes() const noexcept { return elements() * bytes_of(type_); }
  /// Returns the address of the first element, without its type.
  [[nodiscard]] const void* data() const noexcept { return data_; }
  /// Returns whether the elements lie row by row, without gaps.
  [[nodiscard]] bool contiguous() const noexcept {
    std::size_t next = 1;
    for (std::size_t d = dims_; d-- > 0; next *= sizes_[d])
      if (sizes_[d] > 1 && strides_[d] != next) return elements() == 0;
    return true;
  }

  /// Returns a pointer to the first element.
  /// Throws: `error` invalid_argument if the element type is not `T`.
  template <class T>
  [[nodiscard]] const T* as() const {
    require_type(dtype_of<T>);
    return static_cast<const T*>(data_);
  }
  /// Returns all elements of a contiguous tensor.
  /// Throws: `error` invalid_argument if the element type is not `T` or there are gaps.
  template <class T>
  [[nodiscard]] std::span<const T> values() const {
    require_contiguous();
    return {as<T>(), elements()};
  }
  /// Returns the element with the given indices, which are not checked.
  /// Throws: `error` invalid_argument if the element type is not `T`.
  template <class T>
  [[nodiscard]] const T& at(std::size_t i, std::size_t j = 0, std::size_t k = 0) const {
    return as<T>()[offset(i, j, k)];
  }

  /// Returns the tensor in words, such as "bfloat16 [128, 7168]", with strides if there are gaps;
  /// "none" for None. Allocates.
  [[nodiscard]] std::string describe() const {
    if (dims_ == 0) return "none";
    const auto list = [this](const extents& values) {
      std::string text = "[";
      for (std::size_t d = 0; d < dims_; ++d)
        text += peerbus::detail::concat(d == 0 ? "" : ", ", values[d]);
      return text + "]";
    };
    std::string text = peerbus::detail::concat(to_string(type_), " ", list(sizes_));
    if (!contiguous()) text += " with strides " + list(strides_);
    return text;
  }
  /// Appends `describe()`, for messages.
  friend void append_text(std::string& out, const const_tensor& given) { out += given.describe(); }

 protected:
  /// Returns the position of an element, in elements from the first.
  [[nodiscard]] std::size_t offset(std::size_t i, std::size_t j, std::size_t k) const noexcept {
    return i * strides_[0] + j * strides_[1] + k * strides_[2];
  }
  /// Throws `error` invalid_argument if there are gaps.
  void require_contiguous() const {
    if (!contiguous())
      throw error{errc::invalid_argument,
                  peerbus::detail::concat("tensor ", describe(),
                                          " read as one array, expected no "
                                          "gaps: read it element by element")};
  }
  /// Throws `error` invalid_argument if the element type is not `wanted`.
  void require_type(dtype wanted) const {
    if (type_ != wanted)
      throw error{errc::invalid_argument,
                  peerbus::detail::concat("tensor ", describe(), " read as ", to_string(wanted))};
  }

 private:
  const void* data_ = nullptr;
  dtype type_ = dtype::boolean;
  std::size_t dims_ = 0;
  extents sizes_{};
  extents strides_{};
};

/// A view, like `const_tensor`, of memory that may be written.
class tensor : public const_tensor {
 public:
  constexpr tensor() noexcept = default;
  /// Makes a view without gaps. Contract as the constructors of `const_tensor`.
  template <class T>
    requires(!std::is_const_v<T>)
  tensor(std::span<T> values, std::initializer_list<std::size_t> sizes)
      : const_tensor{std::span<const T>{values}, sizes}, data_{values.data()} {}
  /// Makes a view with the given strides in elements. Contract as the constructors of
  /// `const_tensor`.
  tensor(void* data, dtype type, std::initializer_list<std::size_t> sizes,
         std::initializer_list<std::size_t> strides = {})
      : const_tensor{data, type, sizes, strides}, data_{data} {}

  ///@{
  /// Returns the elements for reading and writing. Contract as the functions of `const_tensor` with
  /// the same names.
  [[nodiscard]] void* data() const noexcept { return data_; }
  template <class T>
  [[nodiscard]] T* as() const {
    require_type(dtype_of<T>);
    return static_cast<T*>(data_);
  }
  template <class T>
  [[nodiscard]] std::span<T> values() const {
    require_contiguous();
    return {as<T>(), elements()};
  }
  template <class T>
  [[nodiscard]] T& at(std::size_t i, std::size_t j = 0, std::size_t k = 0) const {
    return as<T>()[offset(i, j, k)];
  }
  ///@}

 private:
  void* data_ = nullptr;
};

/// Returns a contiguous view of `values`, a span, vector or array. The memory of the elements must
/// outlive the view; `values` itself need not.
/// Throws: `error` invalid_argument unless there are as many elements as the product of `sizes`.
template <std::ranges::borrowed_range Range>
[[nodiscard]] auto view(Range&& values, std::initializer_list<std::size_t> sizes) {
  const std::span all{values};
  using element = typename decltype(all)::element_type;
  if constexpr (std::is_const_v<element>)
    return const_tensor{std::span<element>{all}, sizes};
  else
    return tensor{std::span<element>{all}, sizes};
}

}  // namespace peerbus::deep_ep
