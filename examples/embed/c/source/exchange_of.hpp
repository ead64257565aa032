// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
#include <peerbus/moe/log_choices.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/token_index.hpp>

#include "erased_exchange.hpp"
#include "exchange_input.hpp"
#include "instances.hpp"

namespace peerbus::c_library {

static_assert(sizeof(peerbus_row_use) == sizeof(moe::row_use) &&
              offsetof(peerbus_row_use, slot) == offsetof(moe::row_use, slot));

/// An exchange with a codec and a layout.
template <token_codec Codec, moe::row_layout Layout>
class exchange_of final : public erased_exchange {
  using exchange = moe::exchange<bus, Codec, Layout>;
  using received_type = typename exchange::received_type;
  using token = typename exchange::token;

 public:
  exchange_of(const exchange_request& request, Layout layout)
      : erased_exchange{request.comm, request.config.in_flight},
        moe_{request.comm, request.config, Codec{}, layout, request.until},
        rows_{std::vector<std::optional<received_type>>(moe_.config().in_flight)} {
    if (request.log) moe::log_choices(moe_, request.log);
  }

  peerbus_received dispatch(const peerbus_dispatch_args& args) override {
    const dispatch_input in = read_input(args, moe_.config(), sizeof(token), ranks());
    return keep(
        explained(in.problem, [&] { return moe_.dispatch(tokens_of(in), in.route, in.options); }));
  }
  std::uint64_t dispatch_send(const peerbus_dispatch_args& args) override {
    const dispatch_input in = read_input(args, moe_.config(), sizeof(token), ranks());
    return explained(in.problem,
                     [&] { return moe_.dispatch_send(tokens_of(in), in.route, in.options); })
        .number;
  }
  peerbus_received dispatch_recv(std::uint64_t ticket, std::int64_t* waited,
                                 std::optional<deadline> until) override {
    return keep(
        moe_.dispatch_recv(ticket_of(ticket), {.until = until, .waited = per_rank(waited)}));
  }
  void combine(std::uint64_t ticket, const peerbus_combine_args& args) override {
    const received_type& rows = rows_of(ticket, "combine");
    moe::combine_options options{.until = deadline_of(args.timeout_ns),
                                 .refuse = args.refuse != 0,
                                 .attached = args.attached != 0,
                                 .waited = per_rank(args.waited_ns)};
    std::span<bf16> out;
    call_or_refuse(
        [&] {
          out = read_out(args, moe_.config());
          options.terms = read_terms(args, moe_.config());
        },
        [&] { options.refuse = true; }, [&] { moe_.combine(rows, out, options); });
  }
  void combine_send(std::uint64_t ticket, const peerbus_combine_args& args) override {
    moe_.combine_send(rows_of(ticket, "combine_send"), {.until = deadline_of(args.timeout_ns),
                                                        .refuse = args.refuse != 0,
                                                        .attached = args.attached != 0});
  }
  bool awaits_combine(std::uint64_t ticket) override {
    return moe_.awaits_combine(ticket_of(ticket));
  }
  moe::completed_batches resume(const moe::resume_options& options) override {
    return moe_.resume(options);
  }
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const peerbus_replica_choice* replicas,
                       std::optional<deadline> until) override {
    moe::replica_choice choice;
    call_or_refuse(
        [&] {
          choice = read_choice(replicas, physical_to_logical.size(), moe_.placement().experts(),
                               ranks());
        },
        [&] { physical_to_logical = {}; },
        [&] { moe_.install_experts(physical_to_logical, choice, until); });
  }
  bool count_rows(std::uint64_t ticket, std::span<std::uint32_t> rows) override {
    return moe_.count_rows(ticket_of(ticket), rows);
  }
  void combine_recv(std::uint64_t ticket, const peerbus_combine_args& args) override {
    moe_.combine_recv(rows_of(ticket, "combine_recv"), read_out(args, moe_.config()),
                      {.until = deadline_of(args.timeout_ns),
                       .terms = read_terms(args, moe_.config()),
                       .waited = per_rank(args.waited_ns)});
  }
  [[nodiscard]] const moe::expert_map& experts() const noexcept override {
    return moe_.placement();
  }
  void decode(std::uint64_t ticket, std::uint64_t row, float* values) override {
    require_row(ticket, row);
    require(values != nullptr, "values is NULL");
    const moe::set_view set = set_of(ticket);
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
    if (!moe_.attached_by(ticket_of(ticket), rank)) return nullptr;
    require(token_index < moe_.config().max_tokens && copy < moe_.map().copies,
            "token or copy is beyond those that an exchange of this configuration has");
    return moe_.returned_attachment(ticket_of(ticket), token_index, copy).data();
  }

 private:
  [[nodiscard]] const moe::memory_map& map() const noexcept override { return moe_.map(); }
  [[nodiscard]] window<bus>& memory() noexcept override { return moe_.memory(); }
  [[nodiscard]] std::size_t sources() const noexcept override {
    const moe::relay_choice& chosen = moe_.relay();
    if (!chosen.relays) return ranks();
    const auto& groups = chosen.group_of;
    return static_cast<std::size_t>(
        std::count(groups.begin(), groups.end(), groups[rank().index()]));
  }
  [[nodiscard]] std::byte* first_row(std::uint64_t ticket) override {
    return reinterpret_cast<std::byte*>(moe_.columns(ticket_of(ticket)).rows().data());
  }

  [[nodiscard]] moe::ticket ticket_of(std::uint64_t number) const noexcept {
    return {number, &moe_};
  }
  [[nodiscard]] static std::span<const token> tokens_of(const dispatch_input& in) noexcept {
    return {static_cast<const token*>(in.tokens), in.values};
  }
  /// Returns the rows of a batch that was received here. Throws: `error` invalid_argument if there
  /// are none.
  [[nodiscard]] const received_type& rows_of(std::uint64_t ticket, std::string_view call) {
    static_cast<void>(received_places(ticket, call));
    return *rows_.of(ticket);
  }

  /// Keeps `rows`, notes their places and returns them in C's form.
  peerbus_received keep(const received_type& rows) {
    const std::uint64_t number = rows.ticket().number;
    rows_.of(number) = rows;
    const std::size_t blocks =
        moe::layout_by_rank<Layout> ? 1 : moe_.placement().held_by(rank()).size();
    note_rows(new_places(number, blocks), rows, sources());
    peerbus_received result = describe(number);
    if constexpr (moe::layout_by_rank<Layout>) {
      const moe::expert_index index = rows.index();
      result.use_starts = index.starts.data();
      result.uses = reinterpret_cast<const peerbus_row_use*>(index.uses.data());
    }
    return result;
  }

  exchange moe_;
  moe::per_batch<std::optional<received_type>> rows_;
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
                  concat("layout is ", request.layout, ", expected 0 to 4")};
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
