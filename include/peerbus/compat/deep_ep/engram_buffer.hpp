// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/agree_on.hpp>
#include <peerbus/compat/deep_ep/detail/one_sided_window.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// The entries that `engram_buffer::fetch` has read. T: tokens, K: entries of a token. The tensors
/// are views of `memory`.
struct engram_rows {
  tensor rows{};    ///< [T, K * hidden], of the type of the table
  tensor scales{};  ///< [T, K * S], of the type of the scales; none if the table has none
  std::shared_ptr<void> memory{};  ///< keeps the tensors valid
};

/// Tables of entries that all ranks store and each rank reads by number, as in DeepEP's
/// EngramBuffer. Entry i of a table with n entries on each rank is entry i % n of rank i / n.
///
/// Threads: one call at a time.
class engram_buffer {
 public:
  /// Makes a buffer without communicating and without memory. `comm` must outlive it.
  template <transport Transport>
  explicit engram_buffer(communicator<Transport>& comm) : make_window_{comm} {}

  /// Replaces the tables by the `storages` of all ranks. Collective. Each storage is [entries,
  /// hidden], with a type and sizes that are equal on all ranks. `sfs` is empty, or has the scales
  /// of each table: float32 or int32 [ranks * entries, S] for the entries of all ranks, which must
  /// stay valid and unchanged until the next write. `storages` may be reused on return. No rank
  /// returns before all ranks have written.
  /// Cost: one agreement between the ranks, a copy of the tables, and a signal to every rank. Makes
  /// a window if the present one is too small.
  /// Throws, on all ranks: `error` invalid_argument on the ranks whose arguments are bad and
  /// refused on the others, mismatch if types or sizes differ between ranks, or as
  /// `communicator::make_window`. The tables then stay as they were. Or timed_out, peer_dead or
  /// unreachable while ranks wait for each other, which poison the communicator.
  void write(std::span<const const_tensor> storages, std::span<const const_tensor> sfs = {},
             std::optional<deadline> until = std::nullopt) {
    constexpr std::string_view call = "engram_write";
    const deadline end = until.value_or(group().default_deadline());
    std::vector<table> made;
    // No rank reads the tables after this.
    detail::agree_on(group(), call, "storage", end, [&] {
      made = checked(call, storages, sfs);
      std::string text;
      for (const const_tensor& storage : storages) text += storage.describe() + " ";
      return text += sfs.empty() ? "without sf" : "with sf";
    });
    std::size_t entry_bytes = 0;
    for (const table& one : made) entry_bytes = std::max(entry_bytes, one.entry_bytes);
    const std::size_t bytes = made.back().end();
    make_room(bytes, make_window_.is_direct() ? 0 : std::max(entry_bytes, least_room), end);
    for (std::size_t i = 0; i < made.size(); ++i)
      std::memcpy(window_->local() + made[i].begin, storages[i].data(), made[i].bytes());
    tables_ = std::move(made);
    ++writes_;
    window_->meet(call, 0, writes_, end);
  }

  /// Reads the entries `indices`, int32 [T, K], of table `table_number`. The K entries of a token
  /// lie one after the other. With `use_tma_aligned_col_major_sf` the scales lie column by column,
  /// and each column takes a multiple of 16 bytes. No other rank takes part, and T may be 0.
  /// Cost: allocates the results. Copies each entry once. Entries of ranks that loads do not reach
  /// are first read into the window.
  /// Throws, on this rank alone: `error` invalid_argument if `indices` has another form or names no
  /// entry, or if the table was not written; unreachable, which poisons the communicator.
  [[nodiscard]] engram_rows fetch(const const_tensor& indices, std::size_t table_number = 0,
                                  bool use_tma_aligned_col_major_sf = false) {
    constexpr std::string_view call = "engram_fetch";
    group().require_healthy(call);
    const detail::argument ids{call, "indices"};
    ids.require(table_number < tables_.size(), "are of table ", table_number, " of ",
                tables_.size(), ", expected one that engram_write has written");
    const table& this_table = tables_[table_number];
    detail::require_form(ids, indices, {{dtype::int32}, {detail::any, detail::any}});
    const std::span<const std::int32_t> numbers = indices.values<std::int32_t>();
    const std::size_t total = group().size() * this_table.entries;
    for (const std::int32_t number : numbers)
      ids.require(number >= 0 && static_cast<std::size_t>(number) < total, "has ", number,
                  ", expected 0 to ", total - 1);
    const std::size_t tokens = indices.size(0);
    const std::size_t columns = indices.size(1);
    const std::size_t scale_rows = use_tma_aligned_col_major_sf ? align_up(tokens, 4) : tokens;
    const std::size_t scale_columns = this_table.scales ? columns * this_table.scales.size(1) : 0;
    const std::size_t row_bytes = align_up(numbers.size() * this_table.entry_bytes, scale_bytes);
    const auto memory = std::make_shared<std::vector<std::byte>>(
        row_bytes + scale_rows * scale_columns * scale_bytes);
    read_entries(call, this_table, numbers, memory->data());
    engram_rows made{
        .rows = {memory->data(), this_table.type, {tokens, columns * this_table.hidden}},
        .scales = {},
        .memory = memory};
    if (!this_table.scales) return made;
    made.scales =
        use_tma_aligned_col_major_sf
            ? tensor{memory->data() + row_bytes,
                     this_table.scales.type(),
                     {tokens, scale_columns},
                     {1, scale_rows}}
            : tensor{memory->data() + row_bytes, this_table.scales.type(), {tokens, scale_columns}};
    copy_scales(this_table.scales, numbers, columns, made.scales);
    return made;
  }

