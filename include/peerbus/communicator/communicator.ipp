// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus {

template <transport Transport>
communicator<Transport>::communicator(Transport bus, communicator_options options)
    : rank_group{bus.boot(), options},
      bus_{std::move(bus)},
      shares_cores_{bus_.boot().shares_cores()},
      posted_{make_posted_boards()},
      control_{make_control_window(options.needs_fetch_add)},
      agreement_{make_agreement()} {
  spread_peers(detail::near_ranks_of(bus_));
}

template <transport Transport>
communicator<Transport>::~communicator() = default;

template <transport Transport>
window<Transport> communicator<Transport>::make_window(std::size_t bytes, std::size_t signals) {
  return make_window(bytes, signals, default_deadline());
}

template <transport Transport>
window<Transport> communicator<Transport>::make_window(std::size_t bytes, std::size_t signals,
                                                       deadline until) {
  return make_window({.bytes = bytes, .signals = signals}, until);
}

template <transport Transport>
window<Transport> communicator<Transport>::make_window(window_shape shape) {
  return make_window(shape, default_deadline());
}

template <transport Transport>
window<Transport> communicator<Transport>::make_window(window_shape shape, deadline until) {
  const std::array values{declared{"bytes", shape.bytes}, declared{"signals", shape.signals},
                          declared{"traffic", name_of(shape.traffic)}};
  agree("make_window", values, until);
  return make_agreed_window(shape, until);
}

template <transport Transport>
void communicator<Transport>::barrier() {
  barrier(default_deadline());
}

template <transport Transport>
void communicator<Transport>::barrier(deadline until) {
  require_healthy("barrier", view().number());
  ++barrier_epoch_;
  const event_listeners& listeners = members()->listeners();
  if (!listeners.any()) return meet(until);
  detail::reported(listeners,
                   {.what = {.operation = group_operation::barrier, .number = barrier_epoch_},
                    .name = name_of(group_operation::barrier)},
                   [&](operation_event& event) {
                     event.epoch = barrier_epoch_;
                     meet(until);
                     event.ended = operation_event::latest();  // It ends with its wait.
                   });
}

template <transport Transport>
void communicator<Transport>::meet(deadline until) {
  const auto wait =
      members()->begin_wait({.operation = group_operation::barrier, .number = barrier_epoch_});
  const bool is_heard = members()->listeners().any();
  std::optional<rank_id> last;
  const auto note_missing = [&](rank_id peer, std::uint64_t seen) {
    if (seen < barrier_epoch_) last = peer;
  };
  require(bus_.quiet());
  const auto complain = [&](errc code, std::size_t round, rank_id absent, std::uint64_t seen) {
    members()->fail_wait(wait, code, absent);
    const std::string text = detail::concat("barrier ", barrier_epoch_, ", round ", round,
                                            ": waited ", detail::describe_elapsed(wait), " for ");
    fail_waiting(code, text, {&absent, 1}, [&](rank_id) {
      return detail::concat("epoch ", seen, ", expected ", barrier_epoch_);
    });
  };
  if constexpr (detail::has_peer_signals<Transport>)
    if (shares_cores_ && size() > 1 && reach_of(bus_) == peer_reach::all) {
      // Ranks share cores, so that each wait may take a turn of all of them. One round, in which
      // each rank looks at the words of all others, takes fewer turns than several rounds.
      constexpr auto word = static_cast<signal_id>(0);
      require(control_.signal(rank(), word, barrier_epoch_));
      for (const rank_id peer : peers()) {
        if (is_heard) note_missing(peer, control_.value_at(peer, word));
        if (const errc code = control_.wait_at(peer, word, barrier_epoch_, until, peer);
            code != errc::ok)
          complain(code, 0, peer, control_.value_at(peer, word));
      }
      return members()->end_wait(wait, {.epoch = barrier_epoch_, .last = last});
    }
  // Dissemination barrier: in round k each rank signals the rank that is 2^k places after it. After
  // the last round every rank has heard from every other rank, directly or through others.
  const auto in_view = view().members();
  const std::size_t place = view().place_of(rank());
  std::size_t distance = 1;
  for (std::size_t round = 0; distance < in_view.size(); ++round, distance *= 2) {
    const auto id = static_cast<signal_id>(round);
    const rank_id next = in_view[(place + distance) % in_view.size()];
    const rank_id previous = in_view[(place + in_view.size() - distance) % in_view.size()];
    require(control_.signal(next, id, barrier_epoch_));
    if (is_heard) note_missing(previous, control_.value(id));
    if (const errc code = control_.wait(id, barrier_epoch_, until, previous); code != errc::ok)
      complain(code, round, previous, control_.value(id));
  }
  members()->end_wait(wait, {.epoch = barrier_epoch_, .last = last});
}

template <transport Transport>
const group_view& communicator<Transport>::continue_without_the_dead() {
  return continue_without_the_dead(default_deadline());
}

template <transport Transport>
const group_view& communicator<Transport>::continue_without_the_dead(deadline until) {
  return go_on({}, until);
}

