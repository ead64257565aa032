// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep::detail {

/// An operation of an exchange that a rank has begun for one of its calls.
struct started_operation {
  enum class kind : std::uint64_t { none, dispatch, combine, reopen };

  std::uint64_t call = 0;     ///< number of the call
  std::uint64_t channel = 0;  ///< `keyed_channel::id`
  std::uint64_t number = 0;   ///< number of the dispatch in its exchange
  /// The largest number of tokens of a rank, if each call of the channel states its own.
  std::uint64_t bound = 0;
  kind what = kind::none;
  std::uint64_t plan = 0;  ///< the number of the call that made the handle of a combine
  friend bool operator==(const started_operation&, const started_operation&) = default;
};

/// Returns the error of a call for which rank 0 has begun `first`, and `rank` has begun `begun`
/// with an equal key. Returns nothing if both dispatch, or both combine the same dispatch.
inline std::optional<error> difference(const call_names& names, const started_operation& first,
                                       const started_operation& begun, rank_id rank) {
  using kind = started_operation::kind;
  const auto combines_by = [](const started_operation& operation) {
    return operation.what == kind::combine || operation.what == kind::reopen;
  };
  const bool combines = combines_by(begun);
  if (combines != combines_by(first))
    return error{errc::mismatch,
                 peerbus::detail::concat(combines ? rank : rank_id{0}, " combines but ",
                                         combines ? rank_id{0} : rank,
                                         " dispatches, expected the same call on all ranks")};
  if (!combines || (begun.channel == first.channel && begun.number == first.number))
    return std::nullopt;
  const auto plan_of = [&names](const started_operation& operation) {
    return peerbus::detail::concat("of call ", operation.plan, " of ", names.owner);
  };
  return error{errc::mismatch,
               peerbus::detail::concat(names.combine, ": ", names.handle, " is ", plan_of(first),
                                       " on ", rank_id{0}, " but ", plan_of(begun), " on ", rank,
                                       ", expected the same on all ranks")};
}

/// A message from a rank to all others about a call on which ranks may differ. Ranks write it into
/// each other's memory.
struct call_statement {
  static constexpr std::size_t remembered_calls = 8;

  std::uint64_t call = 0;        ///< number of the call
  errc objection = errc::ok;     ///< the code of this rank's refusal; ok: it does not refuse
  std::uint32_t text_bytes = 0;  ///< size of the text of the refusal
  call_key key{};                ///< key of the call, if the rank has not begun it
  /// Tokens of a rank that need memory, if the rank has not begun the call.
  std::uint64_t room = 0;
  std::array<started_operation, remembered_calls> started{};  ///< the latest calls, by number
  std::array<char, 360> text{};

  void refuse(const error& why) noexcept {
    objection = why.code();
    text_bytes = static_cast<std::uint32_t>(std::min(why.text().size(), text.size()));
    std::memcpy(text.data(), why.text().data(), text_bytes);
  }
  [[nodiscard]] std::string_view refusal() const noexcept {
    return {text.data(), std::min<std::size_t>(text_bytes, text.size())};
  }
  /// Returns the operation that the rank has begun for `of_call`, or one of kind `none`.
  [[nodiscard]] started_operation started_for(std::uint64_t of_call) const noexcept {
    const started_operation& found = started[of_call % remembered_calls];
    return found.call == of_call ? found : started_operation{};
  }
  /// Returns whether the statement has the operation that the rank has begun for `of_call`.
  [[nodiscard]] bool remembers(std::uint64_t of_call) const noexcept {
    return started_for(of_call).what != started_operation::kind::none;
  }
};
static_assert(std::is_trivially_copyable_v<call_statement>);

}  // namespace peerbus::deep_ep::detail
