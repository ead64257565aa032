// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, std::optional<deadline> until)
    : exchange{comm,
               config,
               codec,
               layout,
               until.value_or(comm.default_deadline()),
               config.relay != moe::relay::never} {}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, deadline until, bool finds_groups)
    : comm_{comm}, levels_{this, comm, config, codec, layout, until, finds_groups} {
  detail::exchange_engine* engine = &levels_.engine();
  if (comm.members()->listeners().any()) engine = &reporting_.emplace(*engine, comm);
  this->answer_by(*engine, levels_.parts().core, levels_.choices(),
                  levels_.config().output_attachment);
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::~exchange() = default;

template <transport Transport, token_codec Codec, row_layout Layout>
constexpr memory_map exchange<Transport, Codec, Layout>::map_for(const exchange_config& config,
                                                                 std::size_t ranks, Layout layout,
                                                                 peer_reach reach) noexcept {
  exchange_config planned = config;
  const auto codec = detail::codec_facts::of<Codec>(config.hidden);
  if constexpr (automatic_layout<Layout>)
    planned.protocol = detail::choose_protocol(
                           config, detail::only_protocol_of<Layout>,
                           detail::full_dispatch(config, codec, path_name_of(reach), ranks,
                                                 layout.geometry(config, ranks).copies_per_token))
                           .chosen;
  return levels::map_of(planned, layout.geometry(planned, ranks), ranks,
                        reach == peer_reach::all
                            ? levels::template path_over<peer_reach::all>::needs
                            : levels::template path_over<peer_reach::near>::needs);
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
      engine().combine(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

template <transport Transport, token_codec Codec, row_layout Layout>
moe::ticket exchange<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                              const routing& route,
                                                              const dispatch_options& options) {
  const auto found =
      engine().dispatch_send({tokens, options.attachments}, route, options, deadline_of(options));
  const std::uint64_t number = engine().next_dispatch() - 1;
  require_accepted("dispatch", number, found);
  return {number, this};
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                       const receive_options& options)
    -> received_type {
  const auto keep = [&](const detail::batch& batch) {
    const std::size_t set = levels_.parts().batches.set_of(batch);
    const set_view own_set = levels_.parts().core.local_set(batch);
    arrived_.emplace(
        levels_.rows(set).of(batch, this, levels_.codec(),
                             {own_set, levels_.parts().path->sets(set), batch.origins(own_set)},
                             levels_.parts().window->group().rank()));
  };
  require_accepted("dispatch", ticket.number,
                   engine().dispatch_recv(ticket, options, deadline_of(options), keep));
  return *arrived_;
}

template <transport Transport, token_codec Codec, row_layout Layout>
bool exchange<Transport, Codec, Layout>::count_rows(moe::ticket ticket,
                                                    std::span<std::uint32_t> rows) {
  const detail::batch& batch =
      levels_.parts().core.batch_of("count_rows", ticket, detail::stage::received);
  const expert_map& experts = placement();
  if (rows.size() != experts.physical_experts())
    throw error{errc::invalid_argument,
                peerbus::detail::concat("count_rows: rows has ", rows.size(),
                                        " entries, expected physical experts, ",
                                        experts.physical_experts())};
  // With relay a rank does not learn the counts of other groups.
  const auto of_blocks =
      levels_.relay() ? std::span<const std::uint32_t>{} : batch.leaving.totals();
  if (!layout_by_rank<Layout> && !of_blocks.empty()) {
    std::copy(of_blocks.begin(), of_blocks.end(), rows.begin());
    return true;
  }
  std::fill(rows.begin(), rows.end(), 0U);
  levels_.rows(levels_.parts().batches.set_of(batch))
      .count_rows(batch.arriving,
                  rows.subspan(experts.first(comm_.rank()), experts.count(comm_.rank())));
  return false;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    std::optional<deadline> until) {
  levels_.install_experts(physical_to_logical, replicas, until.value_or(comm_.default_deadline()));
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                      const publish_options& options) {
  engine().combine_send(rows.ticket(), options, deadline_of(options));
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                      std::span<bf16> out,
                                                      const sum_options& options) {
  require_accepted(
      "combine", rows.ticket().number,
      engine().combine_recv(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

}  // namespace peerbus::moe
