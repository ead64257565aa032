// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/batch_ring.hpp>
#include <peerbus/moe/detail/check_input.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/check_sum.hpp>
#include <peerbus/moe/detail/lane_team.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/road/road_over.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// Sends tokens to their experts and brings the results home, over one window of fixed size.
///
/// A dispatch has two phases. Every rank first gives every other its rows by block (or its refusal
/// of bad input); from all counts each rank computes the exact place of each of its rows at the
/// peers. Then it writes the rows there and signals. A combine has one: when all peers say that
/// their outputs are ready, the home rank sums them. Why no buffer is written too early:
/// docs/memory_model.md.
///
/// `dispatch` and `combine` do an operation whole. `dispatch_send`, `dispatch_recv`, `combine_send`
/// and `combine_recv` are their halves, for callers who compute meanwhile: a `send` waits for other
/// ranks only if its input is bad, a `recv` does. Up to `in_flight` batches may be between
/// `dispatch_send` and `combine_recv`, each with memory of its own. Any call on the exchange moves
/// along what earlier ones began; nothing moves between calls, as the library has no thread of its
/// own.
///
/// All ranks make the same calls of one exchange in the same order, also with zero tokens; a whole
/// operation counts as its two halves. Batches may be received and combined in any order that all
/// ranks share; ranks that differ in it may wait for each other. Calls that misuse a batch (in the
/// wrong order, twice, of another exchange) throw `error` invalid_argument on that rank alone,
/// which has then not called.
///
/// Threads: one operation at a time per exchange, carried by one thread or by several `lane`s;
/// different exchanges are independent.
template <transport Transport, token_codec Codec, row_layout Layout = compact>
class exchange {
  using road = typename road_over<Transport, Codec>::type;
  static_assert(row_road<road, token_of<Codec>>);
  using batch = detail::batch<Codec, Layout, typename road::batch_order>;
  using batches = detail::batch_ring<Codec, Layout, typename road::batch_order>;

 public:
  /// `received<Codec>`, or `received_tokens<Codec>` if rank-major.
  using received_type = typename batch::received_type;
  /// What tokens are made of.
  using token = token_of<Codec>;

