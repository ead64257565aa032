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
#include <variant>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/hub.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/tcp_environment.hpp>
#include <peerbus/bootstrap/detail/tcp_host.hpp>
#include <peerbus/bootstrap/detail/tcp_join.hpp>
#include <peerbus/bootstrap/detail/tcp_news.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {

/// What a rank has once it has met the others over TCP.
struct met_over_tcp {
  std::shared_ptr<tcp_news> news;
  star connections;

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
    if (settings.rank == 0) return {std::move(news), hub{std::move(collectives), carries::bytes}};
    return {std::move(news), spoke{std::move(collectives[0]), carries::bytes}};
  }
};

}  // namespace detail

/// A rank among processes on any number of hosts, which torchrun, mpirun, srun or a script started.
/// Rank 0 listens at one TCP port while the ranks meet; the others call there, over IPv4 or IPv6,
/// and stay connected to it. All know a secret, without which nobody can join or disturb the
/// meeting. It is for joining only: what ranks exchange later is neither encrypted nor signed, so
/// whoever can change the packets between the hosts must be kept out by other means.
///
/// Contributions carry bytes only. `members()` learns of another rank's end from rank 0, which has
/// to be in a call of its own to pass it on (a wait, an allgather): at once, or after 15 s if a
/// whole host is out of reach. After rank 0 has left, the others learn nothing more of each other
/// and their waits end with the deadline.
///
/// The destructor tells the others that this rank has left, or has failed if an exception is what
/// destroys it.
///
/// Threads: as `bootstrap`; `members()` may be asked by any thread at any time.
class tcp_bootstrap final : public bootstrap {
 public:
  /// Collective: meets the other ranks at the place that `settings` name. All is over by `until`,
  /// or a second later where rank 0 says nothing, but for the time that the system may take to
  /// resolve a name.
  /// Throws: `error` invalid_argument (also without a secret where other hosts can call), timed_out
  /// (naming who did not come), mismatch (another secret, a rank twice, different sizes or builds),
  /// peer_dead, system; all ranks that came throw the same, but a rank with another secret came for
  /// itself alone.
  tcp_bootstrap(const tcp_settings& settings, deadline until)
      : tcp_bootstrap{settings, until, detail::met_over_tcp::at(settings, until)} {}

  /// The same with the settings from the environment: a rank's place as in `environment_bootstrap`,
  /// `MASTER_ADDR` and `MASTER_PORT` as a host and a port of the network (another one than torch's
  /// if `PEERBUS_PORT` is set, or torchrun says that it listens at that one), and the secret in
  /// `PEERBUS_SECRET`, or in the file that `PEERBUS_SECRET_FILE` names.
  /// Throws: also `error` invalid_argument, with the variable that is missing or wrong, system if
  /// the file cannot be read.
  [[nodiscard]] static tcp_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30})) {
    return tcp_bootstrap{detail::read_tcp_settings(), until};
  }

  tcp_bootstrap(const tcp_bootstrap&) = delete;
  tcp_bootstrap& operator=(const tcp_bootstrap&) = delete;
  ~tcp_bootstrap() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
    members()->announce(unwinding ? members()->end_by_exception() : rank_state::left);
  }

  [[nodiscard]] std::size_t ranks_here() const noexcept override { return ranks_here_; }
  [[nodiscard]] std::size_t cores_here() const noexcept override { return cores_here_; }
  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }
  /// Position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

  [[nodiscard]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing) override {
    const membership& present = *members();
    if (auto* center = std::get_if<detail::hub>(&star_))
      return center->allgather(std::move(mine), until, doing, present);
    return std::get<detail::spoke>(star_).allgather(mine, until, doing, present);
  }

 private:
  tcp_bootstrap(const tcp_settings& settings, deadline until, detail::met_over_tcp met)
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

  /// Collective: finds out who shares this host, and which cores they may use.
  void count_neighbours(const tcp_settings& settings, deadline until) {
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

  detail::star star_;
  std::size_t ranks_here_ = 1;
  std::size_t cores_here_ = 1;
  std::size_t local_rank_ = 0;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace peerbus
