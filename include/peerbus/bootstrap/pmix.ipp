// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include <peerbus/bootstrap/detail/invitation.hpp>
#include <peerbus/bootstrap/detail/pmix_job.hpp>
#include <peerbus/bootstrap/pmix.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

inline std::unique_ptr<bootstrap> pmix_bootstrap(const pmix_proc_t& self, deadline until,
                                                 const rendezvous_options& options,
                                                 std::string_view group) {
  const detail::pmix_job job{self};
  const std::string key = detail::concat("peerbus.", group);
  detail::invitation own;  // It keeps the port, so it must live until all have met.
  std::string text;
  if (job.rank() == 0) {
    try {
      own = detail::invitation::make(options, job.is_one_host(), job.name());
      text = own.encode();
    } catch (const error& problem) {
      text = detail::invitation::refuse(problem);
    }
    job.publish(key, text);
  } else {
    text = job.take(key, until);
  }
  rendezvous_options own_options;
  own_options.mesh = options.mesh;
  return detail::invitation::decode(text).meet(
      job.rank(), job.size(), until,
      [](const tcp_settings& settings, deadline end) {
        return std::make_unique<tcp_bootstrap>(settings, end);
      },
      own_options);
}

}  // namespace peerbus
