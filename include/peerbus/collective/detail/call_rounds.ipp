// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/stream.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE call::call(team& on, const call_header& header, const request& given,
                          const call_options& options, std::string objection)
    : on_{on},
      pages_{*on.pages_},
      until_{options.until},
      first_round_{on.round_ + 1},
      header_{header},
      input_{given.input.data()},
      input_in_{given.input_in},
      stream_least_{on.options().stream_bytes.value_or(~std::size_t{0})},
      // Larger pages of all ranks fill a cache, so that lines leave it before they are written
      // again. Plain stores are then faster. Of rooted operations one rank writes or reads alone.
      stream_end_{std::size_t{header.root == call_header::no_root ? 256U : 512U} << 10U} {
  // Loops that reduce read several pages at once, and gain nothing from streaming stores.
  if (header.reduction != short_text<8>{}) stream_end_ = 0;
  header_.offset = input_in_.offset;
  if (header_.place != operand_place::memory)
    header_.window = input_in_.number & call_header::window_mask;
  // All ranks decide alike, because they compare place and count. Where counts vary, a rank does
  // not know those of the others when it decides.
  const bool is_large =
      header_.count == call_header::varied ||
      header_.count * header_.element.bytes >= on.options().window_bytes.value_or(0);
  is_in_window_ = header_.place != operand_place::memory && is_large;
  require_ready(on, header.operation.view());
  if (options.as.count != on.crew_.lanes()) throw_lanes(options.as);
  ++on_.calls_;
  if (objection.empty() && input_in_.window != nullptr && input_in_.bus != on.windows_from_)
    objection = "an input in a window of another communicator than that of the team";
  on_.objection_ = std::move(objection);
}

PEERBUS_INLINE void call::require_ready(const team& on, std::string_view operation) {
  on.pages_->group().require_healthy(operation);
  if (on.pending_) throw_pending(on, operation);
}

PEERBUS_INLINE void call::end_first_leg() {
  if (!is_in_steps_) signal();
  on_.pending_ = header_.operation;
}

PEERBUS_INLINE void call::resume(const std::optional<deadline>& until) {
  on_.pending_.reset();
  pages_.group().require_healthy(header_.operation.view());
  leg_ = leg::second;
  if (until) until_ = until;
}

PEERBUS_ERROR_PATH void call::abandon() noexcept {
  on_.pending_.reset();
  try {
    pages_.group().poison(title() + " was started and never finished");
  } catch (...) {
    pages_.group().poison("not finished");  // So short that it takes no memory.
  }
}

PEERBUS_INLINE void call::offer(std::size_t page_at, std::size_t input_at,
                                std::size_t bytes) noexcept {
  if (is_in_window()) return;
  std::byte* const target = page() + page_at;
  const std::byte* const source = input_ + input_at;
  if (crew().lanes() != 1 || bytes < stream_least_ || bytes >= stream_end_)
    return copy(target, source, bytes);
  kernel::stream(kernel::best(), target, source, bytes);
  kernel::fence_streams();  // The release that publishes the page does not order them.
}

PEERBUS_INLINE void call::copy(std::byte* target, const std::byte* source,
                               std::size_t bytes) const noexcept {
  if (crew().lanes() == 1 || bytes < least_shared_bytes || target == source)
    return copy_bytes(target, source, bytes);
  crew().share(bytes, cache_line_bytes, [&](std::size_t, std::size_t begin, std::size_t end) {
    copy_bytes(target + begin, source + begin, end - begin);
  });
}

PEERBUS_INLINE void call::confirm(std::string_view objection) {
  first_round_ = on_.round_ + 1;
  if (objection.empty()) return;
  put_refusal(errc::mismatch, objection);
  signal();
  await_peers();
  throw_if_refused();
}

PEERBUS_INLINE void call::put(reach to_peer) {
  const std::uint64_t round = ++on_.round_;
  const bool is_first = round == first_round_;
  if (is_first) write_header();
  is_in_steps_ = false;
  is_signalled_ = false;
  if (const errc code = pages_.publish(round, is_first, to_peer); code != errc::ok)
    fail_waiting(code);
}

PEERBUS_INLINE void call::write_header() noexcept {
  std::memcpy(pages_.page(on_.round_), &header_, sizeof header_);
  pages_.notice_of_own(on_.round_).digest = digest_ = header_.digest();
  pages_.notice_of_own(on_.round_).offset = header_.offset;
}

PEERBUS_INLINE void call::signal() {
  is_signalled_ = true;
  if (const errc code = pages_.signal(on_.round_); code != errc::ok) fail_waiting(code);
}

PEERBUS_INLINE void call::await() {
  bool all_are_here = false;
  if (!is_signalled_) {
    all_are_here = pages_.poll(on_.round_);
    signal();
  }
  if (!all_are_here) await_peers();
  begin_reading();
}

