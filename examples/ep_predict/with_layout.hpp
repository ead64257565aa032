// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <peerbus/moe/layout.hpp>

namespace ep_predict {

/// Returns what `f` returns for the layout `name`, one of `layouts()`.
template <class F>
decltype(auto) with_layout(std::string_view name, F&& f) {
  namespace moe = peerbus::moe;
  if (name == "compact") return f(moe::compact{});
  if (name == "padded") return f(moe::padded{});
  if (name == "rank_major") return f(moe::rank_major{});
  if (name == "slots") return f(moe::slots{});
  if (name == "automatic") return f(moe::automatic{});
  return f(moe::expert_slots{});
}

}  // namespace ep_predict
