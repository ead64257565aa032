// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/core/process_memory.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE private_reads::private_reads(page_exchange& pages, bool shares_cores,
                                            std::optional<std::size_t> least) noexcept
    : pages_{pages},
      has_trials_{!least},
      // Where a system call takes longer than two copies, no trial is needed.
      least_{least.value_or(std::size_t{8} << 10U)},
      shares_cores_{shares_cores} {}

PEERBUS_INLINE bool private_reads::are_assumed(const pattern& kind,
                                               std::size_t bytes) const noexcept {
  if (!has_trials_) return true;
  // Staging copies a row once for all its readers, and where ranks share cores, those share caches.
  const bool has_one_reader = kind.input_rows || kind.one_takes || pages_.group().size() == 2;
  return bytes >= std::size_t{32} << 10U && (has_one_reader || !shares_cores_);
}

PEERBUS_INLINE way_trials::running private_reads::choose(operation_kind what,
                                                         std::size_t bytes) noexcept {
  const pattern& kind = pattern_of(what);
  if (bytes < least_ || (swaps_rows(kind) && rows_were_in_place_)) return {};
  const std::uint8_t assumed = are_assumed(kind, bytes) ? 1 : 0;
  if (!has_trials_) return {.way = assumed};
  return pages_.trials().begin(what, bytes, assumed);
}

PEERBUS_INLINE read_choice private_reads::choice(operation_kind what,
                                                 std::size_t bytes) const noexcept {
  const pattern& kind = pattern_of(what);
  if (!are_offered(kind, bytes)) return {};
  const auto& found = pages_.trials().choice(what, bytes);
  if (!found.is_measured()) return {.reads_private = are_assumed(kind, bytes)};
  return {found.way() == 1, true, found.found(0), found.found(1)};
}

PEERBUS_INLINE std::uint64_t private_reads::offer(const pattern& kind,
                                                  const request& given) noexcept {
  if (swaps_rows(kind) && !given.output.empty() && given.is_in_place())
    return refusal_bit | rows_in_place;
  return reinterpret_cast<std::uintptr_t>(given.input.data());
}

PEERBUS_INLINE bool private_reads::take_offers(std::uint64_t round, const pattern& kind) noexcept {
  failure_.store(none, std::memory_order_relaxed);  // order: no reads are under way.
  std::uint64_t reasons = none;
  for (const rank_id rank : pages_.group().ranks()) {
    const std::uint64_t offered = pages_.notice(round, rank).offset;
    if (!is_offer(offered))
      reasons |= offered & ~refusal_bit;
    else  // An address of another process.
      pages_.operands()[rank.index()] =
          reinterpret_cast<std::byte*>(offered);  // NOLINT(performance-no-int-to-ptr)
  }
  if (swaps_rows(kind)) rows_were_in_place_ = (reasons & rows_in_place) != 0;
  return reasons == none;
}

PEERBUS_INLINE void private_reads::read(peerbus::detail::lane_pool& pool, std::byte* target,
                                        rank_id peer, const std::byte* address,
                                        std::size_t bytes) noexcept {
  constexpr std::size_t page_bytes = 4096;
  const auto source = reinterpret_cast<std::uintptr_t>(address);
  pool.share(bytes, page_bytes, [&](std::size_t, std::size_t begin, std::size_t end) {
    const errc code = pages_.get_private(peer, source + begin, {target + begin, end - begin});
    if (code == errc::ok) return;
    // order: relaxed; lanes meet before `tell`.
    failure_.fetch_or(code == errc::out_of_range ? not_there : not_permitted,
                      std::memory_order_relaxed);
  });
}

PEERBUS_INLINE void private_reads::tell(std::uint64_t round) noexcept {
  // order: relaxed; the lanes have met.
  pages_.notice_of_own(round).offset = failure_.load(std::memory_order_relaxed);
}

PEERBUS_INLINE void private_reads::give_up(std::uint64_t round) noexcept {
  std::atomic_ref{pages_.notice_of_own(round).offset}.store(gone, std::memory_order_relaxed);
  // order: seq_cst, before whatever the caller does to its operands next; pairs with the fence in
  // `find_failure`, which follows the reads of a peer.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

PEERBUS_INLINE private_reads::reason private_reads::find_failure(std::uint64_t round) noexcept {
  std::atomic_thread_fence(std::memory_order_acquire);  // order: see `give_up`.
  std::uint64_t reasons = none;
  for (const rank_id rank : pages_.group().ranks()) {
    auto& offset = const_cast<round_notice&>(pages_.notice(round, rank)).offset;  // Only loaded.
    reasons |= std::atomic_ref{offset}.load(std::memory_order_relaxed);
  }
  if ((reasons & not_permitted) != 0) is_forbidden_ = true;
  return static_cast<reason>(reasons);
}

PEERBUS_INLINE std::string private_reads::object_to(std::span<const std::byte> input) {
  if (peerbus::detail::is_mapped(input)) return {};
  return peerbus::detail::concat("an input of ", input.size(),
                                 " bytes of which not all are mapped memory");
}

PEERBUS_INLINE void private_reads::note_unreadable() noexcept {
  if (++unreadable_ == most_unreadable) is_forbidden_ = true;
}

}  // namespace peerbus::collective::detail
