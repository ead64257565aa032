// SPDX-License-Identifier: MIT
// Near misses of `transport`: the archetype with one thing lost each.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/communicator.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/refinements.hpp>

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::window_shape;

/// What the near misses are made from; nothing lost.
struct complete : peerbus::transport_archetype {
  using transport_archetype::transport_archetype;
};
static_assert(peerbus::transport<complete>);

struct complete_direct : peerbus::direct_transport_archetype {
  using direct_transport_archetype::direct_transport_archetype;
};
static_assert(peerbus::direct_transport<complete_direct>);

struct complete_partly_direct : peerbus::partly_direct_transport_archetype {
  using partly_direct_transport_archetype::partly_direct_transport_archetype;
};
static_assert(peerbus::partly_direct_transport<complete_partly_direct>);

struct complete_runnable : complete {
  using complete::complete;
  static constexpr peerbus::rank_kind ranks_are = peerbus::rank_kind::threads;
};
static_assert(peerbus::runnable_transport<complete_runnable>);

#if PEERBUS_CASE == 0
void use(complete& bus, complete_direct& direct, const complete::window& at) {
  static_cast<void>(bus.put(rank_id{}, at, 0, {}));
  static_cast<void>(direct.peer_memory(at, rank_id{}));
}
int start() {
  return peerbus::run<complete_runnable>(1, [](auto&) {});
}
void hold(complete bus, complete_direct direct) {
  const peerbus::any_transport puts{std::move(bus)};
  peerbus::any_direct_transport stores{std::move(direct)};
  const peerbus::any_transport puts_only{std::move(stores)};
}
#endif

#if PEERBUS_CASE == 1
// case 1: expect "static.assert.*failed.*put may throw"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc put(rank_id, const window&, std::size_t, std::span<const std::byte>);
};
static_assert(peerbus::transport<near_miss>, "put may throw");
#endif

#if PEERBUS_CASE == 2
// case 2: expect "static.assert.*failed.*local needs a mutable transport"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::span<std::byte> local(const window&) noexcept;
};
static_assert(peerbus::transport<near_miss>, "local needs a mutable transport");
#endif

#if PEERBUS_CASE == 3
// case 3: expect "static.assert.*failed.*value needs a mutable transport"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::uint64_t value(const window&, signal_id) noexcept;
};
static_assert(peerbus::transport<near_miss>, "value needs a mutable transport");
#endif

#if PEERBUS_CASE == 4
// case 4: expect "static.assert.*failed.*signal returns bool"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] bool signal(rank_id, const window&, signal_id, std::uint64_t) noexcept;
};
static_assert(peerbus::transport<near_miss>, "signal returns bool");
#endif

#if PEERBUS_CASE == 5
// case 5: expect "static.assert.*failed.*put takes a mutable window"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc put(rank_id, window&, std::size_t, std::span<const std::byte>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "put takes a mutable window");
#endif

#if PEERBUS_CASE == 6
// case 6: expect "static.assert.*failed.*get fills integers"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc get(rank_id, const window&, std::size_t, std::span<int>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "get fills integers");
#endif

#if PEERBUS_CASE == 7
// case 7: expect "static.assert.*failed.*wait has no deadline"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc wait(const window&, signal_id, std::uint64_t, std::optional<rank_id>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "wait has no deadline");
#endif

#if PEERBUS_CASE == 8
// case 8: expect "static.assert.*failed.*make_window returns something else"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] int make_window(window_shape, deadline);
};
static_assert(peerbus::transport<near_miss>, "make_window returns something else");
#endif

#if PEERBUS_CASE == 9
// case 9: expect "static.assert.*failed.*capabilities are a constant"
struct near_miss : complete {
  using complete::complete;
  static constexpr peerbus::transport_capabilities capabilities{};
};
static_assert(peerbus::transport<near_miss>, "capabilities are a constant");
#endif

#if PEERBUS_CASE == 10
// case 10: expect "static.assert.*failed.*ranks_are is a plain number"
struct near_miss : complete_runnable {
  using complete_runnable::complete_runnable;
  static constexpr int ranks_are = 0;
};
static_assert(peerbus::transport<near_miss>);
static_assert(peerbus::runnable_transport<near_miss>, "ranks_are is a plain number");
#endif

#if PEERBUS_CASE == 11
// case 11: expect "static.assert.*failed.*boot may throw"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] bootstrap& boot() const;
};
static_assert(peerbus::transport<near_miss>, "boot may throw");
#endif

