// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/lanes_suite.hpp"
#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace {

/// `Base` for several threads of a rank at once, as the concept promises; test::indirect keeps one
/// queue for all of them, which is safe for one thread only.
template <peerbus::transport Base>
class locked {
 public:
  using window = typename Base::window;

  static constexpr peerbus::transport_refinements refines{
      .find_peer_memory = peerbus::partly_direct_transport<Base>};

  explicit locked(peerbus::bootstrap& boot) : base_{boot}, lock_{std::make_unique<std::mutex>()} {}

  [[nodiscard]] peerbus::bootstrap& boot() const noexcept { return base_.boot(); }
  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept {
    return base_.capabilities();
  }
  [[nodiscard]] window make_window(peerbus::window_shape shape, peerbus::deadline until) {
    return base_.make_window(shape, until);
  }
  [[nodiscard]] std::span<std::byte> local(const window& at) const noexcept {
    return base_.local(at);
  }
  [[nodiscard]] peerbus::errc put(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    const std::lock_guard held{*lock_};
    return base_.put(peer, at, offset, source);
  }
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    const std::lock_guard held{*lock_};
    return base_.signal(peer, at, id, value);
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    const std::lock_guard held{*lock_};
    return base_.put_signal(peer, at, offset, source, id, value);
  }
  [[nodiscard]] peerbus::errc get(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    const std::lock_guard held{*lock_};
    return base_.get(peer, at, offset, target);
  }
  [[nodiscard]] peerbus::errc fetch_add(peerbus::rank_id peer, const window& at, std::size_t offset,
                                        std::uint64_t addend, std::uint64_t& before) noexcept {
    const std::lock_guard held{*lock_};
    return base_.fetch_add(peer, at, offset, addend, before);
  }
  [[nodiscard]] peerbus::errc wait(const window& at, peerbus::signal_id id, std::uint64_t value,
                                   peerbus::deadline until,
                                   std::optional<peerbus::rank_id> awaited) noexcept {
    return base_.wait(at, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& at, peerbus::signal_id id) const noexcept {
    return base_.value(at, id);
  }
  [[nodiscard]] peerbus::errc flush(peerbus::rank_id peer) noexcept {
    const std::lock_guard held{*lock_};
    return base_.flush(peer);
  }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    const std::lock_guard held{*lock_};
    return base_.quiet();
  }
  [[nodiscard]] peerbus::errc progress() noexcept { return base_.progress(); }
  [[nodiscard]] std::byte* find_peer_memory(const window& at, peerbus::rank_id peer) const noexcept
    requires peerbus::partly_direct_transport<Base>
  {
    return base_.find_peer_memory(at, peer);
  }

 private:
  Base base_;
  std::unique_ptr<std::mutex> lock_;
};

}  // namespace

TEST_CASE("several lanes move the same bytes as one, by puts") {
  using staged = test::threads_over<locked<test::indirect<peerbus::loopback>>>;
  for (const std::size_t ranks : {1U, 2U, 3U})
    for (const std::size_t lanes : {2U, 3U, 4U})
      conformance::check_lanes_all_layouts<staged>(ranks, lanes, 8);
}

TEST_CASE("several lanes move the same bytes as one, near peers by stores and far ones by puts") {
  using mixed = test::threads_over<locked<test::partly_direct<peerbus::loopback>>>;
  for (const std::size_t ranks : {1U, 2U, 3U, 4U})
    conformance::check_lanes_all_layouts<mixed>(ranks, 3, 8);
}
