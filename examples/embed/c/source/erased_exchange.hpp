// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>

#include "objects.hpp"

namespace peerbus::c_library {

/// The calls of an exchange, for any codec and layout.
class erased_exchange {
 public:
  erased_exchange() = default;
  erased_exchange(const erased_exchange&) = delete;
  erased_exchange& operator=(const erased_exchange&) = delete;
  virtual ~erased_exchange() = default;

  ///@{
  /// Does what the function of C's interface with that name says.
  /// Throws: `error`.
  virtual peerbus_received dispatch(const peerbus_dispatch_args& args) = 0;
  virtual std::uint64_t dispatch_send(const peerbus_dispatch_args& args) = 0;
  virtual peerbus_received dispatch_recv(std::uint64_t ticket, std::int64_t* waited,
                                         std::optional<deadline> until) = 0;
  virtual void combine(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual void combine_send(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual void combine_recv(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual void* output(std::uint64_t ticket, std::uint64_t row) = 0;
  virtual void* output_attachment(std::uint64_t ticket, std::uint64_t row) = 0;
  virtual void decode(std::uint64_t ticket, std::uint64_t row, float* values) = 0;
  virtual std::span<const std::byte> note(std::uint64_t ticket, rank_id source) = 0;
  virtual const void* returned_attachment(std::uint64_t ticket, std::size_t token, std::size_t copy,
                                          rank_id rank) = 0;
  ///@}
  /// Returns the bytes of the window at each rank.
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
};

/// Requires that an array may be read as values of `alignment` bytes. Throws: `error`.
void require_aligned(const void* values, std::size_t alignment, std::string_view name);
/// Requires that `count` rows of `columns` values are no more than memory can have. Throws:
/// `error`.
void require_countable(std::uint64_t count, std::size_t columns, std::string_view name);

/// Returns `call()`. If that threw because `problem` made it refuse, throws `problem`.
template <class Call>
auto explained(const std::optional<error>& problem, Call&& call) {
  try {
    return call();
  } catch (const error& thrown) {
    if (problem && thrown.code() == errc::invalid_argument) throw error{*problem};
    throw;
  }
}

/// The arguments for which an exchange is made.
struct exchange_request {
  communicator<bus>& comm;
  moe::exchange_config config;
  std::int32_t layout;
  std::size_t alignment;
  bool zero_gaps;
  deadline until;
};

/// Collective: makes an exchange with one codec and the layout of `request`. Throws: `error`, also
/// if the layout does not exist.
using make_exchange_function =
    std::unique_ptr<erased_exchange> (*)(const exchange_request& request);

// One for each codec, each in a source of its own, because the exchanges of a codec take seconds to
// compile.
extern const make_exchange_function make_bf16;
extern const make_exchange_function make_int8_per_token;
extern const make_exchange_function make_fp8_f32;
extern const make_exchange_function make_fp8_rounded;
extern const make_exchange_function make_fp8_ue8m0;
extern const make_exchange_function make_fp8_as_given;
extern const make_exchange_function make_nothing;

}  // namespace peerbus::c_library
