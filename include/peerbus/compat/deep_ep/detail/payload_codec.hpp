// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <utility>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/nothing.hpp>
#include <peerbus/compat/deep_ep/detail/payload.hpp>

namespace peerbus::deep_ep::detail {

/// Calls `visit(std::type_identity<codec>{})` with the codec of rows of `contents`, and returns its
/// result.
template <class Visit>
decltype(auto) with_codec_of(payload contents, Visit&& visit) {
  switch (contents) {
    case payload::bf16: return std::forward<Visit>(visit)(std::type_identity<codec::bf16>{});
    case payload::bytes:
      return std::forward<Visit>(visit)(std::type_identity<codec::fp8_e4m3_as_given>{});
    case payload::nothing: break;
  }
  return std::forward<Visit>(visit)(std::type_identity<codec::nothing>{});
}

}  // namespace peerbus::deep_ep::detail
