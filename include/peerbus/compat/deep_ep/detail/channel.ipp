// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::receive(std::uint64_t operation) {
  batch& this_batch = slots_.pending(operation);
  const stage before = this_batch.progress;
  for (;;) try {
      return operation % 2 == 0 ? receive_rows(this_batch) : receive_outputs(this_batch);
    } catch (const error& problem) {
      if (problem.code() != errc::peer_dead) throw;
      const stage failed = std::exchange(this_batch.progress, before);  // For `resume`.
      if (agreement_.recovers_from(problem)) continue;
      this_batch.progress = failed;
      throw;
    }
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::resume() {
  static_cast<void>(moe_.resume());
  slots_.for_each([&](batch& this_batch) {
    if (this_batch.progress == stage::sent) {
      begin_again(this_batch, started_operation::kind::dispatch);
      this_batch.ticket =
          moe_.dispatch_send(this_batch.sent, this_batch.route, this_batch.sent_with);
    } else if (this_batch.progress == stage::returning) {
      begin_again(this_batch, started_operation::kind::combine);
      auto options = options_of<moe::publish_options>(this_batch);
      options.attached = this_batch.attached;
      moe_.combine_send(*this_batch.rows, options);
    }
  });
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::refuse(const started_operation& begun, deadline until) {
  batch& this_batch = slots_.at(begun.number);
  const bool is_dispatch = begun.what == started_operation::kind::dispatch;
  if (is_dispatch ? moe_.next_dispatch() != begun.number || this_batch.call == begun.call
                  : !slots_.is_received(begun.number))
    comm_.fail(errc::mismatch,
               concat(Mode::prefix, is_dispatch ? "dispatch " : "combine ", begun.number,
                      " was begun on other ranks, but is not the next call here"));
  if (!is_dispatch) {
    this_batch.until = until;
    open(this_batch);
    this_batch.progress = stage::returning;
    return moe_.combine_send(*this_batch.rows, {.until = until, .refuse = true});
  }
  complete_pending(this_batch);
  auto options = assign(next_batch(), 0, until, {});
  options.refuse = true;
  try {
    static_cast<void>(moe_.dispatch_send(
        {}, moe::routing{std::span<const std::int64_t>{}, std::span<const float>{}}, options));
  } catch (const error& refused) {
    if (refused.code() != errc::invalid_argument) throw;
  }
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::finish_refusal(const started_operation& begun,
                                                     deadline until) {
  if (begun.what == started_operation::kind::dispatch) return;
  batch& this_batch = slots_.at(begun.number);
  finish_refused_combine(moe_, *this_batch.rows, this_batch.tokens, until);
  this_batch.progress = stage::received;
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::receive_rows(batch& this_batch) {
  this_batch.progress = stage::idle;  // This remains if receiving throws.
  try {
    this_batch.rows.emplace(
        moe_.dispatch_recv(this_batch.ticket, options_of<moe::receive_options>(this_batch)));
  } catch (const error& problem) {
    rethrow(problem, this_batch);
  }
  publish_arrays(this_batch);
  this_batch.progress = stage::received;
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::receive_outputs(batch& this_batch) {
  auto options = options_of<moe::sum_options>(this_batch);
  for (std::size_t b = 0; b < this_batch.bias.size(); ++b)
    if (this_batch.bias[b]) options.terms.bias[b] = this_batch.bias[b].template values<bf16>();
  if (this_batch.factors) options.terms.weights = this_batch.factors.template values<float>();
  if (this_batch.reads_own)
    options.terms.own = std::span{this_batch.own}.first(this_batch.tokens * moe_.map().copies);
  this_batch.progress = stage::idle;  // Also if receiving throws.
  try {
    moe_.combine_recv(*this_batch.rows, this_batch.out.template values<bf16>(), options);
  } catch (const error& problem) {
    // The ranks may combine the batch again.
    if (problem.code() == errc::refused) this_batch.progress = stage::received;
    rethrow(problem, this_batch);
  }
  if constexpr (Mode::weights_return) {
    require_weights_from_all_or_none(moe_, this_batch.ticket, comm_.ranks());
    if (this_batch.attached) publish_weights(this_batch);
  }
  this_batch.progress = stage::combined;
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::begin_again(batch& this_batch, started_operation::kind what) {
  agreement_.begin();
  auto again = returning(this_batch, this_batch.sent_with.bound, what);
  if (what == started_operation::kind::dispatch) again.plan = 0;
  this_batch.call = agreement_.started(again);
}

template <class Mode, transport Transport, token_codec Codec>
void channel<Mode, Transport, Codec>::complete_pending(batch& this_batch) {
  for (const std::uint64_t operation : {2 * this_batch.number, 2 * this_batch.number + 1}) {
    if (!slots_.is_pending(operation)) continue;
    try {
      receive(operation);
    } catch (const error& refused) {
      if (refused.code() != errc::refused) throw;
    }
  }
}

template <class Mode, transport Transport, token_codec Codec>
moe::dispatch_options channel<Mode, Transport, Codec>::begin(batch& this_batch, std::size_t tokens,
                                                             const std::optional<deadline>& until,
                                                             const tensor& waited,
                                                             std::size_t bound) noexcept {
  auto options = assign(this_batch, tokens, until, waited);
  options.bound = bound;
  this_batch.call = this_batch.plan =
      agreement_.started({.channel = this->id(),
                          .number = this_batch.number,
                          .bound = bound,
                          .what = started_operation::kind::dispatch});
  return options;
}

}  // namespace peerbus::deep_ep::detail
