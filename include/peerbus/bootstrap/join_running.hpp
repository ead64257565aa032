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

/// Calls a running group of `capacity` slots at `place` until it admits this process to `slot`.
/// Returns: a bootstrap of the group.
/// Throws: as `join_running`.
std::unique_ptr<bootstrap> call_running_group(admission_place& place, std::size_t slot,
                                              std::size_t capacity, deadline until);
/// Calls a running group of this host at the place that `settings` name. Contract as above.
std::unique_ptr<bootstrap> call_running_group(const launch_settings& settings, deadline until);

/// Returns the deadline of this process once the group has begun to admit it: `until`, but at least
/// 30 s from now, because the members then wait for this process.
deadline until_admitted(deadline until);

/// Waits until every rank of `boot` has made its object with `boot`.
/// Throws: `error` peer_dead if a member has given up; as `bootstrap::allgather`.
void await_admission(bootstrap& boot, deadline until);

/// Calls `make` with the bootstrap that `call()` returns, and waits until all ranks of the group
/// have made their object. If a step ends with peer_dead before `until`, repeats all steps.
/// Returns: the result of `make`.
/// Throws: as `join_running`.
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

/// Makes this process rank `settings.rank` of a group that already runs on this host, in place of a
/// rank that is gone or was never there. Waits until the members of the group admit it by
/// `admission::admit` (communicator/admission.hpp). `size`, `address`, `port` and `job` are those
/// of the group. If the member that listens ends meanwhile, another member listens. Prepare slow
/// things, such as weights, before the call, because the members wait while `make` runs.
///
/// `make(boot)` gets the bootstrap of the group, as a `std::unique_ptr`, and returns an object that
/// owns it. It must make the same communicators, windows and exchanges as the members make, in the
/// same order. It is called again if the members gave up because another rank died meanwhile.
/// `until` bounds the wait for the group.
/// Returns: the object, once all members have one.
/// Cost: two connections, seven allgathers, and the cost of `make`.
/// Throws: `error` invalid_argument if the rank is not below the size; mismatch with the reason why
/// the group refuses this process (the rank is there, two claim it, another size or build);
/// timed_out if no group admits it; any exception of `make`.
template <class Make>
[[nodiscard]] auto join_running(const launch_settings& settings, Make&& make,
                                deadline until = deadline::after(std::chrono::seconds{30})) {
  return detail::join_by([&] { return detail::call_running_group(settings, until); }, make, until);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/join_running.ipp>  // IWYU pragma: keep
#endif