#if PEERBUS_CASE == 12
// case 12: expect "static.assert.*failed.*fetch_add returns the old value"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::uint64_t fetch_add(rank_id, const window&, std::size_t,
                                        std::uint64_t) noexcept;
};
static_assert(peerbus::transport<near_miss>, "fetch_add returns the old value");
#endif

#if PEERBUS_CASE == 13
// case 13: expect "static.assert.*failed.*the window cannot be moved"
struct near_miss : complete {
  using complete::complete;
  struct window {
    window() = default;
    window(const window&) = delete;
  };
  [[nodiscard]] window make_window(window_shape, deadline);
};
static_assert(peerbus::transport<near_miss>, "the window cannot be moved");
#endif

#if PEERBUS_CASE == 14
// case 14: expect "static.assert.*failed.*the window type is private"
struct near_miss : complete {
  using complete::complete;

 private:
  using window = transport_archetype::window;
};
static_assert(peerbus::transport<near_miss>, "the window type is private");
#endif

#if PEERBUS_CASE == 15
// case 15: expect "static.assert.*failed.*quiet is gone"
struct near_miss : complete {
  using complete::complete;
  void quiet() = delete;
};
static_assert(peerbus::transport<near_miss>, "quiet is gone");
#endif

#if PEERBUS_CASE == 16
// case 16: expect "static.assert.*failed.*no constructor from a bootstrap"
struct near_miss : complete_runnable {};
static_assert(peerbus::transport<near_miss>);
static_assert(peerbus::runnable_transport<near_miss>, "no constructor from a bootstrap");
#endif

#if PEERBUS_CASE == 17
// case 17: expect "static.assert.*failed.*peer_memory may throw"
struct near_miss : complete_direct {
  using complete_direct::complete_direct;
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id) const;
};
static_assert(peerbus::transport<near_miss>, "peer_memory may throw");
#endif

#if PEERBUS_CASE == 18
// case 18: expect "static.assert.*failed.*peer_memory needs a mutable transport"
struct near_miss : complete_direct {
  using complete_direct::complete_direct;
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id) noexcept;
};
static_assert(peerbus::transport<near_miss>, "peer_memory needs a mutable transport");
#endif

#if PEERBUS_CASE == 19
// case 19: expect "static.assert.*failed.*peer_memory is read only"
struct near_miss : complete_direct {
  using complete_direct::complete_direct;
  [[nodiscard]] const std::byte* peer_memory(const window&, rank_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "peer_memory is read only");
#endif

#if PEERBUS_CASE == 20
// case 20: expect "constraint"
template class peerbus::communicator<int>;
#endif

#if PEERBUS_CASE == 21
// case 21: expect "constraint|no matching|no type|no member|no viable"
// The memory of peers is there for direct transports only.
auto reach(peerbus::window<complete>& at) { return at.peer(rank_id{}); }
#endif

#if PEERBUS_CASE == 22
// case 22: expect "nodiscard"
#pragma GCC diagnostic error "-Wunused-result"
void forget(peerbus::window<complete>& at) { at.signal(rank_id{}, signal_id{}, 1); }
#endif

#if PEERBUS_CASE == 23
// case 23: expect "static.assert.*failed.*capabilities may throw"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] peerbus::transport_capabilities capabilities() const;
};
static_assert(peerbus::transport<near_miss>, "capabilities may throw");
#endif

#if PEERBUS_CASE == 24
// case 24: expect "static.assert.*failed.*ranks_are can change"
struct near_miss : complete_runnable {
  using complete_runnable::complete_runnable;
  static peerbus::rank_kind ranks_are;
};
static_assert(peerbus::transport<near_miss>);
static_assert(peerbus::runnable_transport<near_miss>, "ranks_are can change");
#endif

#if PEERBUS_CASE == 25
// case 25: expect "use run_local or run_threads"
// The type does not say which transport to make.
int start() {
  return peerbus::run<peerbus::any_transport>(1, [](auto&) {});
}
#endif

#if PEERBUS_CASE == 26
// case 26: expect "constraint|no matching"
peerbus::any_direct_transport hold(complete bus) {
  return peerbus::any_direct_transport{std::move(bus)};
}
#endif

#if PEERBUS_CASE == 27
// case 27: expect "constraint|no matching"
// What an any_transport holds may have no peer memory.
peerbus::any_direct_transport hold(peerbus::any_transport bus) {
  return peerbus::any_direct_transport{std::move(bus)};
}
#endif

#if PEERBUS_CASE == 28
// case 28: expect "static.assert.*failed.*find_peer_memory may throw"
struct near_miss : complete_partly_direct {
  using complete_partly_direct::complete_partly_direct;
  [[nodiscard]] std::byte* find_peer_memory(const window&, rank_id) const;
};
static_assert(peerbus::transport<near_miss>, "find_peer_memory may throw");
#endif

