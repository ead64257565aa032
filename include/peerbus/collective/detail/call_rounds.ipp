// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/team_access.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/stream.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE call_rounds::call_rounds(team& team, const call_header& header, const request& given,
                                        const call_options& options, std::string objection)
    : team_{team},
      pages_{*team.pages_},
      until_{options.until},
      check_{pages_, header, team.calls_ + 1, team.round_ + 1},
      input_{given.input},
      what_{given.what},
      kind_{pattern_of(given.what)},
      input_in_{given.input_in},
      stream_least_{team.options().stream_bytes.value_or(~std::size_t{0})},
      // Larger pages of all ranks fill a cache, so that lines leave it before they are written
      // again. Plain stores are then faster. Of rooted operations one rank writes or reads alone.
      stream_end_{std::size_t{header.root == call_header::no_root ? 256U : 512U} << 10U} {
  // Loops that reduce read several pages at once, and gain nothing from streaming stores.
  if (header.reduction != short_text<8>{}) stream_end_ = 0;
  // All ranks decide alike, because they compare place and count. Where counts vary, a rank does
  // not know those of the others when it decides.
  const bool is_large =
      header.count == call_header::varied ||
      header.count * header.element.bytes >= team.options().window_bytes.value_or(0);
  is_in_window_ = header.is_in_window() && is_large;
  offers_ = header.place == operand_place::private_memory;
  team_access::require_ready(team, header.operation.view());
  if (options.as.count != team.pool_.lanes()) throw_lanes(options.as);
  is_private_ = offers_;  // A variable form chooses when it knows the sizes.
  if (offers_ && !kind_.varies) choose_way(header.count * header.element.bytes);
  ++team_.calls_;
  if (objection.empty() && input_in_.window != nullptr && input_in_.bus != team.windows_from_)
    objection = "an input in a window of another communicator than that of the team";
  team_.objection_ = std::move(objection);
}

PEERBUS_INLINE void call_rounds::end_first_half() {
  if (!is_in_steps_) signal();
  team_.pending_ = check_.header().operation;
}

PEERBUS_INLINE void call_rounds::resume(const std::optional<deadline>& until) {
  const auto name = check_.header().operation.view();
  if (!is_pending()) throw_given_up(name);
  team_.pending_.reset();
  pages_.communicator().require_healthy(name, team_.view_);
  half_ = half::second;
  if (until) until_ = until;
}

PEERBUS_ERROR_PATH void call_rounds::abandon() noexcept {
  if (!is_pending()) return;
  team_.pending_.reset();
  if (pages_.communicator().view().number() != team_.view_) return;  // A later view gives it up.
  try {
    pages_.communicator().poison(check_.title() + " was started and never finished");
  } catch (...) {
    pages_.communicator().poison("not finished");  // So short that it takes no memory.
  }
}

PEERBUS_INLINE void call_rounds::offer(std::size_t page_at, std::size_t input_at,
                                       std::size_t bytes) noexcept {
  if (reads_operands()) return;
  std::byte* const target = page() + page_at;
  const std::byte* const source = input_.data() + input_at;
  if (pool().lanes() != 1 || bytes < stream_least_ || bytes >= stream_end_)
    return copy(target, source, bytes);
  kernel::stream(kernel::best(), target, source, bytes);
  kernel::fence_streams();  // The release that publishes the page does not order them.
}

PEERBUS_INLINE void call_rounds::copy(std::byte* target, const std::byte* source,
                                      std::size_t bytes) const noexcept {
  if (pool().lanes() == 1 || bytes < peerbus::detail::lane_pool::least_shared_bytes ||
      target == source)
    return peerbus::detail::copy_bytes(target, source, bytes);
  pool().share(bytes, cache_line_bytes, [&](std::size_t, std::size_t begin, std::size_t end) {
    peerbus::detail::copy_bytes(target + begin, source + begin, end - begin);
  });
}

PEERBUS_INLINE void call_rounds::read(std::byte* target, rank_id peer, const std::byte* source,
                                      std::size_t bytes) noexcept {
  if (is_private_) return team_.private_.read(pool(), target, peer, source, bytes);
  copy(target, source, bytes);
}

PEERBUS_INLINE void call_rounds::choose_way(std::size_t bytes) noexcept {
  if (!is_private_) return;
  way_ = team_.private_.choose(what_, bytes);
  is_private_ = way_.way == 1;
  check_.say_way(way_.way);
  // Another core is to read what the caller may have streamed, and the release of a notice does not
  // order that.
  if (is_private_) kernel::fence_streams();
}

