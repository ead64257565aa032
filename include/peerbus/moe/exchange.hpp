// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/direct_rows.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/detail/staged_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

namespace detail {
/// How an exchange moves its rows over `Transport`.
template <transport Transport, token_codec Codec>
struct rows_over {
  using type = staged_rows<Transport, Codec>;
};
template <direct_transport Transport, token_codec Codec>
struct rows_over<Transport, Codec> {
  using type = direct_rows<Transport, Codec>;
};
}  // namespace detail

/// Sends tokens to their experts and brings the results home, over one window of fixed size.
///
/// `dispatch` has two phases. Every rank first gives every other its rows by expert (or its refusal
/// of bad input); from all counts each rank computes the exact place of each of its rows at the
/// peers. Then it writes the rows there and signals. `combine` has one: when all peers say that
/// their outputs are ready, the home rank sums them. Why no buffer is written too early:
/// docs/memory_model.md.
///
/// Threads: one operation at a time per exchange; different exchanges are independent. All ranks
/// run the same operations of one exchange in the same order, also with zero tokens.
template <transport Transport, token_codec Codec>
class exchange {
 public:
  /// Collective. Takes all memory that the exchange will ever use, most of it untouched.
  /// Throws, on all ranks: `error` invalid_argument for an impossible configuration, mismatch if
  /// ranks differ in it or in the codec, out_of_memory, timed_out, peer_dead, poisoned.
  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec = {})
      : exchange{comm, config, codec, comm.default_deadline()} {}
  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec,
           deadline until)
      : comm_{comm},
        config_{agreed(comm, config, until)},
        layout_{config_, comm.size(), format(config_), rows_type::way},
        memory_{comm.make_window(layout_.total, 3 * comm.size(), until)},
        plan_{config_, comm.rank(), comm.size()},
        rows_{memory_, config_, layout_, codec, comm.rank(), comm.size()},
        codec_{codec} {
    views_.reserve(plan_.placement().count(comm.rank()));
  }
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;
  ~exchange() = default;

  [[nodiscard]] const exchange_config& config() const noexcept { return config_; }
  [[nodiscard]] const exchange_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const expert_placement& placement() const noexcept { return plan_.placement(); }
  /// The window that everything lies in, for tools that measure or inspect it.
  [[nodiscard]] window<Transport>& memory() noexcept { return memory_; }

  /// Collective. Sends each token to the experts that `route` names. `tokens` is [count, hidden],
  /// `route` [count, top_k], with count at most max_tokens, different per rank if need be; both are
  /// free again on return. Returns when all rows for this rank's experts are there.
  /// Throws, on all ranks: `error` invalid_argument on a rank whose input is bad and `refused` on
  /// the others, nothing having been written anywhere; the exchange goes on. Or timed_out or
  /// peer_dead, which poison the communicator.
  [[nodiscard]] received<Codec> dispatch(std::span<const bf16> tokens, const routing& route) {
    return dispatch(tokens, route, comm_.default_deadline());
  }
  [[nodiscard]] received<Codec> dispatch(std::span<const bf16> tokens, const routing& route,
                                         deadline until) {
    comm_.require_healthy("dispatch");
    const operation now{"dispatch", ++dispatches_, until};
    const refusal mine = plan_.count(tokens, route);
    post_counts(now, mine);
    await_peers(now, phase::counts);
    refuse_if_any(now, mine, [&](rank_id source) { return message(now, source); });

    plan_.place(tokens.size() / config_.hidden, route,
                [&](rank_id source) noexcept { return counts_of(now, source); });
    require(now, rows_.send(tokens, plan_));
    signal_peers(now, phase::rows);
    await_peers(now, phase::rows);
    latest_ = now.epoch;
    return publish();
  }

  /// Collective. out[t] = the sum over token t's slots k, in order, of weight[t, k] times the
  /// output of its expert, in f32 by fused multiply-add, rounded to bf16 once; -1 slots add
  /// nothing. `rows` is what the latest `dispatch` returned, its outputs filled; `out` is [count,
  /// hidden] for the count of tokens given to that dispatch. Returns when `out` is complete.
  /// Throws: as `dispatch`.
  void combine(const received<Codec>& rows, std::span<bf16> out) {
    combine(rows, out, comm_.default_deadline());
  }
  void combine(const received<Codec>& rows, std::span<bf16> out, deadline until) {
    comm_.require_healthy("combine");
    const operation now{"combine", ++combines_, until};
    const refusal mine = check_combine(rows, out);
    if (mine) post_refusal(now, mine);
    signal_peers(now, phase::outputs);
    await_peers(now, phase::outputs);
    refuse_if_any(now, mine, [&](rank_id source) { return local(refusal_at(now, source)); });
    require(now, rows_.sum(plan_, out));
  }

 private:
  using rows_type = typename detail::rows_over<Transport, Codec>::type;

  /// Each phase has a signal per source rank, whose value is the epoch of the operation.
  enum class phase : std::size_t { counts = 0, rows = 1, outputs = 2 };

  struct operation {
    std::string_view name;
    std::uint64_t epoch;
    deadline until;
  };

  static constexpr row_format format(const exchange_config& config) noexcept {
    return {Codec::row_bytes(config.hidden), Codec::scale_bytes(config.hidden)};
  }

  static exchange_config agreed(communicator<Transport>& comm, const exchange_config& config,
                                deadline until) {
    const std::array values{declared{"codec", Codec::name}, declared{"experts", config.experts},
                            declared{"hidden", config.hidden}, declared{"top_k", config.top_k},
                            declared{"max_tokens", config.max_tokens}};
    comm.agree("exchange", values, until,
               detail::objection_to(config, comm.size(), format(config), Codec::name));
    return config;
  }

  // --- the window ------------------------------------------------------------------------------

  [[nodiscard]] std::size_t message_at(const operation& now, rank_id source) const noexcept {
    // Two generations: a rank may send the counts of the next dispatch while a slow one reads
    // these.
    return layout_.counts +
           ((now.epoch % 2) * comm_.size() + source.index()) * layout_.message_bytes;
  }
  [[nodiscard]] std::size_t refusal_at(const operation& now, rank_id source) const noexcept {
    return layout_.refusals + ((now.epoch % 2) * comm_.size() + source.index()) * cache_line_bytes;
  }
  [[nodiscard]] std::byte* local(std::size_t offset) const noexcept {
    return memory_.local().data() + offset;
  }
  [[nodiscard]] std::byte* message(const operation& now, rank_id source) const noexcept {
    return local(message_at(now, source));
  }
  [[nodiscard]] std::span<const std::uint32_t> counts_of(const operation& now,
                                                         rank_id source) const noexcept {
    return {reinterpret_cast<const std::uint32_t*>(message(now, source) +
                                                   exchange_layout::header_bytes),
            config_.experts};
  }
  [[nodiscard]] signal_id signal_of(phase which, rank_id source) const noexcept {
    return static_cast<signal_id>(static_cast<std::size_t>(which) * comm_.size() + source.index());
  }
  /// The peers from the next rank round, so that not all ranks visit the same one at once.
  template <class Visit>
  void for_each_peer(Visit&& visit) const {
    for (std::size_t step = 1; step < comm_.size(); ++step)
      visit(rank_id{(comm_.rank().index() + step) % comm_.size()});
  }

  // --- the phases ------------------------------------------------------------------------------

  void post_counts(const operation& now, const refusal& mine) {
    const std::size_t at = message_at(now, comm_.rank());
    std::size_t bytes = post_verdict(now, mine, at);
    if (!mine) {
      const auto counts = std::as_bytes(plan_.counts());
      bytes = exchange_layout::header_bytes;
      std::memcpy(local(at + bytes), counts.data(), counts.size());
      bytes += counts.size();
    }
    for_each_peer([&](rank_id peer) {
      require(now, memory_.put_signal(peer, at, memory_.local().subspan(at, bytes),
                                      signal_of(phase::counts, comm_.rank()), now.epoch));
    });
  }

  void post_refusal(const operation& now, const refusal& mine) {
    const std::size_t at = refusal_at(now, comm_.rank());
    const std::size_t bytes = post_verdict(now, mine, at);
    for_each_peer([&](rank_id peer) {
      require(now, memory_.put(peer, at, memory_.local().subspan(at, bytes)));
    });
  }

  std::size_t post_verdict(const operation& now, const refusal& mine, std::size_t at) {
    static_assert(sizeof(verdict) <= exchange_layout::header_bytes);
    const verdict said{now.epoch, mine};
    std::memcpy(local(at), &said, sizeof said);
    return sizeof said;
  }

  void signal_peers(const operation& now, phase which) {
    for_each_peer([&](rank_id peer) {
      require(now, memory_.signal(peer, signal_of(which, comm_.rank()), now.epoch));
    });
  }

  void await_peers(const operation& now, phase which) {
    for_each_peer([&](rank_id peer) {
      const errc code = memory_.wait(signal_of(which, peer), now.epoch, now.until, peer);
      if (code != errc::ok) fail_waiting(now, which, code);
    });
  }

  /// Throws if any rank refuses `now`. All ranks see the same refusals, so all throw or none.
  template <class VerdictOf>
  void refuse_if_any(const operation& now, const refusal& mine, VerdictOf&& verdict_of) {
    if (mine) throw error{errc::invalid_argument, title(now) + " was given " + describe(mine)};
    for (const rank_id peer : comm_.ranks()) {
      if (peer == comm_.rank()) continue;
      verdict said;
      std::memcpy(&said, verdict_of(peer), sizeof said);
      if (said.epoch != now.epoch || !said.why) continue;
      throw error{errc::refused, peerbus::detail::concat(title(now), " did not happen: ", peer,
                                                         " was given ", describe(said.why))};
    }
  }

  [[nodiscard]] refusal check_combine(const received<Codec>& rows,
                                      std::span<bf16> out) const noexcept {
    const auto wrong = [](refusal_reason reason, std::uint64_t given,
                          std::uint64_t expected) noexcept {
      return refusal{
          reason, 0, 0, 0, static_cast<std::int64_t>(given), static_cast<std::int64_t>(expected)};
    };
    if (rows.experts().data() != views_.data())
      return wrong(refusal_reason::foreign_rows, rows.ticket(), latest_);
    if (rows.ticket() != latest_ || latest_ == 0)
      return wrong(refusal_reason::stale_rows, rows.ticket(), latest_);
    const std::size_t expected = plan_.tokens() * config_.hidden;
    if (out.size() != expected) return wrong(refusal_reason::out_size, out.size(), expected);
    if (out.data() == nullptr && expected != 0)
      return wrong(refusal_reason::null_out, expected, expected);
    return {};
  }

  [[nodiscard]] received<Codec> publish() {
    const auto arrivals = plan_.arrivals();
    const std::size_t ranks = comm_.size();
    const std::size_t first = plan_.placement().first(comm_.rank());
    views_.clear();
    for (std::size_t e = 0; e < plan_.placement().count(comm_.rank()); ++e) {
      const std::size_t row = arrivals[e * ranks];
      views_.emplace_back(
          first + e, config_.hidden, codec_,
          typename expert_rows<Codec>::memory{
              local(layout_.rows + row * Codec::row_bytes(config_.hidden)),
              local(layout_.scales + row * Codec::scale_bytes(config_.hidden)),
              reinterpret_cast<const std::uint32_t*>(local(layout_.origins)) + row,
              reinterpret_cast<bf16*>(local(layout_.outputs)) + row * config_.hidden,
              arrivals.subspan(e * ranks, ranks + 1)});
    }
    return {views_, arrivals.back(), latest_};
  }

  // --- failures --------------------------------------------------------------------------------

  static std::string title(const operation& now) {
    return peerbus::detail::concat(now.name, " ", now.epoch);
  }

  void require(const operation& now, errc code) {
    if (code != errc::ok) comm_.fail(code, title(now) + " failed in the middle");
  }

  [[noreturn]] void fail_waiting(const operation& now, phase which, errc code) {
    constexpr std::array names{"counts", "rows", "outputs"};
    std::string text = peerbus::detail::concat(title(now), ": waited for ",
                                               names[static_cast<std::size_t>(which)]);
    std::size_t named = 0;
    for (const rank_id peer : comm_.ranks()) {
      const std::uint64_t seen = memory_.value(signal_of(which, peer));
      if (peer == comm_.rank() || seen >= now.epoch) continue;
      text += peerbus::detail::concat(named++ == 0 ? " of " : ", ", peer, " (epoch ", seen,
                                      ", expected ", now.epoch, ")");
    }
    if (const auto gone = comm_.missing(); !gone.empty()) text += "; " + gone;
    comm_.fail(code, text);
  }

  communicator<Transport>& comm_;
  exchange_config config_;
  exchange_layout layout_;
  window<Transport> memory_;
  dispatch_plan plan_;
  rows_type rows_;
  [[no_unique_address]] Codec codec_;
  std::vector<expert_rows<Codec>> views_;
  std::uint64_t dispatches_ = 0;
  std::uint64_t combines_ = 0;
  std::uint64_t latest_ = 0;
};

}  // namespace peerbus::moe
