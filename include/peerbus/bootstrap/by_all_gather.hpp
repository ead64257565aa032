// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rendezvous_options.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Collective: makes a bootstrap of `size` processes that are already connected in another way,
/// such as by MPI, a store or an engine's own group. `mpi_bootstrap` does this for MPI.
///
/// `all_gather(own)` gives the bytes of each rank, the same number on each, to all ranks, and
/// returns the bytes of all ranks, by rank. It is called twice, by this thread, and not kept. It
/// must end by itself if a rank does not come. It carries the names of the hosts, the rendezvous
/// place, a random secret and a random number of the job. If all ranks are on one host, they meet
/// as those of `environment_bootstrap` do, so that `unified_bus` works. Otherwise
/// `over_network(settings, until)` makes the bootstrap:
///
///     [](const peerbus::tcp_settings& settings, peerbus::deadline until) {
///       return std::make_unique<peerbus::tcp_bootstrap>(settings, until);
///     }
///
/// It is a parameter because `tcp_bootstrap` needs OpenSSL. Rank 0 opens a port that the system
/// chooses.
///
/// Cost: two calls of `all_gather` with at most 1 KiB of each rank, and the cost of the constructor
/// of the bootstrap.
/// Throws: any exception of `all_gather`, on that rank; `error` invalid_argument (a `rank` that is
/// not below `size`, a result of `all_gather` with the wrong size, a host name that is too long);
/// mismatch if ranks are of different builds; system; otherwise as the constructor of the
/// bootstrap.
[[nodiscard]] std::unique_ptr<bootstrap> bootstrap_by_all_gather(
    std::size_t rank, std::size_t size,
    const std::function<std::vector<std::byte>(std::span<const std::byte> own)>& all_gather,
    const std::function<std::unique_ptr<bootstrap>(const tcp_settings& settings, deadline until)>&
        over_network,
    deadline until = deadline::after(std::chrono::seconds{30}),
    const rendezvous_options& options = {});

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/by_all_gather.ipp>  // IWYU pragma: keep
#endif
