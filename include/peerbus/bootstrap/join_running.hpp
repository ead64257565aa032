// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

namespace detail {

class admission_place;

/// Calls a running group of `capacity` slots at `place` until it takes this process in for `slot`,
/// as `join_running` does.
/// Returns: a bootstrap of the group.
std::unique_ptr<bootstrap> call_running_group(admission_place& place, std::size_t slot,
                                              std::size_t capacity, deadline until);
/// Calls a running group of this host.
std::unique_ptr<bootstrap> call_running_group(const launch_settings& settings, deadline until);

/// Returns how long this process waits once the group has begun to take it in: as long as `until`,
/// and 30 s at least, as the members then count on it.
deadline until_admitted(deadline until);

/// Waits until every rank of `boot` has built what it makes of it.
/// Throws: `error` peer_dead, if a member gave it up; as `bootstrap::allgather`.
void await_admission(bootstrap& boot, deadline until);

/// Makes by `make` what a rank needs that `call()` has brought into a group, until all ranks of the
/// group have it, as `join_running` does.
template <class Call, class Make>
[[nodiscard]] auto join_by(Call&& call, Make&& make, deadline until) {
  using made = std::invoke_result_t<Make&, std::unique_ptr<bootstrap>>;
  for (;;) {
    try {
      auto boot = call();
      bootstrap& group = *boot;
      made result = make(std::move(boot));
      await_admission(group, until_admitted(until));
      return result;
    } catch (const error& problem) {
      if (problem.code() != errc::peer_dead || until.expired()) throw;
    }
  }
}

}  // namespace detail

/// Makes this process rank `settings.rank` of a group that runs already on this host, in place of a
/// rank that is gone or was never there. Waits until the members of the group take it in by
/// `admission::admit` (communicator/admission.hpp); `size`, `address`, `port` and `job` are theirs.
/// The member that listens may end meanwhile, and another listens then. Prepare what takes long,
/// such as weights, before: while this rank makes what it needs, the members wait.
///
/// `make(boot)` gets the bootstrap of the group, as a `std::unique_ptr`, and returns an object that
/// owns it. It makes the same communicators, windows and exchanges as that of the members, in the
/// same order. It is called again if the members gave up, as another rank died meanwhile. `until`
/// bounds the wait for the group.
/// Returns: the object, once all members have one.
/// Cost: two connections, seven allgathers, and what `make` costs.
/// Throws: `error` mismatch with the reason why the group refuses this process (the rank is there,
/// two claim it, another size or build); timed_out if no group takes it in; what `make` throws.
template <class Make>
[[nodiscard]] auto join_running(const launch_settings& settings, Make&& make,
                                deadline until = deadline::after(std::chrono::seconds{30})) {
  return detail::join_by([&] { return detail::call_running_group(settings, until); }, make, until);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/join_running.ipp>  // IWYU pragma: keep
#endif
