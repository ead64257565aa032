// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/detail/batch_slots.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/detail/weights_home.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// When a call's results become valid: before it returns, or when the caller calls its event or
/// hook.
enum class delivery : std::uint8_t { now, event, hook };

/// The calls of one mode and shape over an exchange of their own, and the way that each batch of
/// them takes: sent, received, returning, idle. A mode's channel derives from this; it checks
/// arguments, puts outputs in place and publishes results.
///
/// `Mode` has the calls (`calls`, a `keyed_channel`), the exchange's `layout`, what each batch
/// keeps besides the exchange's memory (`arrays`) and its name for error texts (`kept`), how the
/// names of the calls begin (`prefix`), and whether weights come home with outputs
/// (`weights_return`).
template <class Mode, transport Transport, token_codec Codec>
class channel : public Mode::calls {
 public:
  void receive(std::uint64_t operation) final {
    batch& one = slots_.pending(operation);
    operation % 2 == 0 ? receive_rows(one) : receive_outputs(one);
  }
  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept final {
    return slots_.is_pending(operation);
  }
  [[nodiscard]] bool is_received(std::uint64_t number) const noexcept final {
    return slots_.is_received(number);
  }
  [[nodiscard]] bool anything_pending() const noexcept final { return slots_.anything_pending(); }

 protected:
  using exchange_type = moe::exchange<Transport, Codec, typename Mode::layout>;
  using token = token_of<Codec>;

  struct batch : batch_state {
    explicit batch(typename Mode::arrays&& memory) : arrays{std::move(memory)} {}

    typename Mode::arrays arrays;
    moe::ticket ticket;
    std::optional<typename exchange_type::received_type> rows;
    // Of the combine under way:
    tensor out;
    std::array<const_tensor, 2> bias;
    const_tensor factors;   ///< what rows are multiplied by, if not by 1
    bool weighted = false;  ///< whether weights go home beside the outputs
  };

  /// Collective, as the exchange's constructor. `make_arrays(moe)` makes the arrays of a batch.
  template <class Key, class MakeArrays>
  channel(communicator<Transport>& comm, const Key& shape, const moe::exchange_config& config,
          typename Mode::layout layout, deadline until, MakeArrays&& make_arrays)
      : Mode::calls{shape},
        comm_{comm},
        moe_{comm, config, {}, layout, until},
        slots_{make_together(comm, Mode::kept, until, [&] {
          std::vector<batch> made;
          made.reserve(config.in_flight);
          for (std::size_t i = 0; i < config.in_flight; ++i)
            made.emplace_back(make_arrays(std::as_const(moe_)));
          return batch_slots<batch>{Mode::prefix, std::move(made)};
        })} {}

  // --- dispatch ----------------------------------------------------------------------------------

  /// The batch that the next dispatch will use. Throws: as `batch_slots::next`.
  [[nodiscard]] batch& next_batch() { return slots_.next(moe_.next_dispatch()); }

  /// Gives `one` to the next dispatch, whatever comes of it. Returns: the options to send it with.
  [[nodiscard]] moe::dispatch_options begin(batch& one, std::size_t tokens,
                                            const std::optional<deadline>& until,
                                            const tensor& waited = {}) noexcept {
    one.at = stage::idle;
    one.number = moe_.next_dispatch();
    one.tokens = tokens;
    one.until = until;
    one.waited = waited;
    return options_of<moe::dispatch_options>(one);
  }
  void send_rows(batch& one, std::span<const token> tokens, const moe::routing& route,
                 const moe::dispatch_options& with) {
    one.ticket = moe_.dispatch_send(tokens, route, with);
    one.at = stage::sent;
  }
  void receive_rows(batch& one) {
    one.at = stage::idle;  // Should it fail.
    one.rows.emplace(moe_.dispatch_recv(one.ticket, options_of<moe::receive_options>(one)));
    publish_arrays(one);
    one.at = stage::received;
  }
  /// Fills what a mode promises of every batch whose rows have come.
  virtual void publish_arrays(batch& /*one*/) {}

  // --- combine -----------------------------------------------------------------------------------

  /// Lets the outputs of `one`, which are in place, go home. Returns: `made`, as `how` says.
  template <class Result>
  [[nodiscard]] Result send_outputs(batch& one, Result made, delivery how) {
    one.at = stage::returning;
    auto with = options_of<moe::publish_options>(one);
    with.attached = one.weighted;
    moe_.combine_send(*one.rows, with);
    deliver(made, 2 * one.number + 1, how);
    return made;
  }
  void receive_outputs(batch& one) {
    auto with = options_of<moe::sum_options>(one);
    for (std::size_t b = 0; b < one.bias.size(); ++b)
      if (one.bias[b]) with.terms.bias[b] = one.bias[b].template values<bf16>();
    if (one.factors) with.terms.weights = one.factors.template values<float>();
    one.at = stage::idle;  // Whatever comes of it.
    moe_.combine_recv(*one.rows, one.out.template values<bf16>(), with);
    if constexpr (Mode::weights_return) {
      require_weights_from_all_or_none(moe_, one.ticket, comm_.ranks());
      if (one.weighted) publish_weights(one);
    }
  }
  /// Fills the arrays of weights that have come home.
  virtual void publish_weights(batch& /*one*/) {}

  /// Receives `operation` now, or leaves that to the event or hook of `made`.
  template <class Result>
  void deliver(Result& made, std::uint64_t operation, delivery how) {
    if (how == delivery::now) return receive(operation);
    if constexpr (requires { made.hook; })
      if (how == delivery::hook) {
        made.hook = recv_hook{{this, operation}};
        return;
      }
    made.event = event_overlap{{this, operation}};
  }

  communicator<Transport>& comm_;
  exchange_type moe_;
  batch_slots<batch> slots_;
};

}  // namespace peerbus::deep_ep::detail
