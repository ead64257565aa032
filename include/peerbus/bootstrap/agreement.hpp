// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
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
/// Cost: one allgather. A contribution has 4 bytes more than `own_part`.
/// Throws: `agreed_error` with the code of the objection of the lowest rank that has one; or as
/// `bootstrap::allgather`.
std::vector<bootstrap::contribution> gather_or_refuse(bootstrap& boot, std::string_view doing,
                                                      bootstrap::contribution own_part,
                                                      const std::optional<error>& objection,
                                                      deadline until);

/// Collective: returns if all ranks declared the same values under the same names.
/// Cost: one allgather.
/// Throws, on every rank: `agreed_error` mismatch that names the first difference and both ranks'
/// values; or the `objection` of the lowest rank that has one; or as `bootstrap::allgather`.
void agree(bootstrap& boot, std::string_view doing, std::span<const declared> values,
           deadline until, const std::optional<error>& objection = std::nullopt);

namespace detail {

/// Returns the exception in flight as the error by which a rank refuses a collective. `what` names
/// the object that the failed step was to make.
error objection_in_flight(std::string_view what);

/// Appends `count` bytes from `source`. If `count` is 0, `source` may be null. Takes any memory, so
/// that callers need no span of their type, which the compiler of every user would have to
/// instantiate.
void append_bytes(std::vector<std::byte>& out, const void* source, std::size_t count);

}  // namespace detail

/// Calls `step()`. If the step throws, returns the error by which this rank refuses the next
/// collective: an `error` as it is, `std::bad_alloc` as out_of_memory with "no memory for " and
/// `what`, any other `std::exception` as system with its text. If the step returns, the result is
/// empty.
///
/// The step is local. It may also be a collective of other ranks than those of the next collective,
/// because only those ranks have agreed on its errors.
template <class Step>
[[nodiscard]] std::optional<error> objection_of(std::string_view what, Step&& step) {
  try {
    std::forward<Step>(step)();
    return std::nullopt;
  } catch (const std::exception&) {
    return detail::objection_in_flight(what);
  }
}

/// Calls `step()`, a collective of the ranks of the next collective. If the step throws an
/// `agreed_error` or another `std::exception` that is no `error`, returns the error as
/// `objection_of` does.
/// Throws: any `error` of `step()` that is no `agreed_error`. A rank is then late or gone, and no
/// further collective can agree on the error.
template <class Step>
[[nodiscard]] std::optional<error> objection_of_collective(std::string_view what, Step&& step) {
  try {
    std::forward<Step>(step)();
    return std::nullopt;
  } catch (const agreed_error& refusal) {
    return refusal;
  } catch (const error&) {
    throw;
  } catch (const std::exception&) {
    return detail::objection_in_flight(what);
  }
}

/// Collective: calls `make()` on every rank. `make` is local, as the step of `objection_of`.
/// Returns this rank's result once all ranks have a result. If a rank has none, no rank keeps its
/// own. `what` names the result in errors.
/// Cost: one allgather.
/// Throws, on all ranks: `agreed_error` with the objection of the lowest rank that has one; or as
/// `bootstrap::allgather`.
template <class Make>
[[nodiscard]] auto on_all_ranks(bootstrap& boot, std::string_view what, deadline until,
                                Make&& make) {
  std::optional<std::invoke_result_t<Make>> made;
  const auto step = [&] { made.emplace(std::forward<Make>(make)()); };
  agree(boot, what, {}, until, objection_of(what, step));
  return std::move(*made);
}

/// Calls `make()` as `on_all_ranks` does, for a `make()` that is itself a collective of the ranks
/// of `boot`. If only one rank fails after that collective, for example because memory runs out,
/// all ranks learn of the failure.
/// Throws, on all ranks: as `on_all_ranks`.
/// Throws, on this rank: as `objection_of_collective`.
template <class Make>
[[nodiscard]] auto collective_on_all_ranks(bootstrap& boot, std::string_view what, deadline until,
                                           Make&& make) {
  std::optional<std::invoke_result_t<Make>> made;
  const auto step = [&] { made.emplace(std::forward<Make>(make)()); };
  agree(boot, what, {}, until, objection_of_collective(what, step));
  return std::move(*made);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/agreement.ipp>  // IWYU pragma: keep
#include <peerbus/bootstrap/bootstrap.ipp>  // IWYU pragma: keep
#endif
