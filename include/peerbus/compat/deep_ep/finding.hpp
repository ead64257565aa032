// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep {

/// The values that a platform accepts for an argument or a limit.
class expectation {
 public:
  /// Makes an expectation that accepts `least` and every larger number.
  static constexpr expectation at_least(std::uint64_t least) noexcept {
    return {form::at_least, least, 0, {}, {}};
  }
  /// Makes an expectation that accepts `most` and every smaller number.
  static constexpr expectation at_most(std::uint64_t most) noexcept {
    return {form::at_most, 0, most, {}, {}};
  }
  /// Makes an expectation that accepts `least`, `most` and the numbers between them.
  static constexpr expectation between(std::uint64_t least, std::uint64_t most) noexcept {
    return {form::between, least, most, {}, {}};
  }
  /// Makes an expectation that accepts multiples of `unit`. A `unit` of 0 accepts every number.
  static constexpr expectation multiple_of(std::uint64_t unit) noexcept {
    return {form::multiple_of, unit, 0, {}, {}};
  }
  /// Makes an expectation that accepts `value` alone.
  static constexpr expectation exactly(std::uint64_t value) noexcept {
    return {form::exactly, value, value, {}, {}};
  }
  /// Makes an expectation that accepts the listed numbers. `values` must outlive the expectation.
  static constexpr expectation one_of(std::span<const std::uint64_t> values) noexcept {
    return {form::one_of, 0, 0, values, {}};
  }
  /// Makes an expectation for arguments that are not numbers. Every number fails it. `words` must
  /// outlive the expectation.
  static constexpr expectation text(std::string_view words) noexcept {
    return {form::text, 0, 0, {}, words};
  }

  /// Returns whether the platform accepts the number.
  [[nodiscard]] constexpr bool accepts(std::uint64_t value) const noexcept {
    switch (form_) {
      case form::at_least: return value >= low_;
      case form::at_most: return value <= high_;
      case form::between:
      case form::exactly: return value >= low_ && value <= high_;
      case form::multiple_of: return low_ == 0 || value % low_ == 0;
      case form::one_of: return std::find(list_.begin(), list_.end(), value) != list_.end();
      case form::text: return false;
    }
    return false;
  }

  /// Appends the expectation in words, such as "a multiple of 16".
  friend void append_text(std::string& out, const expectation& e) {
    using peerbus::detail::concat;
    switch (e.form_) {
      case form::at_least: out += concat("at least ", e.low_); return;
      case form::at_most: out += concat("at most ", e.high_); return;
      case form::between: out += concat(e.low_, " to ", e.high_); return;
      case form::multiple_of: out += concat("a multiple of ", e.low_); return;
      case form::exactly: out += concat(e.low_); return;
      case form::text: out += e.words_; return;
      case form::one_of: break;
    }
    for (std::size_t i = 0; i < e.list_.size(); ++i)
      out += concat(i == 0 ? "" : i + 1 == e.list_.size() ? " or " : ", ", e.list_[i]);
  }

 private:
  enum class form : std::uint8_t { at_least, at_most, between, multiple_of, exactly, one_of, text };

  constexpr expectation(form which, std::uint64_t low, std::uint64_t high,
                        std::span<const std::uint64_t> list, std::string_view words) noexcept
      : form_{which}, low_{low}, high_{high}, list_{list}, words_{words} {}

  form form_;
  std::uint64_t low_;
  std::uint64_t high_;
  std::span<const std::uint64_t> list_;
  std::string_view words_;
};

/// The effect of a finding on a call.
enum class finding_kind : std::uint8_t {
  refused,    ///< the call fails, or gives wrong results
  no_effect,  ///< the argument is accepted and ignored
  differs     ///< the call works, but its results look different
};

/// Returns the name of the enumerator, or "unknown".
constexpr std::string_view to_string(finding_kind kind) noexcept {
  switch (kind) {
    case finding_kind::refused: return "refused";
    case finding_kind::no_effect: return "no_effect";
    case finding_kind::differs: return "differs";
  }
  return "unknown";
}

/// One thing about a call that a platform does not do as asked. All its texts are valid forever.
struct finding {
  finding_kind kind;            ///< the effect on the call
  std::string_view what;        ///< name of the argument or of the limit
  std::uint64_t given;          ///< value of the argument, unless `given_text` has it
  std::string_view given_text;  ///< value of the argument if it is not a number, otherwise empty
  expectation expected;         ///< the values that the platform accepts; no meaning for `differs`
  std::string_view advice;      ///< the change to make; for `differs`, the fact to know
  std::uint64_t advised;        ///< a number that ends the advice, unless 0
};

/// Returns the value that was given, as text.
inline std::string given_of(const finding& f) {
  return f.given_text.empty() ? std::to_string(f.given) : std::string{f.given_text};
}
/// Returns the advice as text: the change to make.
inline std::string advice_of(const finding& f) {
  return f.advised == 0 ? std::string{f.advice} : peerbus::detail::concat(f.advice, f.advised);
}

/// Returns the finding as text: the limit, the value, and the change to make.
inline std::string describe(const finding& f) {
  using peerbus::detail::concat;
  if (f.kind == finding_kind::differs) return concat(f.what, ": ", advice_of(f));
  return concat(f.what, " is ", given_of(f),
                f.kind == finding_kind::no_effect ? ", which has no effect there" : "",
                ", expected ", f.expected, ": ", advice_of(f));
}

}  // namespace peerbus::deep_ep