PEERBUS_INLINE bool call_rounds::finish_reads() {
  if (!is_private_) return false;  // The offers were not accepted.
  team_.private_.tell(team_.round_ + 1);
  try {
    meet([](rank_id) noexcept { return byte_range{}; });
  } catch (...) {
    team_.private_.give_up(team_.round_);
    throw;
  }
  const auto failure = team_.private_.find_failure(team_.round_);
  is_private_ = failure == private_reads::none;
  if (!is_private_) way_ = {};
  if ((failure & private_reads::not_there) != 0) {
    const bool gives = kind_.gives(self() == root());
    is_unreadable_ = true;
    confirm(errc::refused, gives ? private_reads::object_to(input_) : std::string{});
  }
  return is_private_;
}

PEERBUS_INLINE void call_rounds::confirm(errc code, std::string_view objection) {
  check_.compare_again_in(team_.round_ + 1);
  if (objection.empty()) return;
  put_refusal(code, objection);
  signal();
  await_peers();
  check_.throw_if_refused(team_.round_);
}

PEERBUS_INLINE void call_rounds::put(page_range to_peer) {
  const std::uint64_t round = ++team_.round_;
  const bool is_first = check_.is_first(round);
  if (is_first) {
    check_.write(round);
    team_.times_.tell(round, way_.is_timed && half_ != half::first);
  }
  is_in_steps_ = false;
  is_signalled_ = false;
  if (const errc code = pages_.publish(round, is_first, to_peer); code != errc::ok)
    check_.fail(code, team_.round_);
}

PEERBUS_INLINE void call_rounds::signal() {
  is_signalled_ = true;
  if (const errc code = pages_.signal(team_.round_); code != errc::ok)
    check_.fail(code, team_.round_);
}

PEERBUS_INLINE void call_rounds::await() {
  bool all_are_here = false;
  if (!is_signalled_) {
    all_are_here = pages_.poll(team_.round_);
    signal();
  }
  if (!all_are_here) {
    await_peers();
  } else if (check_.is_first(team_.round_)) {  // Once for each call.
    check_.begin_wait(what_);
    check_.end_wait(team_.round_);
  }
  begin_reading();
}

PEERBUS_INLINE void call_rounds::begin_reading() {
  if (!check_.is_first(team_.round_)) return;
  if (!team_.objection_.empty()) throw_objection();
  check_.compare(team_.round_);
  if (is_in_window()) find_operands();
  team_.times_.take(team_.round_, way_);
  if (offers_ && !team_.private_.take_offers(team_.round_, kind_)) {
    is_private_ = false;
    way_ = {};
  }
}

PEERBUS_INLINE void call_rounds::find_operands() noexcept {
  for (const rank_id rank : pages_.group().ranks())
    pages_.operands()[rank.index()] =
        input_in_.part_of(input_in_.window, pages_.in_communicator(rank)) +
        pages_.notice(team_.round_, rank).offset;
}

PEERBUS_INLINE void call_rounds::await_peers() {
  if (!until_) until_ = pages_.communicator().default_deadline();
  check_.begin_wait(what_);
  const bool is_heard = pages_.group().members()->listeners().any();
  std::optional<rank_id> last;
  for (const rank_id peer : peers()) {
    if (is_heard && pages_.latest(peer) < team_.round_) last = peer;
    if (const errc code = pages_.await(team_.round_, peer, *until_); code != errc::ok)
      check_.fail(code, team_.round_);
  }
  check_.end_wait(team_.round_, last);
}

PEERBUS_ERROR_PATH void call_rounds::put_refusal(errc code, std::string_view objection) {
  // The peers get as much of the text as fits into a slice.
  const std::string_view text = objection.substr(0, slice_bytes(1));
  check_.refuse(code, text.size());
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(page()));
  put([&](rank_id) noexcept { return byte_range{0, text.size()}; });
}

PEERBUS_ERROR_PATH void call_rounds::throw_objection() {
  throw error{errc::invalid_argument,
              peerbus::detail::concat(check_.title(), " was given ", team_.objection_)};
}

PEERBUS_ERROR_PATH void call_rounds::throw_given_up(std::string_view operation) {
  throw error{errc::view_changed,
              peerbus::detail::concat("finish: the team went on without ranks since ", operation,
                                      " was started, which it has given up")};
}

PEERBUS_ERROR_PATH void call_rounds::throw_lanes(lane as) {
  throw error{errc::invalid_argument,
              peerbus::detail::concat("the first half of ", check_.header().operation.view(),
                                      " was given lane ", as.index, " of ", as.count,
                                      ", expected one lane")};
}

}  // namespace peerbus::collective::detail
