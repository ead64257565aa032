// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/direct_rows.hpp>
#include <peerbus/moe/detail/made_together.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/detail/staged_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// How an exchange moves its rows over `Transport`.
template <transport Transport, token_codec Codec>
struct rows_over {
  using type = staged_rows<Transport, Codec>;
};
template <direct_transport Transport, token_codec Codec>
struct rows_over<Transport, Codec> {
  using type = direct_rows<Transport, Codec>;
};

/// Compares the configuration with the other ranks'. Returns it.
/// Throws, on all ranks: what the constructor of `exchange` says.
template <token_codec Codec, transport Transport, row_layout Layout>
exchange_config agreed_config(communicator<Transport>& comm, const exchange_config& config,
                              const Layout& layout, deadline until) {
  std::vector<declared> values{
      {"codec", Codec::name},          {"layout", Layout::name},
      {"experts", config.experts},     {"hidden", config.hidden},
      {"top_k", config.top_k},         {"max_tokens", config.max_tokens},
      {"in_flight", config.in_flight}, {"outputs", static_cast<std::uint64_t>(config.outputs)}};
  for (const std::size_t bytes : config.attachments) values.push_back({"attachment", bytes});
  // Of every layout, so that ranks which differ in theirs declare as many values.
  values.push_back({"alignment", layout.geometry(config, comm.size()).alignment});
  comm.agree("exchange", values, until, objection_to<Codec>(config, comm.size(), layout));
  return config;
}

/// What this rank keeps of its batches. Made after the window, which refuses sizes beyond the
/// machine at once; here their pages would be touched first.
/// Throws, on all ranks: `error` out_of_memory, or as `agree`.
template <class Batches, transport Transport>
Batches made_batches(communicator<Transport>& comm, const exchange_config& config,
                     const block_geometry& geometry, road way, deadline until) {
  return made_together(comm, "the plans of an exchange's batches", until,
                       [&] { return Batches{config, geometry, comm.rank(), comm.size(), way}; });
}

}  // namespace peerbus::moe::detail
