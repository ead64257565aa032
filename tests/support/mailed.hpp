// SPDX-License-Identifier: MIT
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/refinements.hpp>

namespace test {

namespace detail {

/// The signals that have come for a rank and that it has not taken.
struct mailbox {
  struct letter {
    std::uint32_t window;
    peerbus::signal_id id;
    std::uint64_t value;
  };
  std::mutex guard;
  std::vector<letter> letters;
  bool is_armed = false;
  peerbus::unique_fd bell{::eventfd(0, EFD_NONBLOCK)};
};

/// A rank's own mailbox, those of its peers, and the windows whose signals it raises.
struct post {
  struct place {
    std::uint32_t number;
    std::span<peerbus::signal_word> words;
  };
  std::vector<std::shared_ptr<mailbox>> boxes;
  std::shared_ptr<mailbox> own;
  std::mutex polling;
  std::vector<place> places;  // Under `polling`.
  std::uint32_t windows = 0;
  std::atomic<bool> is_arming{false};

  /// Raises what has come, in order. Letters for a window that this rank still makes stay.
  void poll() {
    const std::lock_guard turn{polling};
    std::vector<mailbox::letter> came;
    {
      const std::lock_guard lock{own->guard};
      came.swap(own->letters);
    }
    for (const mailbox::letter& one : came) {
      const auto found = std::ranges::find(places, one.window, &place::number);
      if (found != places.end())
        found->words[index(one.id)].raise_at_least(one.value);
      else if (one.window > windows) {
        const std::lock_guard lock{own->guard};
        own->letters.push_back(one);
      }
    }
  }
};

}  // namespace detail

/// `loopback` as a transport whose signals are raised by their receiver, the way completions of a
/// network card are: nothing arrives at a rank that does not look, and a rank that sleeps on a
/// futex is not woken. It has no peer memory, and tells of arrivals by a descriptor.
class mailed
    : public peerbus::transport_decorator<peerbus::loopback,
                                          peerbus::transport_refinements{.adopt_window = true}> {
 public:
  static constexpr peerbus::transport_refinements refines{.adopt_window = true,
                                                          .arrival_events = true};

  class window {
   public:
    window(window&& other) noexcept = default;
    window& operator=(window&& other) noexcept {
      std::swap(post_, other.post_);
      std::swap(number_, other.number_);
      std::swap(inner_, other.inner_);
      return *this;
    }
    ~window() {
      if (!post_) return;
      const std::lock_guard turn{post_->polling};
      std::erase_if(post_->places, [&](const auto& one) { return one.number == number_; });
    }
    // Not explicit, so that the decorator can pass it on.
    operator const peerbus::direct_window&()  // NOLINT(google-explicit-constructor)
        const noexcept {
      return inner_;
    }

   private:
    friend mailed;
    window(std::shared_ptr<detail::post> post, std::uint32_t number, peerbus::direct_window inner)
        : post_{std::move(post)}, number_{number}, inner_{std::move(inner)} {
      const std::lock_guard turn{post_->polling};
      post_->places.push_back({number_, inner_.local_signals()});
      post_->windows = number_;
    }
    std::shared_ptr<detail::post> post_;
    std::uint32_t number_;
    peerbus::direct_window inner_;
  };

  explicit mailed(peerbus::bootstrap& boot) : transport_decorator{peerbus::loopback{boot}} {
    post_->own = std::make_shared<detail::mailbox>();
    // A contribution passes a pointer to const, but a mailbox is not const.
    struct offer {
      std::shared_ptr<detail::mailbox> box;
    };
    peerbus::bootstrap::contribution own;
    own.object = std::make_shared<offer>(offer{post_->own});
    const auto until = peerbus::deadline::after(std::chrono::seconds{60});
    for (const auto& from : boot.allgather(std::move(own), until, "mailboxes"))
      post_->boxes.push_back(static_cast<const offer*>(from.object.get())->box);
  }

  [[nodiscard]] window make_window(peerbus::window_shape shape, peerbus::deadline until) {
    return {post_, post_->windows + 1, inner().make_window(shape, until)};
  }
  [[nodiscard]] window adopt_window(peerbus::window_memory memory, peerbus::deadline until) {
    return {post_, post_->windows + 1, inner().adopt_window(std::move(memory), until)};
  }

  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    if (peer.index() >= post_->boxes.size() || index(id) >= at.inner_.shape().signals)
      return peerbus::errc::out_of_range;
    detail::mailbox& box = *post_->boxes[peer.index()];
    const std::lock_guard lock{box.guard};
    box.letters.push_back({at.number_, id, value});
    if (box.is_armed) ::eventfd_write(box.bell.get(), 1);
    return peerbus::errc::ok;
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    if (index(id) >= at.inner_.shape().signals) return peerbus::errc::out_of_range;
    const peerbus::errc code = inner().put(peer, at, offset, source);
    return code == peerbus::errc::ok ? signal(peer, at, id, value) : code;
  }
  [[nodiscard]] peerbus::errc wait(const window& at, peerbus::signal_id id, std::uint64_t value,
                                   peerbus::deadline until,
                                   std::optional<peerbus::rank_id> awaited) noexcept {
    for (;;) {
      post_->poll();
      const auto past = peerbus::deadline{peerbus::deadline::clock::time_point::min()};
      const peerbus::errc code = inner().wait(at, id, value, past, awaited);
      if (code != peerbus::errc::timed_out || until.expired()) return code;
      std::this_thread::yield();
    }
  }
  [[nodiscard]] std::uint64_t value(const window& at, peerbus::signal_id id) const noexcept {
    post_->poll();
    return inner().value(at, id);
  }
  [[nodiscard]] peerbus::errc progress() noexcept {
    post_->poll();
    return peerbus::errc::ok;
  }

  [[nodiscard]] int arrival_fd() const noexcept { return post_->own->bell.get(); }
  [[nodiscard]] bool arm() noexcept {
    if (post_->is_arming.exchange(true)) return false;
    {
      const std::lock_guard lock{post_->own->guard};
      post_->own->is_armed = true;
    }
    post_->poll();
    return true;
  }
  void disarm() noexcept {
    {
      const std::lock_guard lock{post_->own->guard};
      post_->own->is_armed = false;
      ::eventfd_t rings = 0;
      ::eventfd_read(post_->own->bell.get(), &rings);
    }
    post_->is_arming.store(false);
  }
  [[nodiscard]] peerbus::errc health(std::optional<peerbus::rank_id> awaited) noexcept {
    return boot().members()->health(awaited);
  }

 private:
  std::shared_ptr<detail::post> post_ = std::make_shared<detail::post>();
};
static_assert(peerbus::adopting_transport<mailed>);

}  // namespace test
