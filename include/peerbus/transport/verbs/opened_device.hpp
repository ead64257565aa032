// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/standard_streams.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/device.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/registration.hpp>

namespace peerbus::detail::rdma {

/// A device that a rank has opened: its port, the protection domain of the rank's objects there,
/// and the channel that wakes the rank. The rails of all classes of traffic on one device share it.
/// So the keys of registered memory are valid for all of them, and one descriptor reports their
/// arrivals.
class opened_device {
 public:
  /// Makes the domain and the channel on the device of `port`.
  /// Throws: `error` out_of_memory, system.
  explicit opened_device(open_port port) : port_{std::move(port)} {
    domain_.reset(ibv_alloc_pd(port_.device.get()));
    require(domain_, "making a protection domain");
    channel_.reset(ibv_create_comp_channel(port_.device.get()));
    require(channel_, "making a completion channel");
    // A thread that looks for an event that another one took must not wait for the next.
    ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  }
  opened_device(const opened_device&) = delete;
  opened_device& operator=(const opened_device&) = delete;
  ~opened_device() = default;

  [[nodiscard]] const open_port& port() const noexcept { return port_; }
  [[nodiscard]] ibv_pd& domain() const noexcept { return *domain_; }
  [[nodiscard]] ibv_comp_channel& channel() const noexcept { return *channel_; }
  [[nodiscard]] bool has_atomics() const noexcept {
    return port_.limits.atomic_cap != IBV_ATOMIC_NONE;
  }

  /// Lets the device and peers reach `memory`, called `what` in errors.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] memory_region reach(std::span<std::byte> memory, bool relaxed_ordering,
                                    std::string_view what) const {
    return register_memory(domain_, port_, memory, relaxed_ordering, what);
  }

  /// Checks that `made` is not null.
  /// Throws: `error` out_of_memory or system, by errno, if it is.
  template <class Handle>
  void require(const Handle& made, std::string_view doing) const {
    if (made) return;
    const int reason = errno;
    throw error{reason == ENOMEM ? errc::out_of_memory : errc::system,
                concat("verbs: ", doing, " with ", port_.describe(), ": ", describe_errno(reason),
                       reason == ENOMEM ? describe_lock_limit() : "")};
  }

 private:
  // In the order in which they are made. Each needs those before it.
  open_port port_;
  protection_domain domain_;
  completion_channel channel_;
};

using opened_devices = std::vector<std::shared_ptr<const opened_device>>;

/// Opens the devices that the options name, or the nearest device.
/// Throws: `error` unsupported, invalid_argument, out_of_memory, system; std::bad_alloc.
inline opened_devices open_devices(const verbs_options& options) {
  occupy_standard_streams();
  opened_devices opened;
  std::vector<open_port> ports = port_search::find_all(options);
  opened.reserve(ports.size());
  for (open_port& port : ports)
    opened.push_back(std::make_shared<const opened_device>(std::move(port)));
  return opened;
}

}  // namespace peerbus::detail::rdma
