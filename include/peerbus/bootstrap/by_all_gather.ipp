// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/invitation.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/object_bytes.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE std::unique_ptr<bootstrap> bootstrap_by_all_gather(
    std::size_t rank, std::size_t size,
    const std::function<std::vector<std::byte>(std::span<const std::byte> own)>& all_gather,
    const std::function<std::unique_ptr<bootstrap>(const tcp_settings& settings, deadline until)>&
        over_network,
    deadline until, const rendezvous_options& options) {
  const auto gather = [&](std::span<const std::byte> own) {
    auto all = all_gather(own);
    if (all.size() != own.size() * size)
      throw error{errc::invalid_argument,
                  detail::concat("all_gather returned ", all.size(), " bytes, expected ",
                                 own.size(), " of each of ", size, " ranks")};
    return all;
  };
  if (rank >= size)
    throw error{errc::invalid_argument,
                detail::concat("rank is ", rank, ", expected less than the size, ", size)};
  // A name that is too long is told to all, so that no rank waits for this one.
  constexpr std::size_t most = detail::host_identity::most_name_bytes;
  struct entry {
    detail::host_identity host;
    std::uint64_t name_bytes;
  };
  const entry here{detail::host_identity{std::string_view{options.host}.substr(0, most)},
                   options.host.size()};
  const auto hosts = gather(detail::object_bytes(here));
  bool is_one_host = true;
  for (std::size_t r = 0; r < size; ++r) {
    entry of_rank = here;
    std::memcpy(&of_rank, &hosts[r * sizeof of_rank], sizeof of_rank);
    if (of_rank.name_bytes > most)
      throw error{errc::invalid_argument,
                  detail::concat("the host of rank ", r, " has a name of ", of_rank.name_bytes,
                                 " bytes, expected at most ", most)};
    is_one_host = is_one_host && of_rank.host == here.host;
  }
  detail::invitation own;  // It keeps the port, so it must live until all have met.
  std::array<char, 1024> text{};
  if (rank == 0) {
    std::string whole;
    try {
      own = detail::invitation::make(options, is_one_host, detail::draw_digits());
      whole = own.encode();
      if (whole.size() >= text.size())
        throw error{errc::invalid_argument,
                    detail::concat("the address has ", options.address.size(),
                                   " bytes, which is too long for a host")};
    } catch (const error& problem) {
      whole = detail::invitation::refuse(problem);
    }
    std::copy_n(whole.begin(), std::min(whole.size(), text.size() - 1), text.begin());
  }
  const auto all = gather(std::as_bytes(std::span{text}));
  const std::string_view of_first{reinterpret_cast<const char*>(all.data()), text.size()};
  return detail::invitation::decode(of_first.substr(0, of_first.find('\0')))
      .meet(rank, size, until, over_network, options);
}

}  // namespace peerbus
