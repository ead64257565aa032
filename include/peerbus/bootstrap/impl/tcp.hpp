// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/hub.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/tcp_environment.hpp>
#include <peerbus/bootstrap/detail/tcp_host.hpp>
#include <peerbus/bootstrap/detail/tcp_join.hpp>
#include <peerbus/bootstrap/detail/tcp_news.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {

/// The connections and the news of a rank that has met the others over TCP.
struct met_over_tcp {
  std::shared_ptr<tcp_news> news;
  std::unique_ptr<star> connections;

  /// Throws: `error` as the constructor of `tcp_bootstrap`.
  static met_over_tcp at(const tcp_settings& settings, deadline until) {
    check_settings(settings);
    const rank_id me{settings.rank};
    std::vector<unique_fd> collectives(settings.size);
    std::vector<unique_fd> watches(settings.size);
    const auto keep = [&](std::size_t rank, tcp_connections met) {
      collectives[rank] = std::move(met[static_cast<std::size_t>(tcp_channel::collectives)]);
      watches[rank] = std::move(met[static_cast<std::size_t>(tcp_channel::watch)]);
    };
    if (settings.size > 1) {
      auto place = find_place(settings, until);
      if (settings.rank == 0) {
        auto all = tcp_host{settings, std::move(place), until}.gather();
        for (std::size_t rank = 1; rank < all.size(); ++rank) keep(rank, std::move(all[rank]));
      } else {
        keep(0, tcp_joiner{settings, std::move(place), until}.join());
      }
    }
    auto news = std::make_shared<tcp_news>(me, std::move(watches));
    if (settings.rank == 0)
      return {std::move(news), std::make_unique<hub>(std::move(collectives), carries::bytes)};
    return {std::move(news), std::make_unique<spoke>(std::move(collectives[0]), carries::bytes)};
  }
};

}  // namespace detail

PEERBUS_CONTROL_PATH tcp_bootstrap::tcp_bootstrap(const tcp_settings& settings, deadline until)
    : tcp_bootstrap{settings, until, detail::met_over_tcp::at(settings, until)} {}

PEERBUS_CONTROL_PATH tcp_bootstrap tcp_bootstrap::from_environment(deadline until) {
  return tcp_bootstrap{detail::read_tcp_settings(), until};
}

PEERBUS_CONTROL_PATH tcp_bootstrap::~tcp_bootstrap() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
  members()->announce(unwinding ? members()->end_by_exception() : rank_state::left);
}

PEERBUS_CONTROL_PATH std::vector<bootstrap::contribution> tcp_bootstrap::allgather(
    contribution mine, deadline until, std::string_view doing) {
  return star_->allgather(std::move(mine), until, doing, *members(), *idle());
}

PEERBUS_CONTROL_PATH tcp_bootstrap::tcp_bootstrap(const tcp_settings& settings, deadline until,
                                                  detail::met_over_tcp met)
    : star_{std::move(met.connections)} {
  auto* const states = met.news->states();
  set_members(std::make_shared<membership>(rank_id{settings.rank}, settings.size, states,
                                           std::move(met.news)));
  try {
    count_neighbours(settings, until);
  } catch (...) {
    members()->announce(rank_state::failed);
    throw;
  }
}

PEERBUS_CONTROL_PATH void tcp_bootstrap::count_neighbours(const tcp_settings& settings,
                                                          deadline until) {
  const auto here = detail::host_identity();
  std::vector<std::byte> mine(here.begin(), here.end());
  const auto my_cores = usable_core_numbers();
  const auto numbers = std::as_bytes(std::span{my_cores});
  mine.insert(mine.end(), numbers.begin(), numbers.end());
  const auto given = allgather({std::move(mine), {}}, until, "meeting of the ranks");
  std::vector<std::uint32_t> cores;
  std::size_t before_me = 0;
  ranks_here_ = 0;
  for (const rank_id peer : all_ranks{size()}) {
    const std::span<const std::byte> bytes{given[peer.index()].bytes};
    if (bytes.size() < here.size() || !std::equal(here.begin(), here.end(), bytes.begin()))
      continue;
    ++ranks_here_;
    if (peer < rank()) ++before_me;
    const auto of_peer = bytes.subspan(here.size());
    const std::size_t count = of_peer.size() / sizeof(std::uint32_t);
    const std::size_t known = cores.size();
    cores.resize(known + count);
    if (count != 0) std::memcpy(&cores[known], of_peer.data(), count * sizeof(std::uint32_t));
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  cores_here_ = std::max<std::size_t>(cores.size(), 1);
  local_rank_ = settings.local_rank.value_or(before_me);
}

}  // namespace peerbus
