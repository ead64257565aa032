// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/mpi_group.hpp>
#include <peerbus/bootstrap/detail/tcp_invitation.hpp>
#include <peerbus/bootstrap/mpi.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

namespace detail {

/// Collective: returns whether all ranks of `group` are near each other.
inline bool is_one_host(const mpi_group& group, deadline until) {
  const host_identity here{""};
  const auto bytes = std::as_bytes(std::span{&here, 1});
  const auto all = group.allgather({bytes.begin(), bytes.end()}, until);
  for (std::size_t start = 0; start < all.size(); start += sizeof here)
    if (std::memcmp(&all[start], &here, sizeof here) != 0) return false;
  return true;
}

/// Collective: gives the text of rank 0 to all ranks.
inline std::string broadcast(const mpi_group& group, const std::string& text, deadline until) {
  std::size_t size = text.size();
  const auto length = std::as_bytes(std::span{&size, 1});
  const auto known = group.broadcast({length.begin(), length.end()}, until);
  std::memcpy(&size, known.data(), sizeof size);
  const auto bytes = std::as_bytes(std::span{text});
  std::vector<std::byte> whole{bytes.begin(), bytes.end()};
  whole.resize(size);
  whole = group.broadcast(std::move(whole), until);
  return {reinterpret_cast<const char*>(whole.data()), whole.size()};
}

}  // namespace detail

inline std::unique_ptr<bootstrap> mpi_bootstrap(MPI_Comm group, deadline until,
                                                const rendezvous_options& options) {
  const detail::mpi_group ranks{group};
  const bool is_one_host = detail::is_one_host(ranks, until);
  detail::invitation own;  // It keeps the port, so it must live until all have met.
  std::string text;
  try {
    if (ranks.rank() == 0) {
      own = detail::invitation::make(options, is_one_host, detail::draw_digits());
      text = own.encode();
    }
  } catch (const error& problem) {
    text = detail::invitation::refuse(problem);
  }
  const auto received = detail::invitation::decode(detail::broadcast(ranks, text, until));
  return received.meet(ranks.rank(), ranks.size(), until);
}

}  // namespace peerbus
