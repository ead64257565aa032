// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/tcp_admission_place.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

namespace detail {

/// Calls a running group over TCP until it admits this process. Errors as `join_running`.
/// Returns: a bootstrap of the group.
inline std::unique_ptr<bootstrap> call_running_group(const tcp_settings& settings, deadline until) {
  check_settings(settings);
  tcp_admission_place place{settings};
  return call_running_group(place, settings.rank, settings.size, until);
}

}  // namespace detail

/// Makes this process the rank with slot `settings.rank` of `settings.size` in a running group
/// whose ranks met over TCP as a mesh. The contract is that of `join_running` on one host, except
/// as stated here. `port`, `secret` and `job` are those of the group. `mesh` is not used.
///
/// `settings.address` names the hosts on which the member that listens may run: one host or
/// several, with commas between them, such as "node0,node1". A name may have several addresses. The
/// call tries all of them one after the other, and resolves the names anew in each round, until
/// `until`. A host that does not answer takes a second.
/// Returns: the object of `make`, once all members have one. Its rank may differ from the slot,
/// because ranks are numbered in the order of their slots.
/// Cost: two connections to the member that listens, one to each other rank, nine allgathers, and
/// the cost of `make`. If a slot below those of all members is filled, all ranks meet once more.
/// Throws: as `join_running` on one host; `error` mismatch also if the secret differs;
/// invalid_argument as `tcp_bootstrap`.
template <class Make>
[[nodiscard]] auto join_running(const tcp_settings& settings, Make&& make,
                                deadline until = deadline::after(std::chrono::seconds{30})) {
  return detail::join_by([&] { return detail::call_running_group(settings, until); }, make, until);
}

}  // namespace peerbus
