// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fault/held_calls.hpp>
#include <peerbus/transport/fault/plan.hpp>
#include <peerbus/transport/fault/schedule.hpp>
#include <peerbus/transport/optional_calls.hpp>

namespace peerbus::detail {

/// Passes the requests of a rank on to a transport `T`, as a `fault_plan` says. Held requests also
/// proceed while the rank waits in its bootstrap, and when a window or the carrier ends.
/// Threads: any.
template <transport T>
class fault_carrier final : public idle_work::task {
 public:
  using window = typename T::window;
  using call = held_call<window>;

  fault_carrier(T inner, fault_schedule schedule)
      : inner_{std::move(inner)},
        plan_{std::move(schedule), inner_.boot().rank(), inner_.boot().size()},
        held_{plan_.schedule().held_calls},
        idle_{inner_.boot().idle()} {
    idle_->add(*this);
  }
  fault_carrier(const fault_carrier&) = delete;
  fault_carrier& operator=(const fault_carrier&) = delete;
  ~fault_carrier() {
    idle_->remove(*this);
    advance();
  }

  [[nodiscard]] T& inner() noexcept { return inner_; }

  /// Registers the window `made`, so that its memory is accepted as a source or target.
  void remember(const window& made) {
    const std::lock_guard turn{turn_};
    parts_.push_back(inner_.local(made));
  }
  /// Passes all held calls on before `gone` ends, because it may be the window of any held call or
  /// the memory of its source.
  void forget(const window& gone) noexcept {
    advance();
    const std::lock_guard turn{turn_};
    const auto part = inner_.local(gone);
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& each) {
      return each.data() == part.data() && each.size() == part.size();
    });
    if (found != parts_.end()) parts_.erase(found);
  }

  /// Begins a put, get or signal whose arguments are in range, and passes it on or holds it.
  /// `local` is this rank's memory that the request uses.
  [[nodiscard]] errc request(call made, std::span<const std::byte> local) noexcept {
    const std::lock_guard turn{turn_};
    if (!is_accepted(local)) return errc::invalid_argument;
    if (const errc code = begin(made.peer); code != errc::ok) return code;
    if (made.what == call::kind::put)
      plan_.corrupt(made.offset, made.source, inner_.local(*made.memory).size());
    const auto [delay, place] = plan_.draw_delivery(made.what != call::kind::signal);
    if (held_.is_full()) release_all();
    if (held_.add(made, delay, place)) plan_.count_reordered();
    held_.look([this](const call& each) noexcept { issue(each); });
    return plan_.state_of(made.peer);
  }
  /// Begins a request that is never held. If it returns ok, the caller carries the request out at
  /// once.
  [[nodiscard]] errc begin_now(rank_id peer) noexcept {
    const std::lock_guard turn{turn_};
    return begin(peer);
  }

  /// The state of the faults that a wait needs before it looks at its signal.
  struct outlook {
    errc health;      ///< ok, or the reason why nothing can arrive
    bool is_dropped;  ///< whether the rank is lost
    bool is_idle;     ///< whether no call is held
  };
  /// Passes the due calls on. Returns the state of the faults.
  outlook look(std::optional<rank_id> awaited) noexcept {
    const std::lock_guard turn{turn_};
    held_.look([this](const call& each) noexcept { issue(each); });
    return {plan_.health(awaited), plan_.is_dropped(), held_.is_empty()};
  }
  /// Passes all held calls to `peer` on, or to all peers if `peer` is empty.
  /// Returns: ok, or the error that calls to `peer`, or to some rank if it is empty, return.
  [[nodiscard]] errc release(std::optional<rank_id> peer) noexcept {
    const std::lock_guard turn{turn_};
    held_.release_if([peer](const call& each) { return !peer || each.peer == *peer; },
                     [this](const call& each) noexcept { issue(each); });
    return plan_.health(peer);
  }
  /// Passes all held calls on.
  void advance() noexcept override { static_cast<void>(release(std::nullopt)); }

  [[nodiscard]] fault_counts counts() const noexcept {
    const std::lock_guard turn{turn_};
    return plan_.counts();
  }
  [[nodiscard]] std::string describe() const {
    std::string text = describe_trouble(inner_);
    const std::lock_guard turn{turn_};
    const std::string own = plan_.describe();
    if (!text.empty() && !own.empty()) text += "; ";
    return text + own;
  }

 private:
  /// Begins a request by `fault_plan::begin`. Held calls to a peer whose connection breaks are
  /// lost.
  errc begin(rank_id peer) noexcept {
    const errc code = plan_.begin(peer);
    if (code != errc::ok)
      held_.release_if([this](const call& each) { return plan_.state_of(each.peer) != errc::ok; },
                       [](const call&) {});
    return code;
  }
  void release_all() noexcept {
    held_.release_if([](const call&) { return true; },
                     [this](const call& each) noexcept { issue(each); });
  }
  void issue(const call& each) noexcept {
    if (plan_.state_of(each.peer) != errc::ok) return;
    errc code = errc::ok;
    switch (each.what) {
      case call::kind::put:
        code = inner_.put(each.peer, *each.memory, each.offset, each.source);
        break;
      case call::kind::get:
        code = inner_.get(each.peer, *each.memory, each.offset, each.target);
        break;
      case call::kind::signal:
        code = inner_.signal(each.peer, *each.memory, each.id, each.value);
        break;
    }
    if (code != errc::ok) plan_.break_link(each.peer, code);
  }
  [[nodiscard]] bool is_accepted(std::span<const std::byte> local) const noexcept {
    return local.empty() || inner_.capabilities().any_local_memory ||
           std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) {
             return local.data() >= part.data() &&
                    local.data() + local.size() <= part.data() + part.size();
           });
  }

  // Held while calls are passed on, as the turn at a device's queue is.
  mutable std::mutex turn_;
  T inner_;
  fault_plan plan_;
  held_calls<window> held_;
  std::vector<std::span<const std::byte>> parts_;
  std::shared_ptr<idle_work> idle_;
};

}  // namespace peerbus::detail
