// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

/// The refusal of arguments: each error names the argument, the expected and the given value.
namespace peerbus::deep_ep::detail {

using peerbus::detail::concat;

/// The size in a `tensor_form` that stands for any size.
inline constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

/// The element types and sizes that a tensor must have.
struct tensor_form {
  std::initializer_list<dtype> types;
  std::initializer_list<std::size_t> sizes;
  bool contiguous = true;  ///< true: all dimensions must be contiguous; false: only the last
};

inline void append_text(std::string& out, const tensor_form& form) {
  bool first = true;
  for (const dtype type : form.types) {
    out += concat(first ? "" : " or ", to_string(type));
    first = false;
  }
  out += " [";
  first = true;
  for (const std::size_t size : form.sizes) {
    if (!first) out += ", ";
    out += size == any ? "any" : concat(size);
    first = false;
  }
  out += form.contiguous ? "], contiguous" : "], the last dimension contiguous";
}

/// The name of an argument and of its call, for checks. `parts` become text only if the argument is
/// refused, because text allocates.
struct argument {
  std::string_view call;
  std::string_view name;

  template <class... Parts>
  [[noreturn]] void refuse(errc code, const Parts&... parts) const {
    throw error{code, concat(call, ": ", name, " ", parts...)};
  }
  template <class... Parts>
  void require(bool fits, const Parts&... parts) const {
    if (!fits) refuse(errc::invalid_argument, parts...);
  }
  /// Throws `error` unsupported if `given`: this library cannot honour the argument.
  void refuse_if_given(bool given, std::string_view why) const {
    if (given) refuse(errc::unsupported, "was given; ", why);
  }
};

/// Requires that `given` has the form, and aligned memory if it has elements.
/// Throws: `error` invalid_argument.
inline void require_form(const argument& what, const const_tensor& given, const tensor_form& form) {
  bool fits = given.dims() == form.sizes.size();
  std::size_t d = 0;
  for (const std::size_t size : form.sizes) {
    fits = fits && (size == any || given.size(d) == size);
    ++d;
  }
  bool typed = false;
  for (const dtype type : form.types) typed = typed || given.type() == type;
  fits = fits && typed;
  if (fits && form.contiguous) fits = given.contiguous();
  if (fits && !form.contiguous && given.elements() != 0)
    fits = given.size(d - 1) <= 1 || given.stride(d - 1) == 1;
  what.require(fits, "is ", given, ", expected ", form);
  if (given.elements() == 0) return;
  what.require(given.data() != nullptr, "is ", given, " at null");
  const auto address = reinterpret_cast<std::uintptr_t>(given.data());
  what.require(address % bytes_of(given.type()) == 0, "is at address ", address,
               ", expected a multiple of ", bytes_of(given.type()), " for ",
               to_string(given.type()));
}

/// Requires that `given` has the form, unless it is none. Contract as `require_form`.
inline void require_form_if_given(const argument& what, const const_tensor& given,
                                  const tensor_form& form) {
  if (given) require_form(what, given, form);
}

}  // namespace peerbus::deep_ep::detail
