// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// An `error` that all ranks throw from the same collective: they are still in step, and the next
/// collective works.
class agreed_error : public error {
 public:
  using error::error;
  explicit agreed_error(const error& cause) : error{cause.code(), cause.text()} {}
};

/// One value that all ranks must have alike, with the name that an error calls it by.
struct declared {
  std::string_view name;
  std::string value;

  declared(std::string_view of, std::uint64_t number);
  declared(std::string_view of, std::string_view text);
};

/// Collective: an allgather that any rank may refuse. A rank whose part failed passes its error as
/// `objection`; then every rank throws, naming that rank and its reason, and nobody is left
/// waiting. Throws: `agreed_error` with the objector's own code (lowest rank first), or as
/// `bootstrap::allgather`.
std::vector<bootstrap::contribution> gather_or_refuse(bootstrap& boot, std::string_view doing,
                                                      bootstrap::contribution mine,
                                                      const std::optional<error>& objection,
                                                      deadline until);

/// Collective: returns if all ranks declared the same values under the same names.
/// Throws, on every rank: `agreed_error` mismatch that names the first difference and who has what;
/// or the `objection` of the lowest rank that has one; or as `bootstrap::allgather`.
void agree(bootstrap& boot, std::string_view doing, std::span<const declared> values,
           deadline until, const std::optional<error>& objection = std::nullopt);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/impl/agreement.hpp>  // IWYU pragma: keep
#include <peerbus/bootstrap/impl/bootstrap.hpp>  // IWYU pragma: keep
#endif
