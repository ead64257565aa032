// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

namespace detail {

class star;
struct met_over_tcp;

}  // namespace detail

/// A rank among processes on any number of hosts, which torchrun, mpirun, srun or a script started.
/// Rank 0 listens at one TCP port while the ranks meet; the others call there, over IPv4 or IPv6,
/// and stay connected to it. All connections are TLS 1.3, and the secret of the group is their key:
/// a process that does not know it can neither join, nor read what ranks exchange here, nor change
/// it unnoticed. The secret does not protect what a transport sends later. Needs OpenSSL (target
/// `peerbus::tcp`).
///
/// Contributions carry bytes only, except in subgroups of near ranks. `members()` learns of another
/// rank's end from rank 0, which has to be in a call of its own to pass it on (a wait, an
/// allgather): at once, or after 15 s if a whole host is out of reach. After rank 0 has left, the
/// others learn nothing more of each other and their waits end with the deadline. Waits allocate
/// nothing until news of a rank's end arrive; then OpenSSL may.
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
  tcp_bootstrap(const tcp_settings& settings, deadline until);

  /// The same with the settings from the environment: a rank's place as in `environment_bootstrap`,
  /// `MASTER_ADDR` and `MASTER_PORT` as a host and a port of the network (another one than torch's
  /// if `PEERBUS_PORT` is set, or torchrun says that it listens at that one), and the secret in
  /// `PEERBUS_SECRET`, or in the file that `PEERBUS_SECRET_FILE` names.
  /// Throws: also `error` invalid_argument, with the variable that is missing or wrong, system if
  /// the file cannot be read.
  [[nodiscard]] static tcp_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30}));

  tcp_bootstrap(const tcp_bootstrap&) = delete;
  tcp_bootstrap& operator=(const tcp_bootstrap&) = delete;
  ~tcp_bootstrap() override;

  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }
  /// Position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

  [[nodiscard]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing) override;

 private:
  tcp_bootstrap(const tcp_settings& settings, deadline until, detail::met_over_tcp met);

  /// Collective: finds out who shares this host, and which cores they may use.
  void count_neighbours(deadline until);

  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                         rank_id member, deadline until) override;

  std::unique_ptr<detail::star> star_;
  tcp_settings settings_;  ///< the address is one by which other ranks reach this host
  std::size_t local_rank_ = 0;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace peerbus

#include <peerbus/bootstrap/impl/tcp.hpp>  // IWYU pragma: keep