  /// Collective. Takes all memory that the exchange will ever use, most of it untouched.
  /// Throws, on all ranks: `error` invalid_argument for an impossible configuration, mismatch if
  /// ranks differ in it, in the codec or the layout, out_of_memory, timed_out, peer_dead, poisoned.
  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec = {},
           Layout layout = {}, std::optional<deadline> until = std::nullopt);
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;
  ~exchange();

  /// The sizes that such an exchange would have, before anything is made.
  [[nodiscard]] static constexpr memory_map map_for(const exchange_config& config,
                                                    std::size_t ranks,
                                                    Layout layout = {}) noexcept {
    return {config, layout.geometry(config, ranks), ranks,
            row_format{Codec::row_bytes(config.hidden), Codec::scale_bytes(config.hidden)},
            road::needs};
  }

  /// Without `physical_to_logical`, which is the caller's; `placement` has it.
  [[nodiscard]] const exchange_config& config() const noexcept { return config_; }
  /// Where everything lies in the window, and how large it is.
  [[nodiscard]] const memory_map& map() const noexcept { return map_; }
  /// The experts that each rank holds.
  [[nodiscard]] const expert_map& placement() const noexcept { return batches_.experts(); }
  /// The window that everything lies in, for tools that measure or inspect it.
  [[nodiscard]] window<Transport>& memory() noexcept { return memory_; }

  /// Returns the number that the ticket of the next dispatch will have, for callers who prepare
  /// data of their own for it (`per_batch`). A refused dispatch has used its number.
  [[nodiscard]] std::uint64_t next_dispatch() const noexcept { return batches_.latest() + 1; }

  /// Collective. Sends each token to the experts that `route` names. `tokens` is [count, hidden],
  /// `route` [count, top_k], with count at most max_tokens, different per rank if need be; both are
  /// free again on return. Returns when all rows for this rank's experts are there.
  /// Throws, on all ranks: `error` invalid_argument on a rank whose input is bad and `refused` on
  /// the others, nothing having been written anywhere; the exchange goes on. Or timed_out or
  /// peer_dead, which poison the communicator.
  [[nodiscard]] received_type dispatch(std::span<const token> tokens, const routing& route,
                                       const dispatch_options& with = {});

  /// Collective. out[t] = the sum over the copies of token t, in order, of factor times output, in
  /// f32 by fused multiply-add, rounded to bf16 once. Expert-major, a copy is a slot k and its
  /// factor weight[t, k]; -1 slots add nothing. Rank-major, it is a rank that has experts of the
  /// token, in ascending order, and its factor 1. `rows` is what `dispatch` returned, its outputs
  /// filled; `out` is [count, hidden] for the count of tokens given there. Returns when `out` is
  /// complete. A batch is combined once.
  /// Throws: as `dispatch`, the batch being as before if `out` is refused.
  void combine(const received_type& rows, std::span<bf16> out, const combine_options& with = {});

  /// Begins a dispatch and returns at once: the first half of `dispatch`. `route` is free again on
  /// return; `tokens` and attachments stay as they are until `dispatch_recv` has returned. Gives up
  /// the rows of the dispatch `in_flight` before.
  /// Throws: as `dispatch`, but on the rank whose input is bad only, once all ranks have come; the
  /// others learn it in `dispatch_recv`. invalid_argument if `in_flight` batches are on their way.
  [[nodiscard]] moe::ticket dispatch_send(std::span<const token> tokens, const routing& route,
                                          const dispatch_options& with = {});

  /// Ends a dispatch: the second half of `dispatch`, which see.
  [[nodiscard]] received_type dispatch_recv(moe::ticket begun, const receive_options& with = {});

  /// Returns the arrays that the rows of the batch `begun` lie in, also before they are there: for
  /// callers who hand out places of rows ahead of `dispatch_recv`. From then on they are those of
  /// `received_type::columns`.
  /// Throws: `error` invalid_argument unless `begun` is one of the latest `in_flight` dispatches.
  [[nodiscard]] batch_columns<Codec> columns(moe::ticket begun) {
    return batch_columns<Codec>{local_set(batches_.of("columns", this, begun))};
  }

  /// Returns the note that `source` gave to its dispatch of the batch `begun`, which is received:
  /// [note_bytes / sizeof(T)], aligned to 8 bytes, or empty if that rank gave none. It is valid
  /// until this rank's `in_flight`th next `dispatch_send`, refused ones counted too.
  /// Throws: `error` invalid_argument unless `begun` is received and of the latest `in_flight`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> note(moe::ticket begun, rank_id source) {
    const batch& one = batches_.of("note", this, begun, detail::stage::received);
    const std::span<const std::byte> bytes = post_.note(step_of(one, counts), source);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  /// Gives the outputs, which are filled, to the home ranks, and returns at once: the first half of
  /// `combine`. The outputs must not change any more. With several lanes: those of all of them.
  void combine_send(const received_type& rows, const publish_options& with = {});

  /// Sums: the second half of `combine`, which see. A bad `out` throws here alone, before anything
  /// is written, and the call can be made again.
  void combine_recv(const received_type& rows, std::span<bf16> out, const sum_options& with = {});

  /// Returns whether `rank` let output attachments go home (`attached`) in the combine of the batch
  /// `begun`.
  /// Throws: `error` invalid_argument unless this rank has combined the batch and it is of the
  /// latest `in_flight`.
  [[nodiscard]] bool attached_by(moe::ticket begun, rank_id rank) {
    const batch& one = batches_.of("attached_by", this, begun, detail::stage::returned);
    return post_.brought(step_of(one, outputs), rank) != 0;
  }
  /// Returns what came home beside the output of copy `copy` of this rank's token `t`, numbered
  /// as in `combine`: [output_attachment / sizeof(T)]. The copy was sent, and its rank is one of
  /// `attached_by`; otherwise the bytes are of an earlier batch. Valid until this rank's
  /// `in_flight`th next `dispatch_send`.
  /// Throws: as `attached_by`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> returned_attachment(moe::ticket begun, std::size_t t,
                                                       std::size_t copy) {
    const batch& one = batches_.of("returned_attachment", this, begun, detail::stage::returned);
    return {reinterpret_cast<const T*>(local_set(one).returned_attachment(t, copy)),
            map_.output_attachment_bytes / sizeof(T)};
  }

 private:
  using post_office = detail::post_office<Transport>;
  using step = typename post_office::step;
  using phase = typename post_office::phase;
  static constexpr phase counts = phase::counts;
  static constexpr phase rows_in = phase::rows;
  static constexpr phase outputs = phase::outputs;
  struct agreed {};

  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec, Layout layout,
           deadline until, agreed);

  template <class Options>
  [[nodiscard]] deadline deadline_of(const Options& with) const noexcept {
    return with.until.value_or(comm_.default_deadline());
  }

  [[nodiscard]] step step_of(const batch& one, phase which) const noexcept {
    const bool home = which == outputs;
    return {home ? "combine" : "dispatch", one.number, batches_.set_of(one), which,
            home ? one.combines : one.number};
  }

  /// The set of a batch at this rank.
  [[nodiscard]] set_view local_set(const batch& one) const noexcept {
    return {map_, memory_.local().data(), batches_.set_of(one)};
  }

  // --- dispatch --------------------------------------------------------------------------------

  void begin_dispatch(const batch_input<token>& input, const routing& route,
                      const dispatch_options& with, deadline until);

  /// Sends the rows of all batches whose counts are complete, in order, waiting for those of
  /// `wanted` and earlier ones. All lanes come here together.
  void advance(const batch* wanted, lane as, deadline until, std::span<std::int64_t> waited = {});

  [[nodiscard]] batch* next_ready(const batch* wanted, deadline until,
                                  std::span<std::int64_t> waited);

  void end_dispatch(batch& one, deadline until, std::span<std::int64_t> waited);

  // --- combine ---------------------------------------------------------------------------------

  /// Tells the home ranks that the outputs are there, after they have been put there if need be, or
  /// that this rank refuses to take any: if `check` finds something wrong.
  template <class Options, class Check>
  void begin_combine(std::string_view doing, const received_type& rows, const Options& with,
                     deadline until, Check&& check);

  void announce_outputs(batch& one);

  void finish_combine(const received_type& rows, const combine_sum& wanted, lane as, deadline until,
                      std::span<std::int64_t> waited);

  // --- lanes and failures ----------------------------------------------------------------------

  template <class Turn>
  void serial(lane as, deadline until, Turn&& turn) {
    team_.serial(as, until, turn,
                 [this](errc code, const std::string& text) { comm_.fail(code, text); });
  }
  /// The meeting of lanes that a road is given.
  [[nodiscard]] auto meeting(lane as, deadline until) {
    return [this, as, until](auto&& work) { this->serial(as, until, work); };
  }
  /// Keeps a failure of this lane for the next `serial`, which reports it. order: relaxed; `serial`
  /// is where lanes see what the others wrote.
  void note(errc code) noexcept {
    if (code != errc::ok) failure_.store(code, std::memory_order_relaxed);
  }

  static error bad_input(const step& now, const refusal& why);
  static error refused(const step& now, rank_id by, const refusal& why);

  communicator<Transport>& comm_;
  exchange_config config_;
  [[no_unique_address]] Codec codec_;
  memory_map map_;
  window<Transport> memory_;
  batches batches_;
  post_office post_;
  road road_;

  // What lane 0 tells the others.
  detail::lane_team team_;
  batch* wanted_ = nullptr;
  batch* ready_ = nullptr;
  std::optional<received_type> arrived_;
  std::atomic<errc> failure_{errc::ok};
};

}  // namespace peerbus::moe

#include <peerbus/moe/impl/exchange.hpp>  // IWYU pragma: keep
