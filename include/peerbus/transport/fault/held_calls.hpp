// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::detail {

/// A call that has returned to the rank that made it, but is not carried out yet.
template <class Window>
struct held_call {
  /// The kind of the call, which determines the members in use besides `peer` and `memory`.
  enum class kind : std::uint8_t {
    put,    ///< uses `offset` and `source`
    get,    ///< uses `offset` and `target`
    signal  ///< uses `id` and `value`
  };

  kind what{};
  rank_id peer{};
  const Window* memory = nullptr;
  std::size_t offset = 0;
  std::span<const std::byte> source{};
  std::span<std::byte> target{};
  signal_id id{};
  std::uint64_t value = 0;
  std::uint64_t due = 0;  ///< the number of the latest look at which the call is carried out
};

/// Calls that are held back until a later look, which is a call of `look`, made when the rank
/// checks its signals. Each is due at a look, and calls due at the same look are carried out in the
/// order of this list. A signal is due no sooner than the earlier calls to its peer. A call after a
/// signal to the same peer is due no sooner than that signal. So calls that are carried out when
/// they are due keep the order that the contract promises.
///
/// Cost: `add`, `release_if` and `look` visit all calls. Only the constructor allocates.
template <class Window>
class held_calls {
 public:
  using call = held_call<Window>;

  explicit held_calls(std::size_t capacity) { calls_.reserve(capacity); }

  [[nodiscard]] bool is_empty() const noexcept { return calls_.empty(); }
  [[nodiscard]] bool is_full() const noexcept { return calls_.size() == calls_.capacity(); }

  /// Adds a call, due after `delay` further looks. If `place` is given, it decides which earlier
  /// calls the new call precedes. There must be room.
  /// Returns: whether the call precedes an earlier call.
  bool add(call added, std::uint64_t delay, std::optional<std::uint64_t> place) noexcept {
    added.due = looks_ + delay;
    std::size_t earliest = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const bool is_ordered =
          added.what == call::kind::signal || calls_[i].what == call::kind::signal;
      if (calls_[i].peer != added.peer || !is_ordered) continue;
      earliest = i + 1;
      added.due = std::max(added.due, calls_[i].due);
    }
    const std::size_t choices = calls_.size() - earliest + 1;
    const std::size_t at = place ? earliest + *place % choices : calls_.size();
    const bool precedes = at != calls_.size();
    calls_.insert(calls_.begin() + static_cast<std::ptrdiff_t>(at), added);
    return precedes;
  }

  /// Removes the calls for which `leaves(call)` is true, and passes each to `issue(call)`.
  template <class Leaves, class Issue>
  void release_if(Leaves&& leaves, Issue&& issue) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i)
      if (leaves(calls_[i]))
        issue(calls_[i]);
      else
        calls_[kept++] = calls_[i];
    calls_.resize(kept);
  }
  /// Removes the calls that are due, passes each to `issue(call)`, and then counts a look.
  template <class Issue>
  void look(Issue&& issue) noexcept {
    release_if([this](const call& each) { return each.due <= looks_; }, issue);
    ++looks_;
  }

 private:
  std::vector<call> calls_;
  std::uint64_t looks_ = 0;
};

}  // namespace peerbus::detail
