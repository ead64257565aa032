// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::deep_ep::detail {

/// A window whose calls throw if they fail, for calls of a buffer that do not need an exchange. It
/// does not know the type of the transport. Except for `wait`, a failure poisons the communicator.
class one_sided_window {
 public:
  explicit one_sided_window(std::unique_ptr<any_window> memory) : memory_{std::move(memory)} {}

  [[nodiscard]] rank_group& group() const noexcept { return memory_->group(); }
  /// Returns the start of this rank's part.
  [[nodiscard]] std::byte* local() const noexcept { return memory_->local(); }
  /// Returns the start of the part of `rank`, or nullptr if loads and stores do not reach it.
  [[nodiscard]] std::byte* part(rank_id rank) const noexcept { return memory_->part(rank); }

  /// Writes `source` to the part of `peer` at `offset`. The bytes are visible there after a later
  /// signal to `peer`. Bytes for a peer that stores do not reach travel from this rank's part at
  /// `room`, which must not change until they have arrived; `source` may change on return.
  void store(std::string_view call, rank_id peer, std::size_t offset,
             std::span<const std::byte> source, std::size_t room) {
    if (source.empty()) return;
    if (std::byte* const target = part(peer)) return copy(target + offset, source);
    std::byte* const leaving = local() + room;
    copy(leaving, source);
    require(call, peer, memory_->put(peer, offset, {leaving, source.size()}));
  }
  /// Begins to read from the part of `peer` at `offset` into `target`, which lies in this rank's
  /// part. Loads need not reach `peer`. `settle` completes the read.
  void get(std::string_view call, rank_id peer, std::size_t offset, std::span<std::byte> target) {
    require(call, peer, memory_->get(peer, offset, target));
  }
  /// Waits until all writes of this rank have arrived and all its reads are complete.
  void settle(std::string_view call) { require(call, group().rank(), memory_->settle()); }
  void signal(std::string_view call, rank_id peer, std::size_t id, std::uint64_t value) {
    require(call, peer, memory_->signal(peer, signal_id(id), value));
  }
  /// Waits until `raiser` has raised signal `id` of this rank to `value`. If the wait fails, the
  /// caller may wait again.
  /// Throws: `error` timed_out or peer_dead.
  void wait(std::string_view call, rank_id raiser, std::size_t id, std::uint64_t value,
            deadline until) {
    group().require_healthy(call);
    const begun_wait wait = begin_wait(value);
    if (const errc code = wait_at(raiser, id, value, until); code != errc::ok) {
      members().fail_wait(wait, code, raiser);
      throw error{code, text_of(call, raiser, code) + describe_wait(wait, raiser, value)};
    }
    members().end_wait(wait, {.epoch = value, .last = raiser});
  }
  /// Waits until all ranks have called it with the same `value`. Collective. Uses one signal of
  /// this rank for each rank, from `first_id` on, which must serve nothing else. `value` must grow
  /// by 1.
  void meet(std::string_view call, std::size_t first_id, std::uint64_t value, deadline until) {
    for (const rank_id peer : group().peers())
      signal(call, peer, first_id + group().rank().index(), value);
    const begun_wait wait = begin_wait(value);
    for (const rank_id peer : group().peers())
      if (const errc code = wait_at(peer, first_id + peer.index(), value, until);
          code != errc::ok) {
        members().fail_wait(wait, code, peer);
        group().fail(code, text_of(call, peer, code) + describe_wait(wait, peer, value));
      }
    members().end_wait(wait, {.epoch = value});
  }

 private:
  using begun_wait = peerbus::detail::activity_line::begun;

  [[nodiscard]] begun_wait begin_wait(std::uint64_t value) const noexcept {
    return members().begin_wait({.operation = group_operation::signal, .number = value});
  }
  [[nodiscard]] const membership& members() const noexcept { return *group().members(); }
  [[nodiscard]] std::string describe_wait(const begun_wait& wait, rank_id awaited,
                                          std::uint64_t value) const {
    return concat("; waited ", peerbus::detail::describe_elapsed(wait), " for ",
                  group().members()->describe_awaited(
                      {&awaited, 1}, [&](rank_id) { return concat("value ", value); }));
  }
  static void copy(std::byte* target, std::span<const std::byte> source) noexcept {
    peerbus::detail::copy_bytes(target, source.data(), source.size());
  }
  [[nodiscard]] errc wait_at(rank_id raiser, std::size_t id, std::uint64_t value,
                             deadline until) noexcept {
    return memory_->wait_at(group().rank(), signal_id(id), value, until, raiser);
  }
  [[nodiscard]] std::string text_of(std::string_view call, rank_id peer, errc code) const {
    std::string text = concat(call, ": ", to_string(code), ", with ", peer);
    if (const auto gone = group().missing(); !gone.empty()) text += "; " + gone;
    return text;
  }
  void require(std::string_view call, rank_id peer, errc code) {
    if (code != errc::ok) group().fail(code, text_of(call, peer, code));
  }

  std::unique_ptr<any_window> memory_;
};

/// A maker of windows of a communicator, for code that does not know the type of its transport.
class window_maker {
 public:
  /// Keeps a reference to `comm`, which must outlive this object.
  template <transport Transport>
  explicit window_maker(communicator<Transport>& comm)
      : group_{&comm},
        is_direct_{reach_of(comm.bus()) == peer_reach::all},
        make_{[&comm](std::size_t bytes, std::size_t signals, deadline until) {
          return make_any_window(comm, {.bytes = bytes, .signals = signals}, until);
        }} {}

  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns whether loads and stores reach the parts of all ranks.
  [[nodiscard]] bool is_direct() const noexcept { return is_direct_; }
  /// Makes a window with `bytes` bytes and `signals` signals on each rank. Collective.
  /// Throws: as `communicator::make_window`.
  [[nodiscard]] one_sided_window operator()(std::size_t bytes, std::size_t signals,
                                            deadline until) const {
    return one_sided_window{make_(bytes, signals, until)};
  }

 private:
  rank_group* group_;
  bool is_direct_;
  std::function<std::unique_ptr<any_window>(std::size_t, std::size_t, deadline)> make_;
};

}  // namespace peerbus::deep_ep::detail
