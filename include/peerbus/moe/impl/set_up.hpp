// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::moe::detail {

PEERBUS_CONTROL_PATH void agree_on(rank_group& group, const exchange_config& config,
                                   const codec_facts& codec, const layout_facts& layout,
                                   std::size_t alignment, deadline until) {
  std::vector<declared> values{
      {"codec", codec.name},           {"layout", layout.name},
      {"experts", config.experts},     {"hidden", config.hidden},
      {"top_k", config.top_k},         {"max_tokens", config.max_tokens},
      {"in_flight", config.in_flight}, {"outputs", static_cast<std::uint64_t>(config.outputs)}};
  for (const std::size_t bytes : config.attachments) values.push_back({"attachment", bytes});
  // Of every layout, so that ranks which differ in theirs declare as many values.
  values.push_back({"alignment", alignment});
  group.agree("exchange", values, until, objection_to(config, group.size(), codec, layout));
}

}  // namespace peerbus::moe::detail