#if PEERBUS_CASE == 29
// case 29: expect "static.assert.*failed.*all peers are near"
struct near_miss : complete_direct {
  static constexpr peerbus::transport_refinements refines{.peer_memory = true,
                                                          .find_peer_memory = true};
  using complete_direct::complete_direct;
  [[nodiscard]] std::byte* find_peer_memory(const window&, rank_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "all peers are near");
#endif

#if PEERBUS_CASE == 30
// case 30: expect "static.assert.*failed.*peer_memory is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "peer_memory is not named");
#endif

#if PEERBUS_CASE == 31
// case 31: expect "static.assert.*failed.*find_peer_memory is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::byte* find_peer_memory(const window&, rank_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "find_peer_memory is not named");
#endif

#if PEERBUS_CASE == 32
// case 32: expect "static.assert.*failed.*put_run takes offsets and sources apart"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.put_run = true};
  using complete::complete;
  [[nodiscard]] errc put_run(rank_id, const window&, std::span<const std::size_t>,
                             std::span<const std::byte>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "put_run takes offsets and sources apart");
#endif

#if PEERBUS_CASE == 33
// case 33: expect "static.assert.*failed.*put_run is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc put_run(rank_id, const window&, std::span<const peerbus::put_piece>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "put_run is not named");
#endif

#if PEERBUS_CASE == 34
// case 34: expect "static.assert.*failed.*signal_each takes a mutable window"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.signal_each = true};
  using complete::complete;
  [[nodiscard]] errc signal_each(std::span<const rank_id>, window&, signal_id,
                                 std::uint64_t) noexcept;
};
static_assert(peerbus::transport<near_miss>, "signal_each takes a mutable window");
#endif

#if PEERBUS_CASE == 35
// case 35: expect "static.assert.*failed.*signal_each is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc signal_each(std::span<const rank_id>, const window&, signal_id,
                                 std::uint64_t) noexcept;
};
static_assert(peerbus::transport<near_miss>, "signal_each is not named");
#endif

#if PEERBUS_CASE == 36
// case 36: expect "static.assert.*failed.*describe_trouble needs a mutable transport"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.describe_trouble = true};
  using complete::complete;
  [[nodiscard]] std::string describe_trouble();
};
static_assert(peerbus::transport<near_miss>, "describe_trouble needs a mutable transport");
#endif

#if PEERBUS_CASE == 37
// case 37: expect "static.assert.*failed.*describe_trouble is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] std::string describe_trouble() const;
};
static_assert(peerbus::transport<near_miss>, "describe_trouble is not named");
#endif

#if PEERBUS_CASE == 38
// case 38: expect "static.assert.*failed.*refines can change"
struct near_miss : complete {
  static peerbus::transport_refinements refines;
  using complete::complete;
};
static_assert(peerbus::transport<near_miss>, "refines can change");
#endif

#if PEERBUS_CASE == 39
// case 39: expect "Kept names a refinement that the inner transport does not have"
using near_miss =
    peerbus::transport_decorator<complete, peerbus::transport_refinements{.signal_each = true}>;
static_assert(!peerbus::direct_transport<near_miss>);
#endif

#if PEERBUS_CASE == 40
// case 40: expect "static.assert.*failed.*peers' signals are missing"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.peer_memory = true};
  using complete::complete;
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "peers' signals are missing");
#endif

#if PEERBUS_CASE == 41
// case 41: expect "static.assert.*failed.*wait_at may throw"
struct near_miss : complete_direct {
  using complete_direct::complete_direct;
  [[nodiscard]] errc wait_at(rank_id, const window&, signal_id, std::uint64_t, deadline,
                             std::optional<rank_id>);
};
static_assert(peerbus::transport<near_miss>, "wait_at may throw");
#endif

#if PEERBUS_CASE == 42
// case 42: expect "static.assert.*failed.*value_at needs a mutable transport"
struct near_miss : complete_direct {
  using complete_direct::complete_direct;
  [[nodiscard]] std::uint64_t value_at(rank_id, const window&, signal_id) noexcept;
};
static_assert(peerbus::transport<near_miss>, "value_at needs a mutable transport");
#endif

#if PEERBUS_CASE == 43
// case 43: expect "static.assert.*failed.*wait_at is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc wait_at(rank_id, const window&, signal_id, std::uint64_t, deadline,
                             std::optional<rank_id>) noexcept;
  [[nodiscard]] std::uint64_t value_at(rank_id, const window&, signal_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "wait_at is not named");
