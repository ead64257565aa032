// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

namespace detail {

/// An argument of `concat`: text, a number, or an object whose type has a friend
/// `append_text(std::string&, const T&)`. It refers to the argument, which must outlive it.
struct text_part {
  enum class kind { text, natural, integer, real, object };

  kind what;
  union {
    std::string_view text;
    unsigned long long natural;
    long long integer;
    double real;
    const void* object;
  };
  void (*append)(std::string& out, const void* object) = nullptr;

  explicit(false) text_part(std::string_view value) noexcept : what{kind::text}, text{value} {}
  explicit(false) text_part(const char* value) noexcept : what{kind::text}, text{value} {}
  explicit(false) text_part(const std::string& value) noexcept : what{kind::text}, text{value} {}
  // These are overloads because a template would take longer to compile for every caller.
  explicit(false) text_part(unsigned value) noexcept : what{kind::natural}, natural{value} {}
  explicit(false) text_part(unsigned long value) noexcept : what{kind::natural}, natural{value} {}
  explicit(false) text_part(unsigned long long value) noexcept
      : what{kind::natural}, natural{value} {}
  explicit(false) text_part(int value) noexcept : what{kind::integer}, integer{value} {}
  explicit(false) text_part(long value) noexcept : what{kind::integer}, integer{value} {}
  explicit(false) text_part(long long value) noexcept : what{kind::integer}, integer{value} {}
  explicit(false) text_part(double value) noexcept : what{kind::real}, real{value} {}
  template <class T>
    requires std::is_class_v<T>
  explicit(false) text_part(const T& value) noexcept
      : what{kind::object}, object{&value}, append{[](std::string& out, const void* erased) {
          append_text(out, *static_cast<const T*>(erased));
        }} {}
};

}  // namespace detail

/// Joins `parts` into one string, such as the text of an `error`. A part is text, a number, or an
/// object whose type has a friend `append_text(std::string&, const T&)`. It allocates, so that only
/// the control path may call it.
std::string concat(std::initializer_list<detail::text_part> parts);

/// Joins its arguments into one string. Contract as the overload for a list, which is quicker to
/// compile, because this function is compiled again for each list of types.
template <class... Parts>
std::string concat(const Parts&... parts) {
  return concat({parts...});
}

namespace detail {
using peerbus::concat;
}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/text.ipp>  // IWYU pragma: keep
#endif
