// SPDX-License-Identifier: MIT
// Each line that ends in `// reported` lacks a docstring, refers to what is not there or has a tag
// in its middle. The test docs.api_sample requires that these lines are reported, and no others.
#pragma once

#include <concepts>

/// Documented.
namespace sample {

struct bare {};                // reported
using bare_alias = int;        // reported
enum class bare_enumeration {  // reported
  /// Documented.
  value
};
void bare_function();  // reported
template <class T>
concept bare_concept = std::integral<T>;  // reported
inline constexpr int bare_constant = 1;   // reported

/// Refers to #nothing_here.  // reported
void broken_reference();

/// Says something. Cost: nothing.  // reported
/// Throws, on all ranks: nothing. Throws, on this rank: nothing.  // reported
/// Throws: nothing. This line costs nothing.
void glued_tags();

/// Documented.
enum class one_of_two {  // reported
  first,                 ///< Documented.
  second
};

/// Documented.
class type {
 public:
  explicit type(int value);  // reported
  type(const type&) = delete;
  type(type&&) = default;
  ~type() = default;

  void bare_member();  // reported
  template <class T>
  void bare_template(T value);      // reported
  int operator()(int value) const;  // reported
  int operator[](int index) const;  // reported
  explicit operator bool() const;   // reported
  type& operator++();
  friend bool operator==(const type&, const type&) = default;
  virtual int overridden() const;  // reported

  ///@{
  /// Documented, both.
  void one_of_a_group();
  void other_of_a_group();
  ///@}

  int bare_field = 0;  // reported
  int field = 0;       ///< Documented.

 protected:
  int bare_protected = 0;  // reported

 private:
  int hidden_ = 0;
};

/// Documented.
class derived : public type {
 public:
  int overridden() const override;
};

namespace detail {
struct internal {};
}  // namespace detail

}  // namespace sample

namespace bare_namespace {  // reported
struct bare_too {};         // reported
}  // namespace bare_namespace
