// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/admission_place.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/met_ranks.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The Unix sockets at which processes call and meet to join a running group of their host.
class local_admission_place final : public admission_place {
 public:
  /// Makes the place. Address, port and job of `settings` name the socket that processes call.
  explicit local_admission_place(launch_settings settings)
      : calls_{settings_to_join(std::move(settings))} {}

  [[nodiscard]] rendezvous_place& calls() override { return calls_; }
  [[nodiscard]] offered_place offer() const override { return offered_place::on_this_host(); }
  [[nodiscard]] std::unique_ptr<bootstrap> meet(const offered_place& place, rank_id member,
                                                std::size_t count, const awaited_members& awaited,
                                                deadline until) const override {
    return join_on_this_host(place.address, member, count, until, awaited);
  }

 private:
  local_rendezvous_place calls_;
};

}  // namespace peerbus::detail
