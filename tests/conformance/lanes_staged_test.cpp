// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include <doctest/doctest.h>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/lanes_suite.hpp"
#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace lanes_staged_test {

namespace {

template <class Base>
using decorated =
    peerbus::transport_decorator<Base,
                                 peerbus::transport_refinements{
                                     .find_peer_memory = peerbus::partly_direct_transport<Base>}>;

/// `Base` for several threads of a rank at once, as the concept promises; test::indirect keeps one
/// queue for all of them, which is safe for one thread only.
template <peerbus::transport Base>
class locked : public decorated<Base> {
 public:
  using typename decorated<Base>::window;
  using decorated<Base>::decorated;

  [[nodiscard]] peerbus::errc put(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().put(peer, at, offset, source);
  }
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().signal(peer, at, id, value);
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().put_signal(peer, at, offset, source, id, value);
  }
  [[nodiscard]] peerbus::errc get(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().get(peer, at, offset, target);
  }
  [[nodiscard]] peerbus::errc fetch_add(peerbus::rank_id peer, const window& at, std::size_t offset,
                                        std::uint64_t addend, std::uint64_t& before) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().fetch_add(peer, at, offset, addend, before);
  }
  [[nodiscard]] peerbus::errc flush(peerbus::rank_id peer) noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().flush(peer);
  }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    const std::lock_guard held{*lock_};
    return this->inner().quiet();
  }

 private:
  std::unique_ptr<std::mutex> lock_ = std::make_unique<std::mutex>();
};

}  // namespace

TEST_CASE("several lanes move the same bytes as one, by puts") {
  using staged = test::any_over<peerbus::any_transport,
                                test::threads_over<locked<test::indirect<peerbus::loopback>>>>;
  for (const std::size_t ranks : {1U, 2U, 3U})
    for (const std::size_t lanes : {2U, 3U, 4U})
      conformance::check_lanes_all_layouts<staged>(ranks, lanes, 8);
}

TEST_CASE("several lanes move the same bytes as one, near peers by stores and far ones by puts") {
  using mixed = test::threads_over<locked<test::partly_direct<peerbus::loopback>>>;
  for (const std::size_t ranks : {1U, 2U, 3U, 4U})
    conformance::check_lanes_all_layouts<mixed>(ranks, 3, 8);
}

}  // namespace lanes_staged_test
