// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/path/share_out.hpp>
#include <peerbus/moe/path/staged_copies.hpp>
#include <peerbus/moe/plan/home_order.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/plan/staging_map.hpp>

namespace peerbus::moe {

PEERBUS_INLINE void staged_copies::stage_attachments(const row_path_batch& batch,
                                                     std::size_t t) const noexcept {
  for (std::size_t a = 0; a < max_attachments; ++a)
    if (const std::size_t bytes = map_->attachment_bytes[a]; !staging_map::packs(bytes))
      std::memcpy(own_set(batch.set).at(map_->staged.attachments[a], t, bytes),
                  batch.input.attached[a].data() + t * bytes, bytes);
}

PEERBUS_INLINE errc staged_copies::send(const row_path_batch& batch, lane caller,
                                        lane_meeting meet) {
  // The lanes meet because each lane puts tokens that other lanes have staged.
  meet([&] { batch.order->copies.sort(batch.leaving); });
  return share_out(
      caller, served_, [&](rank_id receiver) noexcept { return batch.order->copies.to(receiver); },
      [&](rank_id receiver, lane::range share) noexcept {
        if (receiver != own_rank_) return send_to(receiver, batch, share);
        keep(batch, share);
        return errc::ok;
      });
}

PEERBUS_INLINE errc staged_copies::publish(const row_path_batch& batch, lane caller,
                                           lane_meeting meet) {
  meet([&] { batch.order->outputs.sort(batch.arriving, served_.peers(), batch.origins); });
  return share_out(
      caller, served_, [&](rank_id home) noexcept { return batch.order->outputs.to(home); },
      [&](rank_id home, lane::range share) noexcept { return return_to(home, batch, share); });
}

PEERBUS_INLINE errc staged_copies::send_to(rank_id peer, const row_path_batch& batch,
                                           lane::range share) noexcept {
  const auto copies = batch.order->copies.all();
  put_list puts{*window_, peer, batch.set * map_->set_bytes};
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

PEERBUS_INLINE errc staged_copies::put_rows(put_list& puts, const row_column& column,
                                            const row_path_batch& batch, lane::range run,
                                            std::size_t row) const noexcept {
  std::size_t offset = column.received + row * column.bytes;
  for (std::size_t i = run.begin; i < run.end; ++i, offset += column.bytes) {
    const std::size_t token = batch.order->copies.all()[i] / map_->copies;
    const std::byte* const staged = own_set(batch.set).at(column.staged, token, column.bytes);
    if (const errc code = puts.add(offset, staged, column.bytes); code != errc::ok) return code;
  }
  return errc::ok;
}

PEERBUS_INLINE errc staged_copies::put_packed(put_list& puts, const row_column& column,
                                              const row_path_batch& batch, lane::range run,
                                              std::size_t row) const noexcept {
  const auto packed = [&](std::size_t i) noexcept {
    return own_set(batch.set).at(column.staged, i, column.bytes);
  };
  for (std::size_t i = run.begin; i < run.end; ++i)
    write(column, batch, batch.order->copies.all()[i], packed(i));
  return puts.add(column.received + row * column.bytes, packed(run.begin),
                  (run.end - run.begin) * column.bytes);
}

PEERBUS_INLINE void staged_copies::keep(const row_path_batch& batch,
                                        lane::range share) const noexcept {
  for (std::size_t i = share.begin; i < share.end; ++i) {
    const auto copy = batch.order->copies.all()[i];
    const std::size_t row = batch.leaving.place_of(copy).row;
    for (const row_column& column : columns_)
      write(column, batch, copy, own_set(batch.set).at(column.received, row, column.bytes));
  }
}

PEERBUS_INLINE void staged_copies::write(const row_column& column, const row_path_batch& batch,
                                         copy_order::copy_number copy,
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
                               static_cast<std::uint16_t>(own_rank_.index()),
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

PEERBUS_INLINE errc staged_copies::return_to(rank_id home, const row_path_batch& batch,
                                             lane::range share) noexcept {
  const auto rows = batch.order->outputs.rows().subspan(share.begin, share.end - share.begin);
  const set_view& set = own_set(batch.set);
  put_list puts{*window_, home, batch.set * map_->set_bytes};
  const bool coded = map_->logfmt_outputs && batch.attached;
  for (const std::uint32_t row : rows) {
    const auto* const output = reinterpret_cast<const std::byte*>(set.output(row));
    const std::size_t bytes = coded ? coded_output_bytes(set, row) : map_->output_bytes();
    const errc code = return_row(puts, batch.origins[row],
                                 {map_->staged.returned, map_->output_bytes()}, {output, bytes});
    if (code != errc::ok) return code;
  }
  // Attachments follow all outputs, so that puts to neighbouring slots follow each other.
  for (const std::uint32_t row : batch.attached ? rows : rows.first(0)) {
    const std::size_t bytes = map_->output_attachment_bytes;
    const errc code = return_row(puts, batch.origins[row], {map_->returned_attachments, bytes},
                                 {set.output_attachment(row), bytes});
    if (code != errc::ok) return code;
  }
  return puts.leave();
}

PEERBUS_INLINE std::size_t staged_copies::coded_output_bytes(const set_view& set,
                                                             std::size_t row) const noexcept {
  namespace logfmt10 = codec::logfmt10;
  return logfmt10::row_bytes({peerbus::detail::placed<logfmt10::head>(set.output_attachment(row)),
                              logfmt10::groups(map_->hidden)});
}

PEERBUS_INLINE errc staged_copies::return_row(put_list& puts, const wire_origin& origin,
                                              slots_home slots,
                                              std::span<const std::byte> source) const noexcept {
  const std::size_t slot = origin.token * map_->copies + origin.slot;
  return puts.add(slots.area + slot * slots.bytes, source.data(), source.size());
}

}  // namespace peerbus::moe
