// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/batch_slots.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/detail/refused_combine.hpp>
#include <peerbus/compat/deep_ep/detail/weights_home.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/log_choices.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_stream.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// A base of channels: the calls of one mode and shape over an exchange of their own. It moves each
/// batch through its stages: sent, received, returning, combined. The channel of a mode derives
/// from it, checks arguments, puts outputs in place and publishes results.
///
/// `Mode` has the calls (`calls`, a `keyed_channel`), the `layout` of the exchange, the memory of a
/// batch besides the exchange's (`arrays`) with its name for error texts (`kept`), the prefix of
/// the names of the calls (`prefix`), and whether weights come home with outputs
/// (`weights_return`).
template <class Mode, transport Transport, token_codec Codec>
class channel : public Mode::calls {
 public:
  void receive(std::uint64_t operation) final;
  /// Begins the operations again that all ranks have begun and not completed.
  void resume() final;
  void add_to(peerbus::detail::fnv_hash& hash) const final {
    hash.add(moe_.next_dispatch());
    slots_.for_each([&](const batch& this_batch) {
      hash.add(this_batch.number);
      hash.add(static_cast<std::uint64_t>(this_batch.progress));
    });
  }
  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept final {
    return slots_.is_pending(operation);
  }
  [[nodiscard]] bool is_received(std::uint64_t number) const noexcept final {
    return slots_.is_received(number);
  }
  [[nodiscard]] bool anything_pending() const noexcept final { return slots_.anything_pending(); }
  void refuse(const started_operation& begun, deadline until) final;
  void finish_refusal(const started_operation& begun, deadline until) final;

 protected:
  using exchange_type = moe::exchange<Transport, Codec, typename Mode::layout>;
  using token = token_of<Codec>;

  struct batch : batch_state {
    explicit batch(typename Mode::arrays&& memory) : arrays{std::move(memory)} {}

    typename Mode::arrays arrays;
    moe::ticket ticket;
    /// Tokens, kept with their routing and options until their rows have arrived.
    std::span<const token> sent;
    moe::routing route{std::span<const std::int64_t>{}, std::span<const float>{}};
    moe::dispatch_options sent_with;
    std::optional<typename exchange_type::received_type> rows;
    // The combine in progress:
    tensor out;
    std::array<const_tensor, 2> bias;
    const_tensor factors;          ///< factors of the rows; none: 1
    std::vector<const bf16*> own;  ///< memory for `combine_terms::own`
    bool reads_own = false;        ///< the combine reads own outputs where the caller has them
    bool attached = false;         ///< weights, or heads of LogFMT-10, go home beside the outputs
  };

  /// Makes the exchange and the batches, and logs the choices of the exchange to `log`. Collective.
  /// `make_arrays(moe)` makes the arrays of a batch.
  /// Throws: as the exchange's constructor.
  template <class Key, class MakeArrays>
  channel(communicator<Transport>& comm, call_agreement& agreement, const Key& shape,
          const moe::exchange_config& config, typename Mode::layout layout, const stderr_log& log,
          deadline until, MakeArrays&& make_arrays)
      : Mode::calls{shape},
        comm_{comm},
        agreement_{agreement},
        moe_{comm, config, {}, layout, until},
        slots_{comm.on_all_ranks(Mode::kept, until, [&] {
          std::vector<batch> made;
          made.reserve(config.in_flight);
          for (std::size_t i = 0; i < config.in_flight; ++i)
            made.emplace_back(make_arrays(std::as_const(moe_)))
                .own.resize(moe_.relay().relays ? 0 : config.max_tokens * moe_.map().copies);
          return batch_slots<batch>{Mode::prefix, std::move(made)};
        })} {
    moe_.watch_waits(&agreement_);
    if (!log) return;
    log(log_level::info,
        concat("exchange: of ", Mode::prefix, "dispatch for up to ", config.max_tokens,
               " tokens of ", config.hidden, " channels, top_k ", config.top_k));
    moe::log_choices(moe_, log);
  }

  // --- dispatch ----------------------------------------------------------------------------------

  /// Returns the batch that the next dispatch will use.
  /// Throws: as `batch_slots::next`.
  [[nodiscard]] batch& next_batch() { return slots_.next(moe_.next_dispatch()); }
  /// Returns the batch that the next dispatch will use. If `next_batch` throws, makes all ranks
  /// refuse the call, and throws that error.
  [[nodiscard]] batch& next_batch_or_refuse(const std::optional<deadline>& until) {
    return agreement_.or_refuse(until, [&]() -> batch& { return next_batch(); });
  }

  /// Assigns `this_batch` to the next dispatch, even if that dispatch fails later. Returns the
  /// options for sending it.
  [[nodiscard]] moe::dispatch_options begin(batch& this_batch, std::size_t tokens,
                                            const std::optional<deadline>& until,
                                            const tensor& waited = {},
                                            std::size_t bound = 0) noexcept;
  void send_rows(batch& this_batch, std::span<const token> tokens, const moe::routing& route,
                 const moe::dispatch_options& options) {
    this_batch.ticket = moe_.dispatch_send(tokens, route, options);
    this_batch.sent = tokens;
    this_batch.route = route;
    this_batch.sent_with = options;
    this_batch.progress = stage::sent;
  }
  void receive_rows(batch& this_batch);
  /// Fills the arrays of a batch whose rows have arrived.
  virtual void publish_arrays(batch& /*this_batch*/) {}

  // --- combine -----------------------------------------------------------------------------------

  /// Gives the outputs of a received batch to the caller for writing. If the batch was combined
  /// before, waits until all ranks are about to combine it again.
  void open(batch& this_batch) {
    if (this_batch.progress != stage::combined) return;
    moe_.reopen(*this_batch.rows, options_of<moe::receive_options>(this_batch));
    this_batch.progress = stage::received;
  }

