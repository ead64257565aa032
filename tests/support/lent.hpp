// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

#include "support/ranks.hpp"

namespace test {

/// Memory of a rank that it lends to two windows, which lie side by side.
struct lent {
  static constexpr std::size_t part_bytes = 64;
  alignas(peerbus::cache_line_bytes) std::array<std::byte, 2 * part_bytes> data{};
  std::array<peerbus::signal_word, 2> signals;

  /// Returns the half for window `number`, 0 or 1, without its first `skipped` bytes.
  static peerbus::window_memory half(const std::shared_ptr<lent>& from, std::size_t number,
                                     std::size_t skipped = 0) {
    const auto data = std::span{from->data}.subspan(number * part_bytes, part_bytes);
    return {data.subspan(skipped), std::span{from->signals}.subspan(number, 1), from};
  }
};

/// Memory that rank 1 lends where no window can be is refused on all ranks. Then windows work.
template <peerbus::adopting_transport Transport>
void check_refused_memory(Transport& bus) {
  const bool is_wrong = bus.boot().rank() == peerbus::rank_id{1};
  const auto soon = [] { return peerbus::deadline::after(std::chrono::seconds{60}); };
  const auto own = std::make_shared<lent>();
  expect_error(peerbus::errc::invalid_argument, {"of 56 bytes at address", "multiple of 64"}, [&] {
    const auto skipped = lent::half(own, 0, 8);
    auto memory = lent::half(own, 0);
    memory.data = is_wrong ? skipped.data : memory.data.first(56);
    static_cast<void>(bus.adopt_window(memory, soon()));
  });
  expect_error(peerbus::errc::invalid_argument, {"of 64 bytes at address 0"}, [&] {
    auto memory = lent::half(own, 0);
    if (is_wrong) memory.data = {static_cast<std::byte*>(nullptr), lent::part_bytes};
    static_cast<void>(bus.adopt_window(memory, soon()));
  });
  auto made = bus.adopt_window(lent::half(own, 0), soon());
  expect(bus.local(made).data() == own->data.data(), "the memory that was lent");
  static_cast<void>(bus.boot().allgather({}, soon(), "adopted"));
}

}  // namespace test