 private:
  static constexpr std::size_t scale_bytes = 4;
  static constexpr std::size_t least_room = std::size_t{1} << 16U;

  struct table {
    std::size_t begin;    ///< offset in the window, in bytes
    std::size_t entries;  ///< number of entries on each rank
    std::size_t entry_bytes;
    std::size_t hidden;
    dtype type;
    const_tensor scales;  ///< scales of the entries of all ranks, or none
    [[nodiscard]] std::size_t bytes() const noexcept { return entries * entry_bytes; }
    [[nodiscard]] std::size_t end() const noexcept {
      return align_up(begin + bytes(), cache_line_bytes);
    }
  };

  [[nodiscard]] rank_group& group() const noexcept { return make_window_.group(); }

  /// Checks the arguments of a write. Returns the tables that the write makes.
  [[nodiscard]] std::vector<table> checked(std::string_view call,
                                           std::span<const const_tensor> storages,
                                           std::span<const const_tensor> sfs) const {
    const detail::argument storage{call, "storage"};
    storage.require(!storages.empty(), "is none, expected at least one table");
    const detail::argument sf{call, "sf"};
    sf.require(sfs.empty() || sfs.size() == storages.size(), "has scales of ", sfs.size(),
               " tables, expected none or ", storages.size());
    std::vector<table> made;
    for (std::size_t i = 0; i < storages.size(); ++i) {
      const const_tensor& given = storages[i];
      storage.require(given.dims() == 2 && given.elements() != 0 && given.contiguous() &&
                          given.data() != nullptr,
                      "is ", given, ", expected [entries, hidden] without gaps");
      made.push_back({.begin = made.empty() ? 0 : made.back().end(),
                      .entries = given.size(0),
                      .entry_bytes = given.size(1) * bytes_of(given.type()),
                      .hidden = given.size(1),
                      .type = given.type(),
                      .scales = sfs.empty() ? const_tensor{} : sfs[i]});
      if (!sfs.empty())
        detail::require_form(
            sf, sfs[i],
            {{dtype::float32, dtype::int32}, {group().size() * given.size(0), detail::any}});
    }
    return made;
  }

  /// Makes a window with `bytes` bytes for tables and, behind them, `room` bytes for entries that
  /// are read. Does nothing if the present window is large enough.
  void make_room(std::size_t bytes, std::size_t room, deadline until) {
    if (window_ && bytes <= capacity_ && room <= room_bytes_) return;
    window_.emplace(make_window_(bytes + room, group().size(), until));
    capacity_ = bytes;
    room_bytes_ = room;
    writes_ = 0;
  }

  /// Copies the entries `numbers` of a table to `target`.
  void read_entries(std::string_view call, const table& this_table,
                    std::span<const std::int32_t> numbers, std::byte* target) {
    std::vector<std::byte*> far;  // The places for the entries that are on their way.
    const auto finish = [&] {
      if (far.empty()) return;
      window_->settle(call);
      for (std::size_t i = 0; i < far.size(); ++i)
        std::memcpy(far[i], window_->local() + capacity_ + i * this_table.entry_bytes,
                    this_table.entry_bytes);
      far.clear();
    };
    for (const std::int32_t number : numbers) {
      const auto entry = static_cast<std::size_t>(number);
      const rank_id owner{entry / this_table.entries};
      const std::size_t offset =
          this_table.begin + entry % this_table.entries * this_table.entry_bytes;
      if (const std::byte* const part = window_->part(owner)) {
        std::memcpy(target, part + offset, this_table.entry_bytes);
      } else {
        if ((far.size() + 1) * this_table.entry_bytes > room_bytes_) finish();
        window_->get(call, owner, offset,
                     {window_->local() + capacity_ + far.size() * this_table.entry_bytes,
                      this_table.entry_bytes});
        far.push_back(target);
      }
      target += this_table.entry_bytes;
    }
    finish();
  }

  /// Copies the scales of the entries `numbers`, `columns` for each token, to `target`.
  static void copy_scales(const const_tensor& scales, std::span<const std::int32_t> numbers,
                          std::size_t columns, const tensor& target) noexcept {
    const auto* const source = static_cast<const std::byte*>(scales.data());
    auto* const made = static_cast<std::byte*>(target.data());
    for (std::size_t i = 0; i < numbers.size(); ++i)
      for (std::size_t s = 0; s < scales.size(1); ++s) {
        const std::size_t column = i % columns * scales.size(1) + s;
        std::memcpy(
            made + (i / columns * target.stride(0) + column * target.stride(1)) * scale_bytes,
            source + (static_cast<std::size_t>(numbers[i]) * scales.stride(0) + s) * scale_bytes,
            scale_bytes);
      }
  }

  detail::window_maker make_window_;
  std::optional<detail::one_sided_window> window_;
  std::size_t capacity_ = 0;    ///< bytes of the window that are for tables
  std::size_t room_bytes_ = 0;  ///< bytes behind the tables, for entries in flight
  std::uint64_t writes_ = 0;    ///< number of writes to this window
  std::vector<table> tables_;
};

}  // namespace peerbus::deep_ep
