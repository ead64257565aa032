// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/token_index.hpp>

#include "erased_exchange.hpp"
#include "instances.hpp"
#include "places.hpp"

namespace peerbus::c_library {

static_assert(sizeof(peerbus_origin) == sizeof(moe::wire_origin) &&
              offsetof(peerbus_origin, rank) == offsetof(moe::wire_origin, rank) &&
              offsetof(peerbus_origin, slot) == offsetof(moe::wire_origin, slot));
static_assert(sizeof(peerbus_row_use) == sizeof(moe::row_use) &&
              offsetof(peerbus_row_use, slot) == offsetof(moe::row_use, slot));
static_assert(PEERBUS_ATTACHMENTS == moe::max_attachments);

/// An exchange with a codec and a layout.
template <token_codec Codec, moe::row_layout Layout>
class exchange_of final : public erased_exchange {
  using exchange = moe::exchange<bus, Codec, Layout>;
  using received_type = typename exchange::received_type;
  using token = typename exchange::token;

 public:
  exchange_of(const exchange_request& request, Layout layout)
      : moe_{request.comm, request.config, Codec{}, layout, request.until},
        rank_{request.comm.rank()},
        ranks_{request.comm.size()},
        batches_{entries()} {}

  peerbus_received dispatch(const peerbus_dispatch_args& args) override {
    return keep(with_input(
        args, [&](const input& in) { return moe_.dispatch(in.tokens, in.route, in.options); }));
  }
  std::uint64_t dispatch_send(const peerbus_dispatch_args& args) override {
    return with_input(
               args,
               [&](const input& in) { return moe_.dispatch_send(in.tokens, in.route, in.options); })
        .number;
  }
  peerbus_received dispatch_recv(std::uint64_t ticket, std::int64_t* waited,
                                 std::optional<deadline> until) override {
    return keep(
        moe_.dispatch_recv(ticket_of(ticket), {.until = until, .waited = per_rank(waited)}));
  }
  void combine(std::uint64_t ticket, const peerbus_combine_args& args) override {
    const received_type& rows = rows_of(ticket, "combine");
    std::optional<error> problem;
    moe::combine_options options{.until = deadline_of(args.timeout_ns),
                                 .refuse = args.refuse != 0,
                                 .attached = args.attached != 0,
                                 .waited = per_rank(args.waited_ns)};
    std::span<bf16> out;
    try {
      out = out_of(args);
      options.terms = terms_of(args);
    } catch (const error& found) {
      problem = found;
      options.refuse = true;
    }
    explained(problem, [&] { moe_.combine(rows, out, options); });
  }
  void combine_send(std::uint64_t ticket, const peerbus_combine_args& args) override {
    moe_.combine_send(rows_of(ticket, "combine_send"), {.until = deadline_of(args.timeout_ns),
                                                        .refuse = args.refuse != 0,
                                                        .attached = args.attached != 0});
  }
  void combine_recv(std::uint64_t ticket, const peerbus_combine_args& args) override {
    moe_.combine_recv(rows_of(ticket, "combine_recv"), out_of(args),
                      {.until = deadline_of(args.timeout_ns),
                       .terms = terms_of(args),
                       .waited = per_rank(args.waited_ns)});
  }

  void* output(std::uint64_t ticket, std::uint64_t row) override {
    require_row(ticket, row);
    const moe::set_view set = set_of(ticket, moe_.memory().local().data());
    if (!moe_.map().outputs_home) return set.output(row);
    const moe::wire_origin& home = *set.origin(row);
    return home_of(ticket, home).home_slot(home.token, home.slot);
  }
  void* output_attachment(std::uint64_t ticket, std::uint64_t row) override {
    require_row(ticket, row);
    require(moe_.map().output_attachment_bytes != 0, "output_attachment of the exchange is 0");
    const moe::set_view set = set_of(ticket, moe_.memory().local().data());
    const moe::wire_origin& home = *set.origin(row);
    return home_of(ticket, home).returned_attachment(home.token, home.slot);
  }
  void decode(std::uint64_t ticket, std::uint64_t row, float* values) override {
    require_row(ticket, row);
    require(values != nullptr, "values is NULL");
    const moe::set_view set = set_of(ticket, moe_.memory().local().data());
    const moe::row_format format = moe_.map().format;
    Codec{}.decode(std::span{set.row(row), format.row_bytes},
                   std::span{set.scales(row), format.scale_bytes},
                   std::span{values, moe_.map().hidden});
  }
  std::span<const std::byte> note(std::uint64_t ticket, rank_id source) override {
    return moe_.note(ticket_of(ticket), source);
  }
  const void* returned_attachment(std::uint64_t ticket, std::size_t token_index, std::size_t copy,
                                  rank_id rank) override {
    const moe::ticket dispatched = ticket_of(ticket);
    if (!moe_.attached_by(dispatched, rank)) return nullptr;
    require(token_index < moe_.config().max_tokens && copy < moe_.map().copies,
            "token or copy is beyond those that an exchange of this configuration has");
    return moe_.returned_attachment(dispatched, token_index, copy).data();
  }
  [[nodiscard]] std::size_t bytes() const noexcept override { return moe_.map().total; }

