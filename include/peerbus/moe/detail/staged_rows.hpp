// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/batch_input.hpp>
#include <peerbus/moe/detail/home_order.hpp>
#include <peerbus/moe/detail/row_columns.hpp>
#include <peerbus/moe/detail/sum_copies.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan.hpp>
#include <peerbus/moe/staging_map.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe::detail {

/// Moves rows over transports whose peers' memory can only be put to: tokens are encoded into the
/// sender's own window and put from there; outputs are put from where the experts wrote them into
/// slots [token, copy] of their home rank, and summed there. Same bytes as `direct_rows`.
///
/// Puts to one peer go in the order of their destinations, so that a transport may join those that
/// continue each other. Nothing is flushed: what a batch's puts read is written again only after
/// signals of the peers that prove their delivery (docs/memory_model.md).
template <transport Transport, token_codec Codec>
class staged_rows {
 public:
  static constexpr road way = road::staged;

  staged_rows(communicator<Transport>& comm, window<Transport>& memory, const memory_map& map,
              outputs_at, Codec codec)
      : comm_{&comm}, memory_{&memory}, map_{map}, columns_{map}, codec_{codec} {}

  /// None: there is no address to store an output at another rank.
  [[nodiscard]] std::span<std::byte* const> homes(std::size_t) const noexcept { return {}; }

  /// Encodes this lane's share of the tokens. All lanes have done so before any calls `send`.
  void stage(const batch_input<token_of<Codec>>& input, const dispatch_plan& plan, std::size_t set,
             lane as) const noexcept {
    const staging_map& at = map_.staged;
    const lane::range mine = as.share(plan.tokens());
    for (std::size_t t = mine.begin; t < mine.end; ++t) {
      const auto places = plan.places(t);
      if (std::none_of(places.begin(), places.end(), [](auto& place) { return place.sent(); }))
        continue;
      codec_.encode(input.tokens.subspan(t * map_.hidden, map_.hidden),
                    entry(set, at.rows, t, map_.format.row_bytes),
                    entry(set, at.scales, t, map_.format.scale_bytes));
      for (std::size_t a = 0; a < max_attachments; ++a)
        if (const std::size_t bytes = map_.attachment_bytes[a]; !staging_map::packs(bytes))
          std::memcpy(entry(set, at.attachments[a], t, bytes).data(),
                      input.attached[a].data() + t * bytes, bytes);
    }
  }

  /// Puts this lane's share of the copies to their places. Visible at a peer after the next signal
  /// to it.
  [[nodiscard]] errc send(const batch_input<token_of<Codec>>& input, const dispatch_plan& plan,
                          std::size_t set, lane as) noexcept {
    const batch_of_copies batch{input, plan, set};
    return share_out(
        plan.sorted().size(), as, [&](rank_id to) noexcept { return plan.sorted_to(to); },
        [&](rank_id to, lane::range share) noexcept {
          if (to != comm_->rank()) return send_to(to, batch, share);
          keep(batch, share);
          return errc::ok;
        });
  }

  /// Finds the order of `push`. Lane 0 does so before the others come.
  void sort_outputs(home_order& order, const dispatch_plan& plan, std::size_t set) const noexcept {
    order.sort(plan, comm_->rank(), entry(set, map_.origins, 0, 0).data());
  }

  /// Puts the outputs of this lane's share of the rows that came from other ranks into their slots
  /// there. Visible at a peer after the next signal to it.
  [[nodiscard]] errc push(const home_order& order, std::size_t set, lane as) noexcept {
    return share_out(
        order.rows().size(), as, [&](rank_id home) noexcept { return order.to(home); },
        [&](rank_id home, lane::range share) noexcept {
          for (std::size_t i = share.begin; i < share.end; ++i)
            if (const errc code = push_row(home, set, order.rows()[i]); code != errc::ok)
              return code;
          return errc::ok;
        });
  }

  /// Waits until what `push` sent has arrived, so that it may be written and sent again. For
  /// combines that turn out refused.
  [[nodiscard]] errc settle() noexcept {
    for (const rank_id peer : comm_->peers())
      if (const errc code = memory_->flush(peer); code != errc::ok) return code;
    return comm_->bus().quiet();
  }

  /// `sum_copies` with the outputs where they came to lie, for this lane's share of tokens.
  [[nodiscard]] errc sum(const dispatch_plan& plan, std::size_t set, const combine_sum& wanted,
                         lane as) const noexcept {
    const std::size_t bytes = map_.output_bytes();
    sum_copies(plan, map_.hidden, wanted, as, [&](std::size_t t, std::size_t slot) noexcept {
      const row_place& place = plan.places(t)[slot];
      const std::byte* const output =
          rank_id{place.rank} == comm_->rank()
              ? entry(set, map_.outputs, place.row, bytes).data()
              : entry(set, map_.staged.returned, t * map_.copies + slot, bytes).data();
      return reinterpret_cast<const bf16*>(output);
    });
    return errc::ok;
  }

 private:
  struct batch_of_copies {
    const batch_input<token_of<Codec>>& input;
    const dispatch_plan& plan;
    std::size_t set;
  };

  /// Deals out `all` items, of which `range_of(rank)` is each rank's part, to the lanes in the
  /// order in which they leave: by peers as the communicator visits them, then this rank's own,
  /// while the others are on their way. Calls `visit(rank, range)` for this lane's part of each.
  template <class RangeOf, class Visit>
  [[nodiscard]] errc share_out(std::size_t all, lane as, RangeOf&& range_of,
                               Visit&& visit) const noexcept {
    const lane::range mine = as.share(all);
    std::size_t passed = 0;
    const auto visit_share = [&](rank_id rank) noexcept {
      const auto [begin, end] = range_of(rank);
      const std::size_t before = passed;
      passed += end - begin;
      const std::size_t from = std::clamp(mine.begin, before, passed) - before;
      const std::size_t to = std::clamp(mine.end, before, passed) - before;
      return visit(rank, lane::range{begin + from, begin + to});
    };
    for (const rank_id peer : comm_->peers())
      if (const errc code = visit_share(peer); code != errc::ok) return code;
    return visit_share(comm_->rank());
  }