  /// Begins the combine of a received batch, whose outputs may then be written. `bound` as in
  /// `started_operation`.
  void begin_combine(batch& this_batch, std::size_t bound = 0) {
    this_batch.call =
        agreement_.started(returning(this_batch, bound, started_operation::kind::combine));
    this_batch.reads_own = false;
    open(this_batch);
  }
  /// Opens a batch, as `open` does, before the call that combines it.
  /// Throws, on all ranks: `error` mismatch if other ranks make another call.
  void open_early(batch& this_batch, std::size_t bound) {
    if (this_batch.progress != stage::combined) return;
    this_batch.until = std::nullopt;
    agreement_.prepare(returning(this_batch, bound, started_operation::kind::reopen), {},
                       [&] { open(this_batch); });
  }

  /// Copies the caller's outputs to the places where their home ranks read them. `for_each(copy)`
  /// calls `copy(rows, i, source)` for each of the `count` rows. If the combine is delivered
  /// `immediate`ly, outputs for tokens of this rank are read from `source` instead of copied,
  /// unless the sums would overwrite them. A combine that ends later may find `source` changed.
  template <class ForEach>
  void copy_outputs(batch& this_batch, std::size_t count, delivery when, ForEach&& for_each) {
    const std::size_t copies = moe_.map().copies;
    const moe::row_stream stream{{.rows = count, .row_bytes = moe_.map().output_bytes()},
                                 moe_.config().stream_from.value_or(moe::never_stream)};
    this_batch.reads_own = when == delivery::immediate && !this_batch.own.empty();
    if (this_batch.reads_own)
      std::fill_n(this_batch.own.begin(), this_batch.tokens * copies, nullptr);
    for_each([&](const auto& rows, std::size_t i, const bf16* source) {
      const std::span<bf16> output = rows.output(i);
      const auto origin = rows.origin(i);
      if (this_batch.reads_own && origin.rank == comm_.rank() &&
          !overlap(std::as_bytes(std::span{source, output.size()}), this_batch.out)) {
        this_batch.own[origin.token * copies + origin.slot] = source;
        return;
      }
      stream.copy(std::as_writable_bytes(output).data(), reinterpret_cast<const std::byte*>(source),
                  output.size_bytes());
    });
  }

  /// Sends the outputs of `this_batch`, which are in place, to their home ranks. Returns `made`,
  /// delivered as `when` states.
  template <class Result>
  [[nodiscard]] Result send_outputs(batch& this_batch, Result made, delivery when) {
    this_batch.progress = stage::returning;
    auto options = options_of<moe::publish_options>(this_batch);
    options.attached = this_batch.attached;
    moe_.combine_send(*this_batch.rows, options);
    deliver(made, 2 * this_batch.number + 1, when);
    return made;
  }
  void receive_outputs(batch& this_batch);
  /// Fills the arrays of weights after the weights have arrived at home.
  virtual void publish_weights(batch& /*this_batch*/) {}

  /// Receives `operation` now, or lets the event or hook of `made` receive it.
  template <class Result>
  void deliver(Result& made, std::uint64_t operation, delivery when) {
    if (when == delivery::immediate) return receive(operation);
    if constexpr (requires { made.hook; })
      if (when == delivery::hook) {
        made.hook = recv_hook{{this, operation}};
        return;
      }
    made.event = event_overlap{{this, operation}};
  }

  communicator<Transport>& comm_;
  call_agreement& agreement_;
  exchange_type moe_;
  batch_slots<batch> slots_;

 private:
  /// Returns whether `bytes` and the memory of `whole`, which has no gaps, have a byte in common.
  [[nodiscard]] static bool overlap(std::span<const std::byte> bytes,
                                    const tensor& whole) noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
    const auto begin = reinterpret_cast<std::uintptr_t>(whole.data());
    return first < begin + whole.bytes() && begin < first + bytes.size();
  }
  /// Assigns `this_batch` to the next dispatch. Returns the options for sending it.
  [[nodiscard]] moe::dispatch_options assign(batch& this_batch, std::size_t tokens,
                                             const std::optional<deadline>& until,
                                             const tensor& waited) noexcept {
    this_batch.progress = stage::idle;
    this_batch.number = moe_.next_dispatch();
    this_batch.tokens = tokens;
    this_batch.until = until;
    this_batch.waited = waited;
    return options_of<moe::dispatch_options>(this_batch);
  }
  [[nodiscard]] started_operation returning(const batch& this_batch, std::size_t bound,
                                            started_operation::kind what) const noexcept {
    return {.channel = this->id(),
            .number = this_batch.number,
            .bound = bound,
            .what = what,
            .plan = this_batch.plan};
  }
  /// Counts a call that begins the operation of `this_batch` again.
  void begin_again(batch& this_batch, started_operation::kind what);
  /// Receives the operations that a hook or event of `this_batch` has not received, so that the
  /// exchange can use the memory of the batch again. The other ranks have sent them.
  void complete_pending(batch& this_batch);
  /// Throws the error by which the ranks have refused the call of `this_batch`. If they have not
  /// refused it, throws the error that is being handled.
  void rethrow(const error& problem, const batch& this_batch) {
    if (problem.code() == errc::refused)
      if (const auto refused = agreement_.take_refusal(this_batch.call, this_batch.until))
        throw error{*refused};
    throw;
  }
};

}  // namespace peerbus::deep_ep::detail

#include <peerbus/compat/deep_ep/detail/channel.ipp>  // IWYU pragma: keep
