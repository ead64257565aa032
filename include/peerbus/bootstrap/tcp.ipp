// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/host_names.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/meet_as_subgroup.hpp>
#include <peerbus/bootstrap/detail/met_ranks.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_host.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/detail/tcp_admission_place.hpp>
#include <peerbus/bootstrap/detail/tcp_environment.hpp>
#include <peerbus/bootstrap/detail/tcp_failure_detector.hpp>
#include <peerbus/bootstrap/detail/tcp_mesh.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/detail/told_activity.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

namespace detail {

/// The connections and the news of a rank that has met the other ranks over TCP.
struct met_over_tcp {
  std::shared_ptr<tcp_failure_detector> news;
  std::unique_ptr<star> connections;
  std::string address;  ///< an address by which other ranks reach this host
  std::string own_end;  ///< the address of this end of a connection to another host, or empty

  /// Collective: meets the other ranks.
  /// Throws: `error` as the constructor of `tcp_bootstrap`.
  static met_over_tcp at(const tcp_settings& settings, deadline until,
                         const awaited_members& members = {}) {
    check_settings(settings);
    std::vector<connection> frames(settings.size);
    std::vector<connection> watches(settings.size);
    const auto keep = [&](std::size_t rank, std::vector<connection>& met) {
      frames[rank] = std::move(met[collectives]);
      watches[rank] = std::move(met[watch]);
    };
    if (settings.size > 1) {
      tcp_rendezvous_place place{settings, until};
      const rendezvous ours{settings.rank, settings.size, until, until.remaining(), members};
      if (settings.rank == 0) {
        auto met = rendezvous_host{place, ours}.gather({});
        for (const rank_id peer : all_ranks{settings.size}) keep(peer.index(), met[peer.index()]);
      } else {
        auto met = rendezvous_joiner{place, ours}.join(0);
        keep(0, met.connections);
      }
    }
    std::string own_end;
    for (const connection& link : frames)
      if (link && own_end.empty()) own_end = address_of_own_end(link.get());
    auto news = std::make_shared<tcp_failure_detector>(rank_id{settings.rank}, std::move(watches));
    if (settings.rank == 0)
      return {std::move(news), std::make_unique<star_root>(std::move(frames), carries::bytes),
              settings.address, std::move(own_end)};
    std::string address = address_for_others(settings, frames[0].get());
    return {std::move(news), std::make_unique<star_leaf>(std::move(frames[0]), carries::bytes),
            std::move(address), std::move(own_end)};
  }
};

}  // namespace detail

inline tcp_bootstrap::tcp_bootstrap(const tcp_settings& settings, deadline until)
    : tcp_bootstrap{settings, until, detail::met_over_tcp::at(settings, until)} {}

inline tcp_bootstrap tcp_bootstrap::from_environment(deadline until) {
  return tcp_bootstrap{detail::read_tcp_settings(), until};
}

inline tcp_bootstrap::~tcp_bootstrap() { members()->announce_end(exceptions_before_); }

inline std::vector<bootstrap::contribution> tcp_bootstrap::allgather(contribution own_part,
                                                                     deadline until,
                                                                     std::string_view doing) {
  detail::refuse_child(*members(), doing);
  const auto wait = members()->begin_wait({.operation = group_operation::allgather});
  auto all = star_->allgather(std::move(own_part), until, doing, *members(), *idle());
  members()->end_wait(wait);
  return all;
}

inline tcp_bootstrap::tcp_bootstrap(const tcp_settings& settings, deadline until,
                                    detail::met_over_tcp met)
    : news_{std::move(met.news)}, star_{std::move(met.connections)}, settings_{settings} {
  settings_.address = std::move(met.address);
  set_rendezvous_address(std::move(met.own_end));
  const auto page = detail::state_page::make_named(
      detail::state_page::name_of_ranks, {.group_size = static_cast<std::uint32_t>(settings.size),
                                          .first = static_cast<std::uint32_t>(settings.rank),
                                          .ranks = 1,
                                          .hosts = static_cast<std::uint32_t>(settings.size)});
  set_members(std::make_shared<membership>(
      rank_id{settings.rank}, settings.size, news_->states(), news_,
      std::shared_ptr<detail::activity_line>{page.memory(), page.lines().front()}));
  try {
    agree_on_group(page, until);
    if (settings_.mesh) connect_all(until);
  } catch (...) {
    members()->announce(members()->end_by_exception());
    throw;
  }
}