PEERBUS_INLINE void call::begin_reading() {
  if (on_.round_ != first_round_) return;
  if (!on_.objection_.empty()) throw_objection();
  compare();
  if (is_in_window()) find_operands();
}

PEERBUS_INLINE void call::find_operands() noexcept {
  for (const rank_id rank : pages_.group().ranks()) {
    const round_notice& told =
        rank == self() ? pages_.notice_of_own(on_.round_) : pages_.notice(on_.round_, rank);
    pages_.operands()[rank.index()] = input_in_.part_of(input_in_.window, rank) + told.offset;
  }
}

PEERBUS_INLINE void call::await_peers() {
  if (!until_) until_ = pages_.group().default_deadline();
  for (const rank_id peer : peers())
    if (const errc code = pages_.await(on_.round_, peer, *until_); code != errc::ok)
      fail_waiting(code);
}

PEERBUS_INLINE call_header call::header_of(rank_id rank) const noexcept {
  if (rank == self()) return header_;
  call_header theirs;
  std::memcpy(&theirs, pages_.header(on_.round_, rank), sizeof theirs);
  return theirs;
}

PEERBUS_INLINE void call::throw_if_refused() {
  for (const rank_id rank : pages_.group().ranks())
    if (const call_header theirs = header_of(rank); theirs.refusal != errc::ok)
      throw_refused(rank, theirs);
}

PEERBUS_INLINE void call::compare() {
  const auto is_same = [this](rank_id peer) noexcept {
    return pages_.notice(on_.round_, peer).digest == digest_;
  };
  if (!std::ranges::all_of(peers(), is_same)) find_difference();
}

PEERBUS_ERROR_PATH void call::find_difference() {
  throw_if_refused();
  const call_header first = header_of(rank_id{0});
  for (const rank_id rank : pages_.group().ranks())
    if (const call_header theirs = header_of(rank); !theirs.agrees_with(first))
      throw_mismatch(rank, first, theirs);
}

PEERBUS_ERROR_PATH void call::put_refusal(errc code, std::string_view objection) {
  // The peers get as much of the text as fits into a slice.
  const std::string_view told = objection.substr(0, slice_bytes(1));
  header_.refusal = code;
  header_.count = told.size();
  std::copy(told.begin(), told.end(), reinterpret_cast<char*>(page()));
  put([this](rank_id) noexcept { return byte_range{0, header_.count}; });
}

PEERBUS_ERROR_PATH void call::throw_objection() {
  throw error{errc::invalid_argument,
              peerbus::detail::concat(title(), " was given ", on_.objection_)};
}

PEERBUS_ERROR_PATH void call::throw_pending(const team& on, std::string_view operation) {
  throw error{errc::invalid_argument,
              peerbus::detail::concat(operation, " was called while ", on.pending_->view(),
                                      " (collective call ", on.calls_, ") is not finished")};
}

PEERBUS_ERROR_PATH void call::throw_lanes(lane as) {
  throw error{
      errc::invalid_argument,
      peerbus::detail::concat("the first half of ", header_.operation.view(), " was given lane ",
                              as.index, " of ", as.count, ", expected one lane")};
}

PEERBUS_ERROR_PATH void call::throw_refused(rank_id refuser, const call_header& theirs) {
  const std::string_view text{reinterpret_cast<const char*>(payload(refuser, 0)), theirs.count};
  if (theirs.refusal == errc::mismatch)
    throw agreed_error{
        error{errc::mismatch, peerbus::detail::concat(title(), " did not happen: ", text)}};
  throw agreed_error{error{errc::refused, peerbus::detail::concat(title(), " did not happen: ",
                                                                  refuser, " was given ", text)}};
}

PEERBUS_ERROR_PATH void call::throw_mismatch(rank_id other, const call_header& first,
                                             const call_header& theirs) {
  throw agreed_error{
      error{errc::mismatch,
            peerbus::detail::concat(title(), " did not happen: ", rank_id{0}, " called ",
                                    describe(first), ", ", other, " called ", describe(theirs))}};
}

PEERBUS_ERROR_PATH std::string call::title() const {
  return peerbus::detail::concat(header_.operation.view(), " (collective call ", on_.calls_, ")");
}

PEERBUS_ERROR_PATH void call::fail_waiting(errc code) {
  rank_group& group = pages_.group();
  std::string text = title() + " failed in the middle";
  std::size_t named = 0;
  for (const rank_id peer : peers()) {
    const std::uint64_t seen = pages_.latest(peer);
    if (seen >= on_.round_) continue;
    text += peerbus::detail::concat(named++ == 0 ? ": waited for " : ", ", peer, " (round ", seen,
                                    ", expected ", on_.round_, ")");
  }
  if (const auto gone = group.missing(); !gone.empty()) text += "; " + gone;
  group.fail(code, text);
}

}  // namespace peerbus::collective::detail
