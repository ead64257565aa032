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

/// How arguments are refused: which one, what was expected, what was given.
namespace peerbus::deep_ep::detail {

using peerbus::detail::concat;

/// In a shape: any number.
inline constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

/// What a tensor must be like.
struct tensor_form {
  std::initializer_list<dtype> types;
  std::initializer_list<std::size_t> sizes;
  bool contiguous = true;  ///< otherwise the last dimension only
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

/// One argument of one call. `parts` become text only if it is refused, as that allocates.
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
  /// For what this library has no way to honour.
  void refuse_if_given(bool given, std::string_view why) const {
    if (given) refuse(errc::unsupported, "was given; ", why);
  }
};

/// Throws: `error` invalid_argument unless `given` has that form, and memory where it has elements.
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

/// The same for what may be None.
inline void require_form_if_given(const argument& what, const const_tensor& given,
                                  const tensor_form& form) {
  if (given) require_form(what, given, form);
}

}  // namespace peerbus::deep_ep::detail
