// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/planes/far_bootstrap.hpp>
#include <peerbus/transport/planes/group.hpp>
#include <peerbus/transport/planes/options.hpp>
#include <peerbus/transport/planes/traffic.hpp>
#include <peerbus/transport/planes/wait.hpp>
#include <peerbus/transport/planes/wakeups.hpp>
#include <peerbus/transport/planes/window.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail {

/// The two planes of a rank. Makes the planes and windows of both, and lets one thread sleep for
/// both.
template <near_transport Near, adopting_transport Far>
class plane_pair {
 public:
  static constexpr bool near_tells = refinements_of<Near>().arrival_events;
  static constexpr bool far_tells = refinements_of<Far>().arrival_events;
  /// True if a rank can sleep on a descriptor, and so has a wakeup.
  static constexpr bool has_wakeups = near_tells || far_tells;

  using window = planes_window<Near, Far>;

  /// Makes both planes. Collective. Contract as the constructor of `planes`.
  template <class MakeNear, class MakeFar>
  plane_pair(bootstrap& boot, const planes_options& options, MakeNear& make_near, MakeFar& make_far)
      : boot_{&boot},
        group_{
            std::make_unique<plane_group>(boot, options, deadline::after(options.setup_timeout))},
        traffic_{std::make_unique<pair_traffic>()},
        adopted_{std::make_shared<std::atomic<std::size_t>>(0)} {
    const auto until = deadline::after(options.setup_timeout);
    const auto objection = objection_of(a_plane, [&] {
      near_.emplace(make_near(group_->boot()));
      if constexpr (has_wakeups) make_wakeups(until);
    });
    if (objection) {  // They use the group's bootstrap, which ends with the objection.
      wakeups_.reset();
      wakeup_lines_.reset();
      near_.reset();
    }
    group_->agree_on_near(objection, until);
    if (group_->is_everyone()) return;
    far_boot_ = std::make_unique<far_bootstrap>(boot);
    const auto far_objection = objection_of(a_plane, [&] {
      far_.emplace(make_far(*far_boot_));
      if constexpr (far_tells) watch(far_->arrival_fd());
    });
    far_boot_->finish(far_objection, deadline::after(options.setup_timeout));
  }

  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] const plane_group& group() const noexcept { return *group_; }
  [[nodiscard]] Near& near() noexcept { return *near_; }
  [[nodiscard]] const Near& near() const noexcept { return *near_; }
  /// Returns the far plane, or nullptr if all ranks are near each other.
  [[nodiscard]] Far* far() noexcept { return far_ ? &*far_ : nullptr; }
  [[nodiscard]] const Far* far() const noexcept { return far_ ? &*far_ : nullptr; }
  /// Returns the number of bytes in this rank's windows that the far plane keeps.
  [[nodiscard]] std::size_t adopted_bytes() const noexcept {
    return adopted_->load(std::memory_order_relaxed);  // order: none; a number for people.
  }

  /// Makes a window. `make_near()` makes the window of the near plane. Collective.
  /// Throws: as `on_all_ranks`, and as `adopt_window` of `Far`.
  template <class MakeNear>
  [[nodiscard]] window make(MakeNear&& make_near, traffic_class traffic, deadline until) {
    window made = on_all_ranks(*boot_, "window of planes", until,
                               [&] { return window{make_near(), *near_, windows_ + 1}; });
    if (far_) made.adopt(*far_, *near_, adopted_, traffic, until);
    ++windows_;
    return made;
  }

  /// Returns the memory of the near rank `number`, or nullptr if the near plane reaches it by
  /// requests.
  [[nodiscard]] std::byte* near_memory(const typename Near::window& memory,
                                       rank_id number) const noexcept {
    if constexpr (direct_transport<Near>)
      return near_->peer_memory(memory, number);
    else
      return number == own_number() ? near_->local(memory).data()
                                    : near_->find_peer_memory(memory, number);
  }

  /// Calls `by_near(number)` or `by_far()`, depending on the plane that reaches `peer`. Counts the
  /// traffic if the call returns ok. Returns out_of_range if `peer` does not exist.
  template <class ByNear, class ByFar>
  [[nodiscard]] errc by_plane(rank_id peer, std::size_t bytes, std::size_t messages,
                              ByNear&& by_near, ByFar&& by_far) noexcept {
    if (peer.index() >= group_->all()) return errc::out_of_range;
    const bool is_near = group_->is_near(peer);
    const errc code = is_near ? by_near(group_->number_of(peer)) : by_far();
    if (code == errc::ok) (is_near ? traffic_->near : traffic_->far).add(bytes, messages);
    return code;
  }
  /// Returns the counters of both planes.
  [[nodiscard]] pair_traffic& traffic() noexcept { return *traffic_; }
  [[nodiscard]] const pair_traffic& traffic() const noexcept { return *traffic_; }

  /// Wakes the near rank `number` if it sleeps until signal `id` is raised. The caller has raised
  /// it.
  void wake(rank_id number, const window& memory, signal_id id) noexcept {
    if constexpr (has_wakeups) wakeups_->wake(number, wakeups::key_of(memory.number(), id));
  }

  ///@{
  /// Implements the calls of requirement 20. `arm` covers only the signal `key` of near ranks, and
  /// all arrivals of planes with descriptors.
  [[nodiscard]] int arrival_fd() const noexcept {
    if constexpr (has_wakeups) return wakeups_->fd();
    return -1;
  }
  [[nodiscard]] bool arm([[maybe_unused]] std::uint64_t key) noexcept {
    if constexpr (has_wakeups) {
      if (!wakeups_->announce(key)) return false;
      if (arm_near()) {
        if (arm_far()) return true;
        disarm_near();
      }
      wakeups_->withdraw();
    }
    return false;
  }
  void disarm() noexcept {
    if constexpr (far_tells)
      if (far_) far_->disarm();
    disarm_near();
    if constexpr (has_wakeups) wakeups_->withdraw();
  }
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept {
    if (const errc found = boot_->members()->health(awaited); found != errc::ok) return found;
    if constexpr (near_tells) {
      const errc found = near_->health(number_of_near(awaited));
      if (found != errc::ok) return found;
    }
    if constexpr (far_tells)
      if (far_) return far_->health(awaited);
    return errc::ok;
  }
  ///@}

  ///@{
  /// Implements `value` and `wait` of `transport`.
  [[nodiscard]] std::uint64_t poll(const window& memory, signal_id id) const noexcept {
    // A plane of loads and stores alone need not be asked. The word is the same in all.
    if constexpr (!direct_transport<Near>) static_cast<void>(near_->value(memory.near(), id));
    return far_ ? far_->value(memory.far(), id) : near_->value(memory.near(), id);
  }
  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited,
                          const wait_thresholds& thresholds) noexcept {
    if (!far_) return near_->wait(memory.near(), id, value, until, awaited);
    if (index(id) >= memory.signals().size() ||
        awaited.value_or(rank_id{}).index() >= group_->all())
      return errc::out_of_range;
    signal_word& word = memory.signals()[index(id)];
    const auto poll_now = [&]() noexcept { return poll(memory, id); };
    // A poll may take a system call, where a load of the word is enough for near ranks.
    constexpr std::uint32_t loads_per_poll = 16;
    for (std::uint32_t i = 0; i <= thresholds.tight + thresholds.paused; ++i) {
      if ((i % loads_per_poll == 0 ? poll_now() : word.value()) >= value) return errc::ok;
      if (i > thresholds.tight) pause_core();
    }
    const auto care = [&]() noexcept { return check_health(memory, id, value, awaited); };
    const auto sleep = [&]() noexcept { return arm(wakeups::key_of(memory.number(), id)); };
    const auto wake = [&]() noexcept { disarm(); };
    return wait_on_planes(word, value, until, thresholds,
                          {poll_now, care, sleep, wake, arrival_fd()});
  }
  ///@}

 private:
  static constexpr std::string_view a_plane = "a plane";
  /// True if the near plane needs polls, and cannot say when.
  static constexpr bool near_is_mute = !near_tells && !direct_transport<Near>;

  /// Checks whether the peers of a wait are alive, if there is a far plane. Returns the code with
  /// which the wait ends early, or ok.
  [[nodiscard]] errc check_health(const window& memory, signal_id id, std::uint64_t value,
                                  std::optional<rank_id> awaited) noexcept {
    // A wait that is out of time advances a plane, and checks whether its peers are alive.
    const auto past = deadline{deadline::clock::time_point::min()};
    errc found = health(awaited);
    if constexpr (near_is_mute)
      if (found == errc::ok)
        found = end_of(near_->wait(memory.near(), id, value, past, number_of_near(awaited)));
    if constexpr (!far_tells)
      if (found == errc::ok) found = end_of(far_->wait(memory.far(), id, value, past, awaited));
    return found;
  }
  /// Returns the code with which a wait ends early, or ok if it only ran out of time.
  [[nodiscard]] static errc end_of(errc code) noexcept {
    return code == errc::timed_out ? errc::ok : code;
  }
  /// Returns the number of `awaited` among the near ranks, or the caller's number if `awaited` is
  /// far or empty. A near rank that left matters only to a wait for that rank.
  [[nodiscard]] rank_id number_of_near(std::optional<rank_id> awaited) const noexcept {
    return awaited && awaited->index() < group_->all() && group_->is_near(*awaited)
               ? group_->number_of(*awaited)
               : own_number();
  }

  void make_wakeups(deadline until) {
    wakeup_lines_.emplace(near_->make_window({.bytes = wakeups::line_bytes}, until));
    std::vector<std::byte*> lines;
    for (const rank_id number : all_ranks{group_->members().size()})
      lines.push_back(near_memory(*wakeup_lines_, number));
    wakeups_ = std::make_unique<wakeups>(group_->boot(), std::move(lines), until);
    if constexpr (near_tells) watch(near_->arrival_fd());
  }
  /// Lets `fd` wake this rank as well. If `fd` is negative, the plane cannot wake it, and its `arm`
  /// returns false.
  void watch(int fd) {
    if (fd >= 0) wakeups_->watch(fd);
  }

  [[nodiscard]] rank_id own_number() const noexcept { return group_->number_of(boot_->rank()); }
  [[nodiscard]] bool arm_near() noexcept {
    if constexpr (near_tells) return near_->arm();
    return !near_is_mute;
  }
  [[nodiscard]] bool arm_far() noexcept {
    if constexpr (far_tells) return !far_ || far_->arm();
    return true;
  }
  void disarm_near() noexcept {
    if constexpr (near_tells) near_->disarm();
  }

  // In the order in which they are made. Each needs those before it.
  bootstrap* boot_;
  std::unique_ptr<plane_group> group_;
  std::unique_ptr<pair_traffic> traffic_;
  std::shared_ptr<std::atomic<std::size_t>> adopted_;
  std::optional<Near> near_;
  std::optional<typename Near::window> wakeup_lines_;
  std::unique_ptr<wakeups> wakeups_;
  std::unique_ptr<far_bootstrap> far_boot_;
  std::optional<Far> far_;
  std::uint32_t windows_ = 0;  ///< number of windows made so far, the same on all ranks
};

}  // namespace peerbus::detail