inline void tcp_bootstrap::agree_on_group(const detail::state_page& page, deadline until) {
  const detail::host_identity here{settings_.host};
  const auto identity = std::as_bytes(std::span{&here, 1});
  std::array<std::byte, 64> own_end{};  // "ffff:...:ffff%interface" is shorter.
  const auto text = std::as_bytes(std::span{rendezvous_address()});
  std::copy_n(text.begin(), std::min(text.size(), own_end.size()), own_end.begin());
  std::vector<std::byte> own_part{identity.begin(), identity.end()};
  own_part.push_back(static_cast<std::byte>(settings_.mesh));
  own_part.insert(own_part.end(), own_end.begin(), own_end.end());
  // The ranks may meet again, and members of two subgroups may look alike, but the number that
  // rank 0 of each group draws is another.
  const auto drawn = detail::draw_bytes<sizeof(std::uint64_t)>();
  own_part.insert(own_part.end(), drawn.begin(), drawn.end());
  const auto my_cores = usable_core_numbers();
  const auto numbers = std::as_bytes(std::span{my_cores});
  own_part.insert(own_part.end(), numbers.begin(), numbers.end());
  const auto given = allgather({std::move(own_part), {}}, until, "meeting of the ranks");
  std::vector<std::uint32_t> cores;
  std::vector<rank_id> near_ranks;
  constexpr std::size_t before_end = sizeof here + 1;
  constexpr std::size_t before_drawn = before_end + own_end.size();
  constexpr std::size_t before_cores = before_drawn + drawn.size();
  std::size_t before_me = 0;
  std::size_t ranks_here = 0;
  std::uint64_t group = 0;
  detail::host_names hosts{size()};
  for (const rank_id peer : all_ranks{size()}) {
    const std::span<const std::byte> bytes{given[peer.index()].bytes};
    if (bytes.size() < before_cores) continue;
    if (peer.index() == 0) std::memcpy(&group, &bytes[before_drawn], sizeof group);
    detail::host_identity of_peer{here};
    std::memcpy(&of_peer, bytes.data(), sizeof of_peer);
    if (const bool is_in_mesh = bytes[sizeof here] != std::byte{0}; is_in_mesh != settings_.mesh)
      throw error{errc::mismatch, detail::concat("of ", peer, " and ", rank(),
                                                 " only one is to be part of a mesh; expected the "
                                                 "same PEERBUS_MESH on all ranks")};
    const auto* const end_of_peer = reinterpret_cast<const char*>(&bytes[before_end]);
    const std::string address{end_of_peer, ::strnlen(end_of_peer, own_end.size())};
    hosts.add(peer, of_peer, address);
    if (of_peer.kernel != here.kernel) continue;
    if (of_peer == here) near_ranks.push_back(peer);
    // Ranks of rank 0's host may have met it over the loopback interface.
    if (of_peer == here && rendezvous_address().empty()) set_rendezvous_address(address);
    ++ranks_here;
    if (peer < rank()) ++before_me;
    const auto cores_of_peer = bytes.subspan(before_cores);
    const std::size_t count = cores_of_peer.size() / sizeof(std::uint32_t);
    const std::size_t known = cores.size();
    cores.resize(known + count);
    if (count != 0) std::memcpy(&cores[known], cores_of_peer.data(), count * sizeof(std::uint32_t));
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  set_neighbours(std::move(near_ranks), ranks_here, cores.size());
  local_rank_ = settings_.local_rank.value_or(before_me);
  hosts.write(page);
  page.set_group(group);
}

/// Lets the members meet at a place that the first member offers. If all members are near each
/// other, they meet on this host, else over TCP with the group's secret.
inline std::unique_ptr<bootstrap> tcp_bootstrap::make_subgroup(const std::vector<rank_id>& ranks,
                                                               rank_id member, deadline until) {
  const bool all_near =
      std::all_of(ranks.begin(), ranks.end(), [this](rank_id peer) { return is_near(peer); });
  detail::offered_place offer;  // It keeps the port, so it must live until all have met.
  const auto objection = objection_of("a subgroup's meeting place", [&] {
    if (member.index() == 0)
      offer = all_near ? detail::offered_place::on_this_host()
                       : detail::offered_place::of_network(settings_.address);
  });
  const auto given = gather_or_refuse(*this, "subgroup", {offer.encode(), {}}, objection, until);
  const auto place = detail::offered_place::decode(given[ranks.front().index()].bytes);
  const detail::awaited_members awaited = watch_members(ranks);
  return detail::meet_as_subgroup(ranks, *members(), [&]() -> std::unique_ptr<bootstrap> {
    if (all_near)
      return detail::join_on_this_host(place.address, member, ranks.size(), until, awaited);
    return meet_at(settings_, place, member, awaited, ranks.size(), until);
  });
}

inline detail::awaited_members tcp_bootstrap::watch_members(
    const std::vector<rank_id>& ranks) const {
  // In a mesh each of them sees by itself how the others end.
  constexpr std::chrono::hours without_limit{24};
  if (settings_.mesh) return {members(), ranks, without_limit};
  return {members(), ranks};
}

inline std::unique_ptr<bootstrap> tcp_bootstrap::meet_at(tcp_settings settings,
                                                         const detail::offered_place& place,
                                                         rank_id member,
                                                         const detail::awaited_members& awaited,
                                                         std::size_t rank_count, deadline until) {
  settings.rank = member.index();
  settings.local_rank.reset();
  settings.size = rank_count;
  settings.address = place.address;
  settings.port = place.port;
  auto met = detail::met_over_tcp::at(settings, until, awaited);
  return std::unique_ptr<bootstrap>{new tcp_bootstrap{settings, until, std::move(met)}};
}

inline void tcp_bootstrap::connect_all(deadline until) {
  std::optional<detail::tcp_mesh> ours;
  const auto objection = objection_of("the mesh of ranks", [&] { ours.emplace(settings_, until); });
  const auto given =
      gather_or_refuse(*this, "places of the mesh",
                       {ours ? ours->offer() : std::vector<std::byte>{}, {}}, objection, until);
  std::vector<std::span<const std::byte>> offers;
  offers.reserve(given.size());
  for (const contribution& part : given) offers.emplace_back(part.bytes);
  // Whoever gives up at the deadline says so to the others.
  constexpr std::chrono::seconds grace{1};
  agree(*this, "mesh of ranks", {}, detail::postponed(until, grace),
        objection_of("the mesh of ranks",
                     [&] { news_->become_mesh(ours->connect(offers, *members(), until)); }));
  members()->tell_activity(std::make_shared<detail::told_activity>(news_, size()));
}

inline std::shared_ptr<bulletin> tcp_bootstrap::messages() const noexcept {
  return settings_.mesh ? news_ : nullptr;
}

inline std::shared_ptr<detail::admission_place> tcp_bootstrap::make_admission_place(
    const launch_settings& place) const {
  if (!settings_.mesh) return nullptr;
  tcp_settings settings = settings_;
  settings.port = place.port;
  settings.job = place.job;
  return std::make_shared<detail::tcp_admission_place>(settings);
}

inline std::unique_ptr<bootstrap> detail::tcp_admission_place::meet(const offered_place& place,
                                                                    rank_id member,
                                                                    std::size_t count,
                                                                    const awaited_members& awaited,
                                                                    deadline until) const {
  return tcp_bootstrap::meet_at(settings_, place, member, awaited, count, until);
}

inline std::unique_ptr<bootstrap> tcp_bootstrap::meet_again(const std::vector<rank_id>& ranks,
                                                            rank_id member, const sharing& share,
                                                            deadline until) {
  detail::offered_place offer;  // It keeps the port, so it must live until all have met.
  if (member.index() == 0) offer = detail::offered_place::of_network(settings_.address);
  const auto place = detail::offered_place::decode_filled(share(offer.encode_filled()));
  return meet_at(settings_, place, member, watch_members(ranks), ranks.size(), until);
}

}  // namespace peerbus
