// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/road/copy_order.hpp>
#include <peerbus/moe/road/encoded_token.hpp>
#include <peerbus/moe/road/home_order.hpp>
#include <peerbus/moe/road/put_list.hpp>
#include <peerbus/moe/road/rank_sets.hpp>
#include <peerbus/moe/road/row_columns.hpp>
#include <peerbus/moe/road/served_ranks.hpp>
#include <peerbus/moe/road/share_out.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/staging_map.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// The road for transports whose peers' memory can only be put to. The sender encodes tokens into
/// its own window and puts them from there. The rank of the expert puts outputs into the slots
/// [token, copy] of their home rank, which sums them. The bytes are those of `direct_road`.
///
/// Puts to one peer leave in the order of their destinations, so that a transport may join puts to
/// consecutive bytes. Only `settle` flushes. Otherwise the memory that the puts of a batch read is
/// written again only after signals of the peers that prove delivery (docs/memory_model.md).
template <transport Transport, token_codec Codec>
class staged_road {
 public:
  ///@{
  /// A member of the concept `row_road`, which states its contract.
  static constexpr road_memory needs{.stages = true, .outputs_may_be_home = false};
  /// The order in which the copies of a batch leave, and the order in which its outputs go home.
  struct batch_order {
    /// Allocates for the largest batch that `config` allows.
    batch_order(const exchange_config& config, const block_geometry& geometry, std::size_t ranks)
        : copies{config, geometry, ranks}, outputs{config, geometry, ranks} {}
    copy_order copies;   ///< the order in which copies leave
    home_order outputs;  ///< the order in which outputs go home
  };
  using batch_type = road_batch<token_of<Codec>, batch_order>;

  /// Makes a road that serves all ranks. Keeps references to `comm`, `memory` and `map`.
  staged_road(communicator<Transport>& comm, window<Transport>& memory, const memory_map& map,
              Codec codec)
      : staged_road{comm, memory, map, codec, [](rank_id) { return true; }} {}

  /// Makes a road that serves only the ranks for which `served(rank)` is true, and leaves out
  /// copies and outputs for others. Its `sum` must not be called, unless it serves all ranks.
  template <class Served>
  staged_road(communicator<Transport>& comm, window<Transport>& memory, const memory_map& map,
              Codec codec, Served&& served)
      : comm_{&comm},
        memory_{&memory},
        map_{&map},
        sets_{map, comm.size(),
              [&](rank_id rank) { return rank == comm.rank() ? memory.local().data() : nullptr; }},
        columns_{map},
        codec_{codec},
        served_{comm, std::forward<Served>(served)} {}

