// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/refinements.hpp>

namespace test {

/// What transports share that do requests some time after the call. `State` has the transport below
/// as `base`, and the requests that are not done yet. `State::remember(window)` is called when a
/// window is made, `State::forget(window)` before it goes.
template <peerbus::direct_transport Base, class State>
class deferring : public peerbus::transport_decorator<Base&, peerbus::transport_refinements{}> {
  using decorator = peerbus::transport_decorator<Base&, peerbus::transport_refinements{}>;

 public:
  class window {
   public:
    window(window&&) noexcept = default;
    window& operator=(window&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(inner_, other.inner_);
      return *this;
    }
    ~window() {
      if (inner_ != nullptr) state_->forget(*inner_);
    }

    // Not explicit, so that the decorator can pass it on.
    operator const typename Base::window &()
        const noexcept {  // NOLINT(google-explicit-constructor)
      return *inner_;
    }

   private:
    friend deferring;
    window(std::shared_ptr<State> owner, typename Base::window inner)
        : state_{std::move(owner)},
          inner_{std::make_unique<typename Base::window>(std::move(inner))} {
      state_->remember(*inner_);
    }
    std::shared_ptr<State> state_;
    std::unique_ptr<typename Base::window> inner_;
  };

  explicit deferring(peerbus::bootstrap& boot) : deferring{std::make_shared<State>(Base{boot})} {}

  [[nodiscard]] window make_window(peerbus::window_shape shape, peerbus::deadline until) {
    return window{state_, state_->base.make_window(shape, until)};
  }

 protected:
  [[nodiscard]] window adopt_here(peerbus::window_memory memory, peerbus::deadline until) {
    return window{state_, state_->base.adopt_window(std::move(memory), until)};
  }
  [[nodiscard]] State& state() noexcept { return *state_; }
  [[nodiscard]] static const typename Base::window* inner_of(const window& at) noexcept {
    return at.inner_.get();
  }
  [[nodiscard]] bool inside(peerbus::rank_id peer, const window& at, std::size_t offset,
                            std::size_t bytes) const noexcept {
    const std::size_t all = this->local(at).size();
    return peer.index() < this->boot().size() && offset <= all && bytes <= all - offset;
  }

 private:
  explicit deferring(std::shared_ptr<State> state)
      : decorator{state->base}, state_{std::move(state)} {}

  std::shared_ptr<State> state_;
};

}  // namespace test
