// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/core/mapping.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/opened_device.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/rail.hpp>
#include <peerbus/transport/verbs/rail_keys.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// The rails of a rank for one class of traffic, and the memory that is in no window
/// (`control_map`), which is registered with all rails. Each link has the same queue pairs. Queue
/// pair `q` belongs to rail `rail_of(q)`, so that the first queue pairs are on different rails.
class resources {
 public:
  /// Opens a rail on each of `devices`, for `ranks` ranks.
  /// Throws: `error` invalid_argument, unsupported, out_of_memory, system; std::bad_alloc.
  resources(const opened_devices& devices, const verbs_options& options, std::size_t ranks,
            traffic_class traffic)
      : options_{options},
        traffic_{traffic},
        map_{ranks, options.queue_depth},
        memory_{mapping::anonymous(map_.bytes())} {
    rails_.reserve(devices.size());
    for (const auto& device : devices)
      rails_.push_back(std::make_unique<rail>(device, options, ranks * options.queue_pairs_per_peer,
                                              std::span{memory_.data(), map_.bytes()}));
    for (const auto& each : rails_)
      most_message_bytes_ =
          std::min<std::size_t>(most_message_bytes_, each->port().attributes.max_msg_sz);
    if (rails_.size() > 1 && !is_bulk()) watch_channels();
  }

  [[nodiscard]] std::span<const std::unique_ptr<rail>> rails() const noexcept { return rails_; }
  [[nodiscard]] std::size_t rail_of(std::size_t queue) const noexcept {
    return rails_.size() == 1 ? 0 : queue % rails_.size();
  }
  /// Returns the number of queue pairs to each peer, on all rails.
  [[nodiscard]] std::uint32_t queues() const noexcept {
    return options_.queue_pairs_per_peer * static_cast<std::uint32_t>(rails_.size());
  }
  [[nodiscard]] const verbs_options& options() const noexcept { return options_; }
  [[nodiscard]] bool is_bulk() const noexcept { return traffic_ == traffic_class::bulk; }
  [[nodiscard]] traffic_class traffic() const noexcept { return traffic_; }
  ///@{
  /// Returns a setting of connections for this class.
  [[nodiscard]] int service_level() const noexcept {
    return is_bulk() && options_.bulk_service_level >= 0 ? options_.bulk_service_level
                                                         : options_.service_level;
  }
  [[nodiscard]] int route_class() const noexcept {
    return is_bulk() && options_.bulk_traffic_class >= 0 ? options_.bulk_traffic_class
                                                         : options_.traffic_class;
  }
  ///@}
  /// Returns whether the bytes of requests are counted, to choose a device or to limit the bytes in
  /// flight.
  [[nodiscard]] bool counts_bytes() const noexcept { return is_bulk() || rails_.size() > 1; }
  /// Returns the number of bytes in flight to all peers, if bytes are counted.
  [[nodiscard]] std::uint64_t outstanding() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& each : rails_) sum += each->load().outstanding();
    return sum;
  }
  /// Returns the devices of the rails.
  /// Throws: std::bad_alloc.
  [[nodiscard]] opened_devices devices() const {
    opened_devices all;
    all.reserve(rails_.size());
    for (const auto& each : rails_) all.push_back(each->device());
    return all;
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return map_.ranks; }
  /// Returns whether all rails have atomics.
  [[nodiscard]] bool has_atomics() const noexcept {
    return std::ranges::all_of(rails_, [](const auto& each) { return each->has_atomics(); });
  }
  /// Returns the size of the longest message that all rails take, in bytes.
  [[nodiscard]] std::size_t most_message_bytes() const noexcept { return most_message_bytes_; }
  /// Returns a descriptor that is readable while a device has an event for this rank, of any class.
  /// Must be called on the resources for latency traffic.
  [[nodiscard]] int wake_descriptor() const noexcept {
    return channels_ ? channels_.get() : rails_.front()->device()->channel().fd;
  }

  /// Returns the layout of the registered memory that is in no window.
  [[nodiscard]] const control_map& map() const noexcept { return map_; }
  [[nodiscard]] std::byte* memory(std::size_t offset) const noexcept {
    return memory_.data() + offset;
  }
  /// Returns `length` bytes at `offset` in the memory that `map` lays out, for requests on `queue`.
  [[nodiscard]] local_bytes registered(std::size_t queue, std::size_t offset,
                                       std::uint32_t length) const noexcept {
    return {reinterpret_cast<std::uintptr_t>(memory(offset)), length,
            rails_[rail_of(queue)]->control().lkey};
  }

  /// Lets all rails and peers reach the memory of a window.
  /// Throws: `error` out_of_memory, system; std::bad_alloc.
  [[nodiscard]] registration register_window(std::span<std::byte> memory) const {
    registration made;
    for (const auto& each : rails_)
      made.add(each->device()->reach(memory, options_.relaxed_ordering, "a window"));
    return made;
  }

 private:
  void watch_channels() {
    channels_ = unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC));
    if (!channels_) throw system_failure("verbs: a descriptor for arrivals", errno);
    for (const auto& each : rails_) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (::epoll_ctl(channels_.get(), EPOLL_CTL_ADD, each->device()->channel().fd, &event) != 0)
        throw system_failure("verbs: watching a completion channel", errno);
    }
  }

  verbs_options options_;
  traffic_class traffic_;
  control_map map_;
  mapping memory_;
  std::vector<std::unique_ptr<rail>> rails_;
  unique_fd channels_;  ///< descriptor of all rails' channels, if there are several rails
  std::size_t most_message_bytes_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace peerbus::detail::rdma