  /// Returns the sets of a batch: [ranks], empty for other ranks, whose memory has no address here.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return sets_.of(set);
  }

  template <class Meet>
  [[nodiscard]] errc send(const batch_type& batch, lane as, Meet&& meet) {
    if (served_.is_empty()) return errc::ok;  // The same in all lanes, so that none meets.
    stage(batch, as);
    // The lanes meet because each lane puts tokens that other lanes have staged.
    meet([&] { batch.order.copies.sort(batch.leaving); });
    return share_out(
        as, [this](auto&& call) noexcept { return served_.for_each(call); },
        [&](rank_id receiver) noexcept { return batch.order.copies.to(receiver); },
        [&](rank_id receiver, lane::range share) noexcept {
          if (receiver != comm_->rank()) return send_to(receiver, batch, share);
          keep(batch, share);
          return errc::ok;
        });
  }

  /// Returns token t as `send` has staged it in any lane, or empty if it has no copy to stage.
  [[nodiscard]] encoded_token staged(const batch_type& batch, std::size_t t) const noexcept {
    if (served_.is_empty() || !served_.carry_any(batch.leaving.places(t))) return {};
    const set_view& set = own_set(batch.set);
    return {set.at(map_->staged.rows, t, map_->format.row_bytes),
            set.at(map_->staged.scales, t, map_->format.scale_bytes)};
  }

  template <class Meet>
  [[nodiscard]] errc publish(const batch_type& batch, lane as, Meet&& meet) {
    if (served_.is_empty()) return errc::ok;
    meet([&] {
      batch.order.outputs.sort(batch.arriving, served_.peers(), own_set(batch.set).origin(0));
    });
    return share_out(
        as, [this](auto&& call) noexcept { return served_.for_each(call); },
        [&](rank_id home) noexcept { return batch.order.outputs.to(home); },
        [&](rank_id home, lane::range share) noexcept {
          const auto rows =
              batch.order.outputs.rows().subspan(share.begin, share.end - share.begin);
          const set_view& set = own_set(batch.set);
          put_list<Transport> puts{*memory_, home, batch.set * map_->set_bytes};
          for (const std::uint32_t row : rows) {
            const auto* const output = reinterpret_cast<const std::byte*>(set.output(row));
            const errc code =
                return_home(puts, set, row, map_->staged.returned, output, map_->output_bytes());
            if (code != errc::ok) return code;
          }
          // Attachments follow all outputs, so that puts to neighbouring slots follow each other.
          for (const std::uint32_t row : batch.attached ? rows : rows.first(0)) {
            const errc code =
                return_home(puts, set, row, map_->returned_attachments, set.output_attachment(row),
                            map_->output_attachment_bytes);
            if (code != errc::ok) return code;
          }
          return puts.leave();
        });
  }

  [[nodiscard]] errc settle() noexcept {
    for (const rank_id peer : comm_->peers())
      if (const errc code = memory_->flush(peer); code != errc::ok) return code;
    return comm_->bus().quiet();
  }

  [[nodiscard]] errc sum(const batch_type& batch, const combine_sum& wanted,
                         lane as) const noexcept {
    const set_view set = own_set(batch.set);
    sum_copies(batch, map_->hidden, wanted, as,
               [&](std::size_t t, std::size_t slot) noexcept -> const bf16* {
                 const row_place& place = batch.leaving.places(t)[slot];
                 if (rank_id{place.rank} == comm_->rank()) return set.output(place.row);
                 return set.returned(t, slot);
               });
    return errc::ok;
  }
  ///@}

 private:
  [[nodiscard]] const set_view& own_set(std::size_t set) const noexcept {
    return sets_.of(set)[comm_->rank().index()];
  }

  /// Stages this lane's share of the tokens: encodes the tokens of which this road carries a copy.
  void stage(const batch_type& batch, lane as) const noexcept {
    const staging_map& staging = map_->staged;
    const set_view set = own_set(batch.set);
    const lane::range share = as.share(batch.leaving.tokens());
    for (std::size_t t = share.begin; t < share.end; ++t) {
      if (!served_.carry_any(batch.leaving.places(t))) continue;
      const auto entry = [&](std::size_t area, std::size_t bytes) noexcept {
        return std::span{set.at(area, t, bytes), bytes};
      };
      codec_.encode(batch.input.tokens.subspan(t * map_->hidden, map_->hidden),
                    entry(staging.rows, map_->format.row_bytes),
                    entry(staging.scales, map_->format.scale_bytes));
      for (std::size_t a = 0; a < max_attachments; ++a)
        if (const std::size_t bytes = map_->attachment_bytes[a]; !staging_map::packs(bytes))
          std::memcpy(entry(staging.attachments[a], bytes).data(),
                      batch.input.attached[a].data() + t * bytes, bytes);
    }
  }

  /// Puts the copies of `share`, which all go to `peer`.
  [[nodiscard]] errc send_to(rank_id peer, const batch_type& batch, lane::range share) noexcept {
    const auto copies = batch.order.copies.all();
    put_list<Transport> puts{*memory_, peer, batch.set * map_->set_bytes};
    for (std::size_t i = share.begin; i < share.end;) {
      // A run ends where the rows at the receiver are not consecutive.
      const std::uint32_t row = batch.leaving.place_of(copies[i]).row;
      std::size_t end = i + 1;
      while (end < share.end && batch.leaving.place_of(copies[end]).row == row + (end - i)) ++end;
      for (const row_column& column : columns_) {
        const errc code = column.packed ? put_packed(puts, column, batch, {i, end}, row)
                                        : put_rows(puts, column, batch, {i, end}, row);
        if (code != errc::ok) return code;
      }
      i = end;
    }
    return puts.leave();
  }

  /// Puts one column of a run of copies from the staged entries of their tokens, from `row` on.
  [[nodiscard]] errc put_rows(put_list<Transport>& puts, const row_column& column,
                              const batch_type& batch, lane::range run,
                              std::size_t row) const noexcept {
    std::size_t offset = column.received + row * column.bytes;
    for (std::size_t i = run.begin; i < run.end; ++i, offset += column.bytes) {
      const std::size_t token = batch.order.copies.all()[i] / map_->copies;
      const std::byte* const staged = own_set(batch.set).at(column.staged, token, column.bytes);
      if (const errc code = puts.add(offset, staged, column.bytes); code != errc::ok) return code;
    }
    return errc::ok;
  }

  /// Packs one column of a run of copies, and sends it in one put, from `row` on.
  [[nodiscard]] errc put_packed(put_list<Transport>& puts, const row_column& column,
                                const batch_type& batch, lane::range run,
                                std::size_t row) const noexcept {
    const auto packed = [&](std::size_t i) noexcept {
      return own_set(batch.set).at(column.staged, i, column.bytes);
    };
    for (std::size_t i = run.begin; i < run.end; ++i)
      write(column, batch, batch.order.copies.all()[i], packed(i));
    return puts.add(column.received + row * column.bytes, packed(run.begin),
                    (run.end - run.begin) * column.bytes);
  }

  /// Stores the copies for this rank directly. No signal would tell it when its own puts arrive.
  void keep(const batch_type& batch, lane::range share) const noexcept {
    for (std::size_t i = share.begin; i < share.end; ++i) {
      const auto copy = batch.order.copies.all()[i];
      const std::size_t row = batch.leaving.place_of(copy).row;
      for (const row_column& column : columns_)
        write(column, batch, copy, own_set(batch.set).at(column.received, row, column.bytes));
    }
  }

  /// Writes the `column.bytes` bytes of a copy in `column` to `target`.
  void write(const row_column& column, const batch_type& batch, copy_order::copy_number copy,
             std::byte* target) const noexcept {
    const std::size_t token = copy / map_->copies;
    const auto staged = [&](std::size_t area) noexcept {
      std::memcpy(target, own_set(batch.set).at(area, token, column.bytes), column.bytes);
    };
    const auto slots = [&](auto&& value_of) noexcept {
      const rank_id rank{batch.leaving.place_of(copy).rank};
      batch.leaving.for_slots(token, rank, [&](std::size_t k, std::int32_t local, float weight) {
        const auto value = value_of(local, weight);
        std::memcpy(target + k * sizeof value, &value, sizeof value);
      });
    };
    switch (column.what) {
      case row_part::row: return staged(map_->staged.rows);
      case row_part::scales: return staged(map_->staged.scales);
      case row_part::origin: {
        const wire_origin origin{static_cast<std::uint32_t>(token),
                                 static_cast<std::uint16_t>(comm_->rank().index()),
                                 static_cast<std::uint16_t>(copy % map_->copies)};
        std::memcpy(target, &origin, sizeof origin);
        return;
      }
      case row_part::experts: return slots([](std::int32_t local, float) { return local; });
      case row_part::weights: return slots([](std::int32_t, float weight) { return weight; });
      case row_part::attachment:
        std::memcpy(target, batch.input.attached[column.number].data() + token * column.bytes,
                    column.bytes);
        return;
    }
  }

  /// Puts `bytes` bytes from `source` into the slot of `row` in the array at `area` of its home
  /// rank.
  [[nodiscard]] errc return_home(put_list<Transport>& puts, const set_view& set, std::size_t row,
                                 std::size_t area, const std::byte* source,
                                 std::size_t bytes) const noexcept {
    const wire_origin& origin = *set.origin(row);
    const std::size_t slot = origin.token * map_->copies + origin.slot;
    return puts.add(area + slot * bytes, source, bytes);
  }

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  const memory_map* map_;
  rank_sets sets_;
  row_columns columns_;
  [[no_unique_address]] Codec codec_;
  served_ranks served_;
};

}  // namespace peerbus::moe
