// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// An `error` that all ranks throw from the same collective. The ranks are still in step, so the
/// next collective works.
class agreed_error : public error {
 public:
  using error::error;
  /// Makes an error with the code and text of `cause`, after all ranks have agreed to throw it.
  explicit agreed_error(const error& cause) : error{cause.code(), cause.text()} {}
};

/// A value that must be equal on all ranks, with the name that errors use for it.
struct declared {
  std::string_view name;  ///< the name of the value in errors
  std::string value;      ///< the value as text, in which form ranks compare it

  ///@{
  /// Declares a number or a text. The caller keeps `value_name` valid.
  declared(std::string_view value_name, std::uint64_t number);
  declared(std::string_view value_name, std::string_view text);
  ///@}
};

/// Collective: gathers as `bootstrap::allgather`, unless a rank refuses. A rank that cannot take
/// part passes its error as `objection`. All ranks then throw an error that names this rank and its
/// reason, so that no rank waits in vain.
/// Cost: one allgather. A contribution has 4 bytes more than `mine`.
/// Throws: `agreed_error` with the code of the objection (of the lowest rank that has one), or as
/// `bootstrap::allgather`.
std::vector<bootstrap::contribution> gather_or_refuse(bootstrap& boot, std::string_view doing,
                                                      bootstrap::contribution mine,
                                                      const std::optional<error>& objection,
                                                      deadline until);

/// Collective: returns if all ranks declared the same values under the same names.
/// Cost: one allgather.
/// Throws, on every rank: `agreed_error` mismatch that names the first difference and both ranks'
/// values; or the `objection` of the lowest rank that has one; or as `bootstrap::allgather`.
void agree(bootstrap& boot, std::string_view doing, std::span<const declared> values,
           deadline until, const std::optional<error>& objection = std::nullopt);

namespace detail {

/// Appends `count` bytes from `source`, which may be null if there are none. Takes any memory, so
/// that callers need no span of their type, which every user's compiler would have to instantiate.
void append_bytes(std::vector<std::byte>& out, const void* source, std::size_t count);

/// Returns the result of `make()` once `agree_with(objection)` has returned, which is to throw on
/// all ranks if any rank has an objection. This rank has one if `make()` threw `std::bad_alloc`.
/// `what` names the result in its text.
template <class Make, class AgreeWith>
[[nodiscard]] auto make_and_agree(std::string_view what, Make&& make, AgreeWith&& agree_with) {
  std::optional<std::invoke_result_t<Make>> made;
  std::optional<error> objection;
  try {
    made.emplace(std::forward<Make>(make)());
  } catch (const std::bad_alloc&) {
    objection = error{errc::out_of_memory, std::string{"no memory for "} + std::string{what}};
  }
  std::forward<AgreeWith>(agree_with)(objection);
  return std::move(*made);
}

}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/agreement.ipp>  // IWYU pragma: keep
#include <peerbus/bootstrap/bootstrap.ipp>  // IWYU pragma: keep
#endif
