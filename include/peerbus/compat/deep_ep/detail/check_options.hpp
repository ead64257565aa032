// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/moe/config.hpp>

/// The checks of options of buffers, and of the same options of their calls. Each throws `error`
/// invalid_argument for an option out of range.
namespace peerbus::deep_ep::detail {

inline void require_in_flight(std::string_view buffer, std::size_t given) {
  const argument in_flight{buffer, "in_flight"};
  in_flight.require(given >= 1 && given <= moe::max_in_flight, "is ", given, ", expected 1 to ",
                    moe::max_in_flight);
}
inline void require_tokens(std::string_view buffer, std::size_t given) {
  const argument tokens{buffer, "num_max_tokens_per_rank"};
  tokens.require(given != 0, "is 0, expected at least 1");
}

/// Requires that `bound`, the largest number of tokens of a rank that `call` states, is 1 to
/// `moe::max_rows` and not less than `tokens`.
/// Throws: `error` invalid_argument.
inline void require_bound(std::string_view call, std::size_t bound, std::size_t tokens) {
  const argument most{call, "num_max_tokens_per_rank"};
  most.require(bound >= 1 && bound <= moe::max_rows, "is ", bound, ", expected 1 to ",
               moe::max_rows);
  const argument x{call, "x"};
  x.require(tokens <= bound, "has ", tokens, " tokens, expected at most num_max_tokens_per_rank, ",
            bound);
}

/// Returns the options after checking them.
/// Throws: `error` invalid_argument for options that are out of range or contradict each other.
inline buffer_options checked(const buffer_options& options) {
  require_tokens("buffer", options.num_max_tokens_per_rank);
  require_in_flight("buffer", options.in_flight);
  const argument about{"buffer", "target_is or target_ranks_per_node"};
  about.require(
      options.target != profile::unrestricted ||
          (options.target_is == target_environment{} && options.target_ranks_per_node == 0),
      "was given without a target, expected both or neither");
  argument{"buffer", "same_bits"}.require(
      !options.same_bits || options.relay != moe::relay::always,
      "was given with relay::always, which adds up the sums of groups; expected another relay");
  return options;
}

}  // namespace peerbus::deep_ep::detail
