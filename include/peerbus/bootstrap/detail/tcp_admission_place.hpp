// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/admission_place.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The TCP port at which a member of a running group listens for processes that join. A process
/// that joins does not know which member listens, so it calls one address after the other. The
/// hosts' names are resolved anew for each round, because hosts come and go.
class tcp_calls_place final : public tcp_rendezvous_place {
 public:
  /// Makes the place. `settings.address` names one host, or several with commas between them.
  explicit tcp_calls_place(const tcp_settings& settings) : tcp_rendezvous_place{settings, {}} {}

  [[nodiscard]] std::size_t channels() const noexcept override { return 1; }
  void tune(const connection& link, std::size_t /*channel*/) const noexcept override {
    tune_connection(link.get(), true, settings_.out_of_reach_after);
  }
  [[nodiscard]] std::vector<unique_fd> open() override {
    // An address at which ranks have met takes no time.
    constexpr std::chrono::seconds most_time{5};
    return listen_for_ranks(settings_, find_place(settings_, deadline::after(most_time)));
  }
  /// Calls the next address.
  /// Throws: `error` invalid_argument as `find_place`.
  [[nodiscard]] connection call(deadline until) override {
    if (next_ == addresses_.size()) find_hosts();
    if (next_ == addresses_.size()) {
      errno = EADDRNOTAVAIL;
      return {};
    }
    return call_at({addresses_[next_++]}, until);
  }
  [[nodiscard]] std::string describe_silence(int number) const override {
    return addresses_.empty() ? unknown_ : tcp_rendezvous_place::describe_silence(number);
  }

 private:
  /// Finds the addresses of the hosts whose names can be resolved now.
  void find_hosts() {
    next_ = 0;
    addresses_.clear();
    std::string_view rest = settings_.address;
    for (;;) {
      tcp_settings host = settings_;
      host.address = rest.substr(0, rest.find(','));
      try {
        for (const tcp_address& found : find_place(host, deadline::after({})))
          addresses_.push_back(found);
      } catch (const error& problem) {
        if (problem.code() != errc::system) throw;
        unknown_ = problem.text();
      }
      if (host.address.size() == rest.size()) return;
      rest.remove_prefix(host.address.size() + 1);
    }
  }

  std::size_t next_ = 0;  ///< the index in `addresses_` of the next call
  std::string unknown_;   ///< the reason for which the latest name without an address has none
};

/// The TCP ports at which processes call and meet to join a running group whose ranks are a mesh.
class tcp_admission_place final : public admission_place {
 public:
  /// Makes the place. The port and the job of `settings` name the place that processes call. For a
  /// member, `address` is an address by which other ranks reach this host. For a process that
  /// joins, it names the hosts on which the member that listens may run.
  /// Throws: `error` system.
  explicit tcp_admission_place(const tcp_settings& settings)
      : settings_{settings}, calls_{settings_to_join(settings)} {
    settings_.mesh = true;
  }

  [[nodiscard]] rendezvous_place& calls() override { return calls_; }
  [[nodiscard]] offered_place offer() const override {
    return offered_place::of_network(settings_.address);
  }
  /// Makes a `tcp_bootstrap`. The body is in bootstrap/tcp.ipp.
  [[nodiscard]] inline std::unique_ptr<bootstrap> meet(const offered_place& place, rank_id member,
                                                       std::size_t count,
                                                       const awaited_members& awaited,
                                                       deadline until) const override;

 private:
  tcp_settings settings_;
  tcp_calls_place calls_;
};

}  // namespace peerbus::detail