 private:
  /// What this library keeps for a batch in flight. `rows` is empty until the first dispatch.
  struct batch {
    std::optional<received_type> rows;
    row_places places;
  };
  struct input {
    std::span<const token> tokens;
    moe::routing route;
    moe::dispatch_options options;
  };

  /// Returns an entry for each batch in flight.
  [[nodiscard]] std::vector<batch> entries() const {
    const std::size_t blocks =
        moe::layout_by_rank<Layout> ? 1 : moe_.placement().held_by(rank_).size();
    const std::vector<std::uint32_t> zeros(blocks * ranks_);
    std::vector<batch> all;
    for (std::size_t i = 0; i < moe_.config().in_flight; ++i)
      all.push_back({std::nullopt, {.first_rows = zeros, .counts = zeros}});
    return all;
  }

  [[nodiscard]] moe::ticket ticket_of(std::uint64_t number) const noexcept {
    return {number, &moe_};
  }
  [[nodiscard]] std::span<std::int64_t> per_rank(std::int64_t* values) const noexcept {
    return {values, values == nullptr ? 0 : ranks_};
  }

  /// Returns the rows of a batch that was received here. Throws: `error` invalid_argument if there
  /// are none.
  [[nodiscard]] const received_type& rows_of(std::uint64_t ticket, std::string_view call) {
    const batch& entry = batches_.of(ticket);
    if (!entry.rows || entry.rows->ticket().number != ticket)
      throw error{
          errc::invalid_argument,
          detail::concat(call, ": ticket ", ticket, " is not of a dispatch among the latest ",
                         batches_.size(), " that was received here")};
    return *entry.rows;
  }

  /// Calls `send` with the input that `args` describe. If they describe none, all ranks refuse, so
  /// that no rank waits for this one.
  template <class Send>
  auto with_input(const peerbus_dispatch_args& args, Send&& send) {
    input in{{},
             {std::span<const std::int32_t>{}, {}},
             {.until = deadline_of(args.timeout_ns),
              .refuse = args.refuse != 0,
              .waited = per_rank(args.waited_ns)}};
    std::optional<error> problem;
    try {
      read(args, in);
    } catch (const error& found) {
      problem = found;
      in.options.refuse = true;
    }
    return explained(problem, [&] { return send(in); });
  }
  void read(const peerbus_dispatch_args& args, input& in) const {
    const moe::exchange_config& config = moe_.config();
    require_countable(args.count, std::max(config.hidden, config.top_k), "count");
    require_aligned(args.tokens, alignof(token), "tokens");
    require_aligned(args.weights, alignof(float), "weights");
    require(args.expert_id_bits == 0 || args.expert_id_bits == 32 || args.expert_id_bits == 64,
            "expert_id_bits is neither 32 nor 64");
    const bool wide = args.expert_id_bits == 64;
    require_aligned(args.experts, wide ? 8 : 4, "experts");
    const std::size_t slots = args.count * config.top_k;
    const std::span weights{args.weights, slots};
    in.tokens = {static_cast<const token*>(args.tokens), args.count * config.hidden};
    in.route = wide ? moe::routing{std::span{static_cast<const std::int64_t*>(args.experts), slots},
                                   weights}
                    : moe::routing{std::span{static_cast<const std::int32_t*>(args.experts), slots},
                                   weights};
    for (std::size_t a = 0; a < moe::max_attachments; ++a) {
      require_countable(args.count, config.attachments[a], "count");
      in.options.attachments[a] = {static_cast<const std::byte*>(args.attachments[a]),
                                   args.count * config.attachments[a]};
    }
    if (args.note != nullptr)
      in.options.note = {static_cast<const std::byte*>(args.note), config.note_bytes};
  }

  [[nodiscard]] std::span<bf16> out_of(const peerbus_combine_args& args) const {
    require_countable(args.count, moe_.config().hidden, "count");
    require_aligned(args.out, alignof(bf16), "out");
    return {static_cast<bf16*>(args.out), args.count * moe_.config().hidden};
  }
  [[nodiscard]] moe::combine_terms terms_of(const peerbus_combine_args& args) const {
    const moe::exchange_config& config = moe_.config();
    require_countable(args.count, std::max(config.hidden, config.top_k), "count");
    require_aligned(args.weights, alignof(float), "weights");
    require_aligned(args.local, alignof(void*), "local");
    const std::size_t slots = args.count * config.top_k;
    moe::combine_terms terms;
    if (args.weights != nullptr) terms.weights = {args.weights, slots};
    for (std::size_t b = 0; b < terms.bias.size(); ++b) {
      require_aligned(args.bias[b], alignof(bf16), "bias");
      if (args.bias[b] != nullptr)
        terms.bias[b] = {static_cast<const bf16*>(args.bias[b]), args.count * config.hidden};
    }
    if (args.local != nullptr)
      terms.local = {reinterpret_cast<const bf16* const*>(args.local), slots};
    return terms;
  }