  /// Entry `i` of an array of this rank's window, at its offset within a batch set.
  [[nodiscard]] std::span<std::byte> entry(std::size_t set, std::size_t array, std::size_t i,
                                           std::size_t bytes) const noexcept {
    return memory_->local().subspan(set * map_.set_bytes + array + i * bytes, bytes);
  }

  // --- dispatch --------------------------------------------------------------------------------

  /// Puts the copies sorted()[share], all of them for one rank.
  [[nodiscard]] errc send_to(rank_id to, const batch_of_copies& batch, lane::range share) noexcept {
    const auto copies = batch.plan.sorted();
    for (std::size_t i = share.begin; i < share.end;) {
      // As far as rows continue each other there.
      const std::uint32_t row = batch.plan.place_of(copies[i]).row;
      std::size_t end = i + 1;
      while (end < share.end && batch.plan.place_of(copies[end]).row == row + (end - i)) ++end;
      for (const row_column& column : columns_) {
        const errc code = column.packed ? put_packed(to, column, batch, {i, end}, row)
                                        : put_rows(to, column, batch, {i, end}, row);
        if (code != errc::ok) return code;
      }
      i = end;
    }
    return errc::ok;
  }

  [[nodiscard]] errc put_rows(rank_id to, const row_column& column, const batch_of_copies& batch,
                              lane::range run, std::size_t row) noexcept {
    std::size_t offset = batch.set * map_.set_bytes + column.received + row * column.bytes;
    for (std::size_t i = run.begin; i < run.end; ++i, offset += column.bytes) {
      const std::size_t token = batch.plan.sorted()[i] / map_.copies;
      const auto staged = entry(batch.set, column.staged, token, column.bytes);
      if (const errc code = memory_->put(to, offset, staged); code != errc::ok) return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc put_packed(rank_id to, const row_column& column, const batch_of_copies& batch,
                                lane::range run, std::size_t row) noexcept {
    const std::size_t begin = batch.set * map_.set_bytes + column.staged + run.begin * column.bytes;
    const auto all = memory_->local().subspan(begin, (run.end - run.begin) * column.bytes);
    for (std::size_t i = run.begin; i < run.end; ++i)
      write(column, batch, batch.plan.sorted()[i],
            all.subspan((i - run.begin) * column.bytes, column.bytes));
    return memory_->put(to, batch.set * map_.set_bytes + column.received + row * column.bytes, all);
  }

  /// Copies that stay on this rank go where they are read: no signal to oneself would say when a
  /// put has arrived.
  void keep(const batch_of_copies& batch, lane::range share) const noexcept {
    for (std::size_t i = share.begin; i < share.end; ++i) {
      const auto copy = batch.plan.sorted()[i];
      const std::size_t row = batch.plan.place_of(copy).row;
      for (const row_column& column : columns_)
        write(column, batch, copy, entry(batch.set, column.received, row, column.bytes));
    }
  }

  /// What `column` has of a copy.
  void write(const row_column& column, const batch_of_copies& batch, std::uint32_t copy,
             std::span<std::byte> to) const noexcept {
    const std::size_t token = copy / map_.copies;
    const auto staged = [&](std::size_t array) noexcept {
      std::memcpy(to.data(), entry(batch.set, array, token, to.size()).data(), to.size());
    };
    const auto slots = [&](auto&& value_of) noexcept {
      const rank_id rank{batch.plan.place_of(copy).rank};
      batch.plan.for_slots(token, rank, [&](std::size_t k, std::int32_t local, float weight) {
        const auto value = value_of(local, weight);
        std::memcpy(to.data() + k * sizeof value, &value, sizeof value);
      });
    };
    switch (column.what) {
      case row_part::row: return staged(map_.staged.rows);
      case row_part::scales: return staged(map_.staged.scales);
      case row_part::origin: {
        const wire_origin from{static_cast<std::uint32_t>(token),
                               static_cast<std::uint16_t>(comm_->rank().index()),
                               static_cast<std::uint16_t>(copy % map_.copies)};
        std::memcpy(to.data(), &from, sizeof from);
        return;
      }
      case row_part::experts: return slots([](std::int32_t local, float) { return local; });
      case row_part::weights: return slots([](std::int32_t, float weight) { return weight; });
      case row_part::attachment:
        std::memcpy(to.data(), batch.input.attached[column.number].data() + token * to.size(),
                    to.size());
        return;
    }
  }

  // --- combine ---------------------------------------------------------------------------------

  [[nodiscard]] wire_origin origin(std::size_t set, std::size_t row) const noexcept {
    wire_origin from;
    std::memcpy(&from, entry(set, map_.origins, row, sizeof from).data(), sizeof from);
    return from;
  }

  [[nodiscard]] errc push_row(rank_id home, std::size_t set, std::size_t row) noexcept {
    const wire_origin from = origin(set, row);
    const std::size_t bytes = map_.output_bytes();
    const std::size_t slot = from.token * map_.copies + from.slot;
    return memory_->put(home, set * map_.set_bytes + map_.staged.returned + slot * bytes,
                        entry(set, map_.outputs, row, bytes));
  }

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  memory_map map_;
  row_columns columns_;
  [[no_unique_address]] Codec codec_;
};

}  // namespace peerbus::moe::detail
