// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/bootstrap/detail/mpi_group.hpp>
#include <peerbus/bootstrap/mpi.hpp>
#include <peerbus/bootstrap/tcp.hpp>

namespace peerbus {

inline std::unique_ptr<bootstrap> mpi_bootstrap(MPI_Comm group, deadline until,
                                                const rendezvous_options& options) {
  const detail::mpi_group ranks{group};
  return bootstrap_by_all_gather(
      ranks.rank(), ranks.size(),
      [&](std::span<const std::byte> own) {
        return ranks.allgather({own.begin(), own.end()}, until);
      },
      [](const tcp_settings& settings, deadline end) {
        return std::make_unique<tcp_bootstrap>(settings, end);
      },
      until, options);
}

}  // namespace peerbus