  /// Returns the set of the batch in the part of the window that begins at `part`.
  [[nodiscard]] moe::set_view set_of(std::uint64_t ticket, std::byte* part) {
    const auto* const rows =
        reinterpret_cast<const std::byte*>(moe_.columns(ticket_of(ticket)).rows().data());
    const auto begin = rows - moe_.memory().local().data();  // The same at all ranks.
    return {moe_.map(), part + begin - moe_.map().rows, 0};
  }
  [[nodiscard]] moe::set_view home_of(std::uint64_t ticket, const moe::wire_origin& home) {
    return set_of(ticket, moe_.memory().peer(rank_id{home.rank}).data());
  }

  /// Requires that the batch has a row of that number. Throws: `error` invalid_argument if it has
  /// not.
  void require_row(std::uint64_t ticket, std::uint64_t row) {
    static_cast<void>(rows_of(ticket, "row"));
    const auto& [first_rows, counts, rows, end] = batches_.of(ticket).places;
    // First rows ascend, and of those that are equal the last has the rows.
    const auto after = std::upper_bound(first_rows.begin(), first_rows.end(), row);
    const auto i = static_cast<std::size_t>(after - first_rows.begin());
    if (i == 0 || row - first_rows[i - 1] >= counts[i - 1])
      throw error{errc::invalid_argument, detail::concat("no row ", row, " has arrived")};
  }

  /// Notes the places of `rows` and returns them in C's form.
  peerbus_received keep(const received_type& rows) {
    batch& entry = batches_.of(rows.ticket().number);
    entry.rows = rows;
    entry.places.rows = 0;
    entry.places.end = 0;
    note_rows(entry.places, rows, ranks_);

    const moe::memory_map& map = moe_.map();
    const auto columns = rows.columns();
    const auto experts = moe_.placement().held_by(rank_);
    peerbus_received result{};
    result.by_rank = moe::layout_by_rank<Layout> ? 1 : 0;
    result.ticket = rows.ticket().number;
    result.rows = entry.places.rows;
    result.end = entry.places.end;
    result.row_capacity = map.row_capacity;
    result.ranks = ranks_;
    result.blocks = entry.places.counts.size() / ranks_;
    result.experts = experts.size();
    result.expert_ids = experts.data();
    result.first_rows = entry.places.first_rows.data();
    result.counts = entry.places.counts.data();
    result.row_data = columns.rows().data();
    result.row_bytes = map.format.row_bytes;
    if (map.format.scale_bytes != 0) result.scales = columns.template scales<std::byte>().data();
    result.scale_bytes = map.format.scale_bytes;
    if (!map.outputs_home) result.outputs = columns.outputs().data();
    for (std::size_t a = 0; a < moe::max_attachments; ++a)
      if (map.attachment_bytes[a] != 0) result.attachments[a] = columns.attachment(a).data();
    result.origins = reinterpret_cast<const peerbus_origin*>(
        set_of(result.ticket, moe_.memory().local().data()).origin(0));
    if constexpr (moe::layout_by_rank<Layout>) {
      result.slot_experts = columns.experts().data();
      result.slot_weights = columns.weights().data();
      const moe::expert_index index = rows.index();
      result.use_starts = index.starts.data();
      result.uses = reinterpret_cast<const peerbus_row_use*>(index.uses.data());
    }
    return result;
  }

  exchange moe_;
  rank_id rank_;
  std::size_t ranks_;
  moe::per_batch<batch> batches_;
};

/// Calls `with(layout)` with the layout of `request`. Throws: `error` invalid_argument if it does
/// not exist.
template <class With>
auto with_layout(const exchange_request& request, With&& with) {
  switch (request.layout) {
    case PEERBUS_COMPACT:
      return with(moe::compact{.alignment = request.alignment, .zero_gaps = request.zero_gaps});
    case PEERBUS_PADDED: return with(moe::padded{});
    case PEERBUS_RANK_MAJOR: return with(moe::rank_major{});
    case PEERBUS_SLOTS: return with(moe::slots{});
    case PEERBUS_EXPERT_SLOTS: return with(moe::expert_slots{});
    default:
      throw error{errc::invalid_argument,
                  detail::concat("layout is ", request.layout, ", expected 0 to 4")};
  }
}

/// Makes exchanges of any layout for a codec.
template <token_codec Codec>
std::unique_ptr<erased_exchange> make_exchange(const exchange_request& request) {
  return with_layout(request, [&](auto layout) -> std::unique_ptr<erased_exchange> {
    return std::make_unique<exchange_of<Codec, decltype(layout)>>(request, layout);
  });
}

}  // namespace peerbus::c_library
