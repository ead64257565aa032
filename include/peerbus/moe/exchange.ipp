// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, std::optional<deadline> until)
    : exchange{comm, config, codec, layout, until.value_or(comm.default_deadline()), agreed{}} {}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, deadline until, agreed)
    : comm_{comm},
      config_{detail::agreed_config<Codec>(comm, config, layout, road_name<Transport>, until)},
      codec_{codec},
      map_{map_for(config_, comm.size(), layout)},
      window_{comm,
              comm.make_window(map_.total, detail::post_office::signals(map_, comm.size()), until)},
      // After the window, because making that refuses sizes beyond the machine at once, while plans
      // would first touch their pages.
      plans_{comm.on_all_ranks("the plans of an exchange's batches", until,
                               [&] {
                                 return make_plans(config_, layout.geometry(config_, comm.size()),
                                                   comm.rank(), comm.size());
                               })},
      road_{window_, map_, codec},
      core_{this, {config_, map_, window_, plans_.batches, road_}} {
  config_.physical_to_logical = {};
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::~exchange() = default;

template <transport Transport, token_codec Codec, row_layout Layout>
constexpr memory_map exchange<Transport, Codec, Layout>::map_for(const exchange_config& config,
                                                                 std::size_t ranks,
                                                                 Layout layout) noexcept {
  exchange_config planned = config;
  const auto codec = detail::codec_facts::of<Codec>(config.hidden);
  if constexpr (automatic_layout<Layout>)
    planned.protocol = detail::chosen_protocol(config, codec, road_name<Transport>, ranks,
                                               layout.geometry(config, ranks).copies_per_token);
  return {planned, layout.geometry(planned, ranks), ranks, codec.format, road::needs};
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::make_plans(const exchange_config& config,
                                                    const block_geometry& geometry, rank_id rank,
                                                    std::size_t ranks) -> plans {
  const auto format = detail::codec_facts::of<Codec>(config.hidden).format;
  plans made{{config, geometry, rank, ranks, road::needs, format.row_bytes}, {}};
  made.rows.reserve(config.in_flight);
  for (std::size_t set = 0; set < config.in_flight; ++set)
    made.rows.emplace_back(config, geometry, made.batches.experts().count(rank));
  return made;
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::dispatch(std::span<const token> tokens,
                                                  const routing& route,
                                                  const dispatch_options& options)
    -> received_type {
  dispatch_options with_deadline = options;
  with_deadline.until = deadline_of(options);
  const moe::ticket ticket = dispatch_send(tokens, route, with_deadline);
  return dispatch_recv(ticket,
                       {.until = with_deadline.until, .as = options.as, .waited = options.waited});
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                 const combine_options& options) {
  require_accepted(
      "combine", rows.ticket().number,
      core_.combine(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

template <transport Transport, token_codec Codec, row_layout Layout>
moe::ticket exchange<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                              const routing& route,
                                                              const dispatch_options& options) {
  const auto found =
      core_.dispatch_send({tokens, options.attachments}, route, options, deadline_of(options));
  const std::uint64_t number = plans_.batches.latest();
  require_accepted("dispatch", number, found);
  return {number, this};
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                       const receive_options& options)
    -> received_type {
  require_accepted("dispatch", ticket.number, receive(ticket, options, deadline_of(options)));
  return *arrived_;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                      const publish_options& options) {
  core_.combine_send(rows.ticket(), options, deadline_of(options));
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                      std::span<bf16> out,
                                                      const sum_options& options) {
  require_accepted(
      "combine", rows.ticket().number,
      core_.combine_recv(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

template <transport Transport, token_codec Codec, row_layout Layout>
std::optional<detail::refusal_of> exchange<Transport, Codec, Layout>::receive(
    moe::ticket ticket, const receive_options& options, deadline until) {
  return core_.dispatch_recv(ticket, options, until, [&](const detail::batch& batch) {
    const std::size_t set = plans_.batches.set_of(batch);
    arrived_.emplace(plans_.rows[set].of(batch, this, codec_,
                                         {core_.local_set(batch), road_.sets(set)}, comm_.rank()));
  });
}

}  // namespace peerbus::moe