#endif

#if PEERBUS_CASE == 44
// case 44: expect "static.assert.*failed.*adopt_window does not say who keeps the memory"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.adopt_window = true};
  using complete::complete;
  [[nodiscard]] window adopt_window(std::span<std::byte>, deadline);
};
static_assert(peerbus::transport<near_miss>, "adopt_window does not say who keeps the memory");
#endif

#if PEERBUS_CASE == 45
// case 45: expect "static.assert.*failed.*adopt_window is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] window adopt_window(peerbus::window_memory, deadline);
};
static_assert(peerbus::transport<near_miss>, "adopt_window is not named");
#endif

#if PEERBUS_CASE == 46
// case 46: expect "static.assert.*failed.*local_signals may throw"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.local_signals = true};
  using complete::complete;
  [[nodiscard]] std::span<peerbus::signal_word> local_signals(const window&) const;
};
static_assert(peerbus::transport<near_miss>, "local_signals may throw");
#endif

#if PEERBUS_CASE == 47
// case 47: expect "static.assert.*failed.*disarm is missing"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.arrival_events = true};
  using complete::complete;
  [[nodiscard]] int arrival_fd() const noexcept;
  [[nodiscard]] bool arm() noexcept;
  [[nodiscard]] errc health(std::optional<rank_id>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "disarm is missing");
#endif

#if PEERBUS_CASE == 48
// case 48: expect "static.assert.*failed.*the far plane cannot take memory"
static_assert(!peerbus::adopting_transport<complete>);
template <class Far>
concept far_plane = requires { typename peerbus::planes<peerbus::loopback, Far>; };
static_assert(far_plane<complete>, "the far plane cannot take memory");
#endif

#if PEERBUS_CASE == 49
// case 49: expect "static.assert.*failed.*the near plane lends no signals"
template <class Near>
concept near_plane = requires { typename peerbus::planes<Near, peerbus::loopback>; };
static_assert(near_plane<complete_direct>, "the near plane lends no signals");
#endif

#if PEERBUS_CASE == 50
// case 50: expect "static.assert.*failed.*the window cannot be assigned"
struct near_miss : complete {
  using complete::complete;
  struct window {
    window() = default;
    window(window&&) = default;
  };
  [[nodiscard]] window make_window(window_shape, deadline);
};
static_assert(peerbus::transport<near_miss>, "the window cannot be assigned");
#endif

#if PEERBUS_CASE == 51
// case 51: expect "static.assert.*failed.*get_private may throw"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.private_memory = true};
  using complete::complete;
  [[nodiscard]] errc get_private(rank_id, const window&, std::uint64_t, std::span<std::byte>);
};
static_assert(peerbus::transport<near_miss>, "get_private may throw");
#endif

#if PEERBUS_CASE == 52
// case 52: expect "static.assert.*failed.*get_private is not named"
struct near_miss : complete {
  using complete::complete;
  [[nodiscard]] errc get_private(rank_id, const window&, std::uint64_t,
                                 std::span<std::byte>) noexcept;
};
static_assert(peerbus::transport<near_miss>, "get_private is not named");
#endif

#if PEERBUS_CASE == 53
// case 53: expect "static.assert.*failed.*reach says which of nothing"
struct near_miss : complete {
  static constexpr peerbus::transport_refinements refines{.reach = true};
  using complete::complete;
  [[nodiscard]] peerbus::peer_reach reach() const noexcept;
  [[nodiscard]] errc wait_at(rank_id, const window&, signal_id, std::uint64_t, deadline,
                             std::optional<rank_id>) noexcept;
  [[nodiscard]] std::uint64_t value_at(rank_id, const window&, signal_id) const noexcept;
};
static_assert(peerbus::transport<near_miss>, "reach says which of nothing");
#endif

#if PEERBUS_CASE == 54
// case 54: expect "static.assert.*failed.*reach without the signals of peers"
struct near_miss : complete_partly_direct {
  static constexpr peerbus::transport_refinements refines{.find_peer_memory = true, .reach = true};
  using complete_partly_direct::complete_partly_direct;
  [[nodiscard]] peerbus::peer_reach reach() const noexcept;
};
static_assert(peerbus::transport<near_miss>, "reach without the signals of peers");
#endif

#if PEERBUS_CASE == 55
// case 55: expect "static.assert.*failed.*reach is not named"
struct near_miss : complete_partly_direct {
  using complete_partly_direct::complete_partly_direct;
  [[nodiscard]] peerbus::peer_reach reach() const noexcept;
};
static_assert(peerbus::transport<near_miss>, "reach is not named");
#endif
