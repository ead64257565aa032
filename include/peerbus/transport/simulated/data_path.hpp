// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/simulated.hpp>

namespace peerbus {

namespace detail {

inline simulated_memory::simulated_memory(window_shape shape, std::uint32_t number)
    : rank{number},
      mapped_{align_up(shape.bytes, cache_line_bytes) + shape.signals * sizeof(std::uint64_t) + 1} {
  void* const start = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    throw error{errc::out_of_memory, concat("a simulated rank's part of ", mapped_, " bytes")};
  static_cast<void>(::madvise(start, mapped_, MADV_NOHUGEPAGE));
  data = static_cast<std::byte*>(start);
  signals = placed<std::uint64_t>(data + align_up(shape.bytes, cache_line_bytes));
  simulation::of_thread()->owners.emplace(start, rank);
}

inline std::shared_ptr<const simulated_parts> simulated_parts::over(
    window_shape shape, std::span<const std::shared_ptr<const simulated_memory>> memories) {
  auto made = std::make_shared<simulated_parts>();
  auto numbers = std::make_shared<std::vector<std::uint32_t>>();
  made->shape = shape;
  made->of.reserve(memories.size());
  numbers->reserve(memories.size());
  for (const auto& memory : memories) {
    made->of.push_back({memory->data, memory->signals, memory});
    numbers->push_back(memory->rank);
  }
  made->numbers = std::move(numbers);
  return made;
}

inline simulated_memory::~simulated_memory() {
  if (auto* const running = simulation::of_thread()) running->owners.erase(data);
  ::munmap(data, mapped_);
}

}  // namespace detail

inline simulated::window simulated::make_window(window_shape shape, deadline until) {
  bootstrap::contribution own_part;
  auto objection = detail::objection_to(shape);
  if (!objection)
    objection = objection_of("a window's memory", [&] {
      own_part.object =
          std::make_shared<const detail::simulated_memory>(shape, world_->clock.rank());
    });
  const auto all = gather_or_refuse(*boot_, "window", std::move(own_part), objection, until);
  std::vector<std::shared_ptr<const detail::simulated_memory>> memories;
  memories.reserve(all.size());
  for (const auto& from : all)
    memories.push_back(std::static_pointer_cast<const detail::simulated_memory>(from.object));
  // Ranks that are gone have none: in their place lies memory that nobody shares.
  const bool is_whole = std::ranges::all_of(memories, [](const auto& memory) { return !!memory; });
  auto parts = is_whole ? memories.front()->all.lock() : nullptr;
  if (!parts) {
    for (auto& memory : memories)
      if (!memory)
        memory = std::make_shared<const detail::simulated_memory>(shape, world_->clock.rank());
    parts = detail::simulated_parts::over(shape, memories);
    if (is_whole) memories.front()->all = parts;
  }
  numbers_ = parts->numbers;
  return window{std::move(parts), boot_->rank()};
}

inline std::uint32_t simulated::message_to(rank_id peer, const window& memory,
                                           detail::message_kind kind, bool has_cargo) noexcept {
  const std::uint32_t number = messages().fresh(has_cargo);
  detail::sim_message& made = messages()[number];
  made.kind = kind;
  made.from = world_->clock.rank();
  made.to = (*memory.parts_->numbers)[peer.index()];
  made.owner = memory.parts_;
  if (has_cargo) made.cargo->target = memory.parts_->of[peer.index()].data;
  return number;
}

inline errc simulated::put_run(rank_id peer, const window& memory,
                               std::span<const put_piece> pieces) noexcept {
  if (peer.index() >= memory.parts_->of.size()) return errc::out_of_range;
  std::size_t bytes = 0;
  for (const put_piece& piece : pieces) {
    if (!memory.parts_->holds(peer, piece.offset, piece.source.size())) return errc::out_of_range;
    bytes += piece.source.size();
  }
  if (pieces.empty()) return errc::ok;
  charge(costs().put_ns * static_cast<double>(pieces.size()));
  const std::uint32_t number = message_to(peer, memory, detail::message_kind::put);
  detail::sim_cargo& sent = *messages()[number].cargo;
  sent.pieces.assign(pieces.begin(), pieces.end());
  sent.requests = pieces.size();
  sent.bytes = bytes;
  messages().send(number);
  return errc::ok;
}

inline errc simulated::signal(rank_id peer, const window& memory, signal_id id,
                              std::uint64_t value) noexcept {
  if (!memory.parts_->has(peer, id)) return errc::out_of_range;
  charge(costs().signal_ns);
  const std::uint32_t number = message_to(peer, memory, detail::message_kind::put, false);
  detail::sim_message& sent = messages()[number];
  sent.has_signal = true;
  sent.word = &memory.parts_->of[peer.index()].signals[index(id)];
  sent.value = value;
  messages().send(number);
  return errc::ok;
}

inline errc simulated::put_signal(rank_id peer, const window& memory, std::size_t offset,
                                  std::span<const std::byte> source, signal_id id,
                                  std::uint64_t value) noexcept {
  if (!memory.parts_->has(peer, id) || !memory.parts_->holds(peer, offset, source.size()))
    return errc::out_of_range;
  charge(costs().put_ns + costs().signal_ns);
  const std::uint32_t number = message_to(peer, memory, detail::message_kind::put);
  detail::sim_message& sent = messages()[number];
  sent.cargo->pieces.assign(1, {offset, source});
  sent.cargo->requests = 1;
  sent.has_signal = true;
  sent.word = &memory.parts_->of[peer.index()].signals[index(id)];
  sent.value = value;
  sent.cargo->bytes = source.size() + sizeof value;
  messages().send(number);
  return errc::ok;
}

inline errc simulated::get(rank_id peer, const window& memory, std::size_t offset,
                           std::span<std::byte> target) noexcept {
  if (!memory.parts_->holds(peer, offset, target.size())) return errc::out_of_range;
  charge(costs().put_ns);
  const std::uint32_t number = message_to(peer, memory, detail::message_kind::get);
  detail::sim_cargo& sent = *messages()[number].cargo;
  sent.pieces.assign(1, {0, {sent.target + offset, target.size()}});
  sent.target = target.data();
  sent.asked = target.size();
  messages().send(number);
  return errc::ok;
}

inline errc simulated::fetch_add(rank_id peer, const window& memory, std::size_t offset,
                                 std::uint64_t addend, std::uint64_t& before) noexcept {
  if (!memory.parts_->holds(peer, offset, sizeof addend)) return errc::out_of_range;
  if (offset % sizeof addend != 0) return errc::invalid_argument;
  charge(costs().put_ns);
  bool done = false;
  const std::uint32_t number = message_to(peer, memory, detail::message_kind::add);
  detail::sim_message& sent = messages()[number];
  sent.value = addend;
  sent.cargo->target += offset;
  sent.cargo->result = &before;
  sent.cargo->done = &done;
  sent.cargo->bytes = sizeof addend;
  messages().send(number);
  return block([&done] { return done; });
}

inline errc simulated::wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                            std::optional<rank_id> awaited) noexcept {
  const detail::simulated_parts& parts = *memory.parts_;
  if (!parts.has(memory.own_rank_, id) || !parts.has(awaited.value_or(memory.own_rank_), id))
    return errc::out_of_range;
  const std::uint64_t& word = memory.own().signals[index(id)];
  const auto has_come = [&word, value] { return word >= value; };
  charge(costs().poll_ns);
  if (has_come()) return errc::ok;
  const detail::virtual_time end = detail::scheduler::time_of(until);
  for (;;) {
    const auto why = world_->clock.block(has_come, end);
    if (has_come()) return errc::ok;
    if (const errc health = boot_->members()->health(awaited); health != errc::ok) return health;
    if (why != detail::scheduler::wake::look) return errc::timed_out;
  }
}

inline std::uint64_t simulated::value(const window& memory, signal_id id) const noexcept {
  if (!memory.parts_->has(memory.own_rank_, id)) return 0;
  look();
  return memory.own().signals[index(id)];
}

inline std::byte* simulated::find_peer_memory(const window& memory, rank_id peer) const noexcept {
  const auto& numbers = *memory.parts_->numbers;
  const simulated_platform& platform = world_->options.platform;
  const bool is_near = platform.shared_level(numbers[memory.own_rank_.index()],
                                             numbers[peer.index()]) < platform.near_levels;
  return is_near ? memory.parts_->of[peer.index()].data : nullptr;
}

inline errc simulated::flush(rank_id peer) noexcept {
  if (peer.index() >= boot_->size()) return errc::out_of_range;
  if (numbers_ == nullptr) return errc::ok;
  return block([this, own = world_->clock.rank(), to = (*numbers_)[peer.index()]] {
    return messages().is_flushed(own, to);
  });
}

inline errc simulated::quiet() noexcept {
  return block([this, own = world_->clock.rank()] { return messages().is_quiet(own); });
}

}  // namespace peerbus
