// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

namespace detail {

class awaited_members;
class star;
class state_page;
class tcp_admission_place;
class tcp_failure_detector;
struct met_over_tcp;
struct offered_place;

}  // namespace detail

/// A rank of a group of processes on any number of hosts, which torchrun, mpirun, srun or a script
/// started. Needs OpenSSL (target `peerbus::tcp`).
///
/// Rank 0 listens at one TCP port while the ranks meet. The other ranks connect to it, over IPv4 or
/// IPv6, and stay connected. All connections use TLS 1.3 with a key that is made from the secret of
/// the group. A process that does not know the secret cannot join, read the data that ranks
/// exchange here, or change it unnoticed. The secret does not protect the data that a transport
/// sends later.
///
/// Contributions carry bytes only, except in subgroups of near ranks. `members()` learns about the
/// end of another rank from rank 0. Rank 0 passes this news on only inside its own calls (a wait,
/// an allgather). It arrives at once, or after 15 s if a whole host is out of reach. After rank 0
/// has left, the other ranks learn nothing more about each other, and their waits end at the
/// deadline. Waits allocate nothing until news of a rank's end arrives. Then OpenSSL may allocate.
///
/// With `tcp_settings::mesh` each rank learns of the end of every other by itself, and
/// communicators can go on without ranks that died, in a group made anew by `survivors`.
///
/// The destructor tells the other ranks that this rank has left, or has failed if an exception
/// destroys the bootstrap.
///
/// Threads: as `bootstrap`; any thread may call `members()` and its functions at any time.
class tcp_bootstrap final : public bootstrap {
 public:
  /// Collective: meets the other ranks at the place that `settings` name. The call ends by `until`,
  /// or up to a second later if rank 0 does not answer. If the system takes longer to resolve a
  /// name, the call takes that time as well.
  /// Cost: two TLS connections from each rank to rank 0, and one `allgather`. With
  /// `tcp_settings::mesh` one connection between any two other ranks, and two `allgather`s more.
  /// Throws: `error` invalid_argument (also if there is no secret and other hosts could connect),
  /// timed_out (naming the missing ranks; or rank 0 is of another job), mismatch (another secret, a
  /// rank that came twice, different sizes or builds), peer_dead, system. All ranks that came throw
  /// the same error, except that a rank with another secret or of another job throws alone.
  tcp_bootstrap(const tcp_settings& settings, deadline until);

  /// Collective: meets the other ranks with the settings from the environment. The rank's place is
  /// read as by `environment_bootstrap`. `MASTER_ADDR` and `MASTER_PORT` are a host and a port of
  /// the network. The port is `PEERBUS_PORT` instead if that is set, or the port next to
  /// `MASTER_PORT` if torchrun reports that it listens at `MASTER_PORT` itself. The secret is in
  /// `PEERBUS_SECRET`, or in the file that `PEERBUS_SECRET_FILE` names. The job is `PEERBUS_JOB`,
  /// or the launcher's id of it. `PEERBUS_HOST` is `tcp_settings::host`, and `PEERBUS_MESH`, 0 or
  /// 1, `tcp_settings::mesh`.
  /// Cost: as the constructor.
  /// Throws: as the constructor; also `error` invalid_argument, with the variable that is missing
  /// or wrong, and system if the file cannot be read.
  [[nodiscard]] static tcp_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30}));

  tcp_bootstrap(const tcp_bootstrap&) = delete;
  tcp_bootstrap& operator=(const tcp_bootstrap&) = delete;
  inline ~tcp_bootstrap() override;

  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }
  [[nodiscard]] bool passes_descriptors() const noexcept override { return false; }
  /// Returns the position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

  [[nodiscard]] inline std::vector<contribution> allgather(contribution own_part, deadline until,
                                                           std::string_view doing) override;
  [[nodiscard]] inline std::shared_ptr<bulletin> messages() const noexcept override;
  /// Returns the way in which processes join a mesh by calling a member over TCP. Returns null for
  /// a group that is no mesh.
  [[nodiscard]] inline std::shared_ptr<detail::admission_place> make_admission_place(
      const launch_settings& place) const override;
  /// Meets over TCP, at an address of the first of `ranks`. The result is a mesh if this group is
  /// one.
  [[nodiscard]] inline std::unique_ptr<bootstrap> meet_again(const std::vector<rank_id>& ranks,
                                                             rank_id member, const sharing& share,
                                                             deadline until) override;

 private:
  tcp_bootstrap(const tcp_settings& settings, deadline until, detail::met_over_tcp met);

  /// Collective: agrees on a number by which observers tell the group from others, and writes it to
  /// `page` with the hosts of all ranks. Also finds the ranks that share this host, and the cores
  /// that they may use.
  void agree_on_group(const detail::state_page& page, deadline until);
  /// Collective: connects each rank to every other rank.
  void connect_all(deadline until);

  /// Returns an object that reports which of `ranks` end before they have come to the meeting of
  /// another group.
  [[nodiscard]] detail::awaited_members watch_members(const std::vector<rank_id>& ranks) const;
  friend class detail::tcp_admission_place;
  /// Meets `rank_count` ranks at `place`, as rank `member`, with the remaining options of
  /// `settings`. `awaited` are the ranks, in their order.
  [[nodiscard]] static std::unique_ptr<bootstrap> meet_at(tcp_settings settings,
                                                          const detail::offered_place& place,
                                                          rank_id member,
                                                          const detail::awaited_members& awaited,
                                                          std::size_t rank_count, deadline until);

  [[nodiscard]] inline std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                                rank_id member,
                                                                deadline until) override;

  std::shared_ptr<detail::tcp_failure_detector> news_;
  std::unique_ptr<detail::star> star_;
  tcp_settings settings_;  ///< `address` is an address by which other ranks reach this host
  std::size_t local_rank_ = 0;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace peerbus

#include <peerbus/bootstrap/tcp.ipp>  // IWYU pragma: keep