template <transport Transport>
const group_view& communicator<Transport>::go_on(std::span<const rank_id> evicted, deadline until) {
  // If a call has failed, as a connection of the bootstrap was closed, the end of the process may
  // be noticed a moment later.
  constexpr std::chrono::milliseconds moment{500};
  group_view next =
      agreement("continue_without_the_dead")
          .agree(view(), is_poisoned() ? deadline::after(moment) : deadline::after({}), until,
                 evicted);
  if (next.number() == view().number()) return view();
  if (posted_) {
    enter(std::move(next));
    poison(
        "the ranks have gone on without others; expected a communicator over `survivors`, as "
        "this transport has no memory that all of them share");
    return view();
  }
  bus_.boot().go_on({next.members().begin(), next.members().end()},
                    [known = std::weak_ptr{self_}](deadline limit) {
                      const auto self = known.lock();
                      if (!self)
                        throw error{errc::poisoned,
                                    "the ranks that are left have not met before the communicator "
                                    "which went on was destroyed"};
                      return peerbus::survivors(**self, limit);
                    });
  // In the view that broke, some ranks may have come to one more barrier than others.
  barrier_epoch_ = next.number() << 32;
  // And some may have made one more window.
  windows_ = static_cast<std::uint32_t>(next.number()) << 16U;
  enter(std::move(next));
  return view();
}

template <transport Transport>
const group_view& communicator<Transport>::continue_without(std::span<const rank_id> evicted) {
  return continue_without(evicted, default_deadline());
}

template <transport Transport>
const group_view& communicator<Transport>::continue_without(std::span<const rank_id> evicted,
                                                            deadline until) {
  static_cast<void>(agreement("continue_without"));
  require_others("continue_without", evicted);
  // Ranks that go on in new memory need not fear what one that lives still writes.
  if (posted_) return go_on(evicted, until);
  members()->end(evicted, until);
  return go_on({}, until);
}

template <transport Transport>
std::vector<std::byte> communicator<Transport>::gather_in_view(std::string_view doing,
                                                               std::span<const std::byte> own,
                                                               deadline until) {
  if (!posted_ || view().number() == 0) require_healthy(doing, view().number());
  return guarded([&] { return agreement(doing).gather(view(), doing, own, until); });
}

template <transport Transport>
detail::view_agreement& communicator<Transport>::agreement(std::string_view doing) {
  if (!agreement_)
    throw error{errc::unsupported,
                detail::concat(doing,
                               ": expected a transport by which every rank reaches the memory "
                               "of all, such as unified_bus, and one of the library's bootstraps, "
                               "or a tcp_bootstrap whose ranks are a mesh (PEERBUS_MESH)")};
  return *agreement_;
}

template <transport Transport>
window<Transport> communicator<Transport>::make_agreed_window(window_shape shape, deadline until) {
  auto memory =
      guarded([&] { return bus_.make_window(shape, until); });  // On all ranks or on none.
  return {bus_, shape, std::move(memory), windows_++};
}

template <transport Transport>
window<Transport> communicator<Transport>::make_control_window(bool needs_fetch_add) {
  if (needs_fetch_add) {
    std::optional<error> objection;
    if (!bus_.capabilities().fetch_add)
      objection = error{errc::unsupported,
                        "communicator: fetch_add is needed, but this transport has none"};
    agree("communicator", {}, objection);
  }
  return make_agreed_window(
      {.bytes = reach_of(bus_) == peer_reach::all ? detail::agreement_board::bytes_for(size()) : 0,
       .signals = barrier_rounds(size())},
      default_deadline());
}

/// Makes the posted boards, or returns null if ranks post no views. Called before the first window
/// is made, so that all ranks have boards when any rank has a communicator.
template <transport Transport>
std::unique_ptr<detail::posted_boards> communicator<Transport>::make_posted_boards() {
  if (reach_of(bus_) == peer_reach::all && bus_.boot().can_go_on()) return nullptr;
  auto messages = bus_.boot().messages();
  if (!messages) return nullptr;
  return std::make_unique<detail::posted_boards>(std::move(messages), members());
}

template <transport Transport>
std::optional<detail::view_agreement> communicator<Transport>::make_agreement() {
  const bootstrap& boot = bus_.boot();
  const auto thresholds = adaptive_wait{}.thresholds(boot.ranks_here(), boot.cores_here());
  if (posted_)
    return std::optional<detail::view_agreement>{std::in_place, boot.members(), posted_->boards(),
                                                 thresholds, posted_.get()};
  if (reach_of(bus_) != peer_reach::all || !boot.can_go_on()) return std::nullopt;
  std::vector<std::byte*> boards;
  for (const rank_id rank : ranks()) {
    if constexpr (direct_transport<Transport>)
      boards.push_back(bus_.peer_memory(control_.memory(), rank));
    else if constexpr (partly_direct_transport<Transport>)
      boards.push_back(bus_.find_peer_memory(control_.memory(), rank));
  }
  return std::optional<detail::view_agreement>{std::in_place, boot.members(), std::move(boards),
                                               thresholds};
}

template <transport Transport>
void communicator<Transport>::require(errc code) {
  if (code == errc::ok) return;
  std::string text = detail::concat("barrier ", barrier_epoch_);
  if (const auto gone = missing(); !gone.empty()) text += ": " + gone;
  fail(code, text);
}

template <transport Transport>
std::string communicator<Transport>::missing() const {
  return describe_absence(bus_);
}

}  // namespace peerbus
