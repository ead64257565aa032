// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/request_ring.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// Opens an object of libfabric by `open_object(&made)`.
/// Throws: `error` out_of_memory, system.
template <class Object, class Open>
handle<Object> open(std::string_view what, Open&& open_object) {
  Object* made = nullptr;
  ofi::require(open_object(&made), concat("opening ", what));
  return handle<Object>{made};
}

/// Returns a text that names the range of ports to which a user has restricted the tcp provider.
/// Empty if there is none.
inline std::string describe_ports() {
  const char* const low = std::getenv("FI_TCP_PORT_LOW_RANGE");
  const char* const high = std::getenv("FI_TCP_PORT_HIGH_RANGE");
  if (low == nullptr && high == nullptr) return {};
  return concat(" (FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE, ",
                low == nullptr ? "not set" : low, " to ", high == nullptr ? "not set" : high,
                ", must have more ports than there are ranks on this host)");
}

/// The objects that a rank opens at its provider before it knows any peer. These are a receiver,
/// one completion queue, and registered memory for notices. The receiver is an endpoint for
/// datagrams, or the receives that all connections share.
class resources {
 public:
  /// Opens the objects. `latency` is null for latency traffic. For bulk traffic it is the resources
  /// for latency traffic, which outlive these.
  /// Throws: `error` out_of_memory, system; std::bad_alloc.
  resources(provider_info info, const fabric_options& options, std::size_t rank_count,
            const resources* latency)
      : info_{std::move(info)},
        options_{options},
        traffic_{latency == nullptr ? traffic_class::latency : traffic_class::bulk},
        receives_{std::min<std::size_t>(32 + 8 * rank_count, info_->rx_attr->size)},
        inject_bytes_{info_->tx_attr->inject_size} {
    // Providers such as tcp move the data of all endpoints of a domain at each poll of one of them.
    // So bulk traffic has a domain of its own, unless sources need keys, which hold in one domain.
    constexpr auto keys_are_needed = static_cast<std::uint64_t>(FI_MR_LOCAL);
    if (latency != nullptr &&
        (static_cast<std::uint64_t>(info_->domain_attr->mr_mode) & keys_are_needed) != 0) {
      fabric_ = latency->fabric_;
      domain_ = latency->domain_;
      keys_ = latency->keys_;
    } else {
      own_fabric_ = open<fid_fabric>("a fabric", [&](fid_fabric** made) {
        return fi_fabric(info_->fabric_attr, made, nullptr);
      });
      fabric_ = own_fabric_.get();
      own_domain_ = open<fid_domain>("a domain", [&](fid_domain** made) {
        return fi_domain(fabric_, info_.get(), made, nullptr);
      });
      domain_ = own_domain_.get();
    }
    queue_ = open_queue(rank_count);
    if (connects())
      receiver_ = open<fid_ep>("a receive context", [&](fid_ep** made) {
        fi_rx_attr wanted = *info_->rx_attr;
        wanted.size = receives_;
        return fi_srx_context(domain_, &wanted, made, nullptr);
      });
    else
      open_endpoint(rank_count);
    const std::size_t notices = receives_ + rank_count * request_ring::places(options.queue_depth);
    memory_ = mapping::anonymous(notices * sizeof(notice_buffer));
    registration_ = make_reachable({memory_.data(), memory_.size()}, "notices");
    receive_requests_ = std::make_unique<request[]>(receives_);
  }

  /// Closes the receiver, so that the provider gives up all requests and their memory. All
  /// connections must be closed before.
  void close() noexcept { receiver_.reset(); }

  [[nodiscard]] fi_info& info() const noexcept { return *info_; }
  [[nodiscard]] const fabric_options& options() const noexcept { return options_; }
  [[nodiscard]] traffic_class traffic() const noexcept { return traffic_; }
  [[nodiscard]] fid_fabric& fabric() const noexcept { return *fabric_; }
  [[nodiscard]] fid_domain& domain() const noexcept { return *domain_; }
  [[nodiscard]] fid_cq& queue() const noexcept { return *queue_; }
  /// Returns the endpoint or context where receives are posted.
  [[nodiscard]] fid_ep& receiver() const noexcept { return *receiver_; }
  /// Returns the address vector for datagrams.
  [[nodiscard]] fid_av& addresses() const noexcept { return *addresses_; }
  /// Returns the largest size of a message that the provider copies before the call returns.
  [[nodiscard]] std::size_t inject_bytes() const noexcept { return inject_bytes_; }
  /// Returns whether peers are reached by connections instead of datagrams. Over a connection, a
  /// signal may follow its puts at once, because they arrive in order, and nothing follows a loss.
  [[nodiscard]] bool connects() const noexcept { return info_->ep_attr->type == FI_EP_MSG; }
  /// Returns whether the provider opens a descriptor for each peer.
  [[nodiscard]] bool opens_sockets() const noexcept {
    return std::string_view{info_->fabric_attr->prov_name}.starts_with("tcp");
  }
  /// Returns a text such as "tcp, domain eth0, 10.0.0.1".
  [[nodiscard]] std::string describe() const {
    const std::string address = describe_address(*info_);
    return concat(info_->fabric_attr->prov_name, ", domain ", info_->domain_attr->name,
                  address.empty() ? "" : ", ", address);
  }

  /// Returns a descriptor that becomes readable when there are completions; -1 if the provider has
  /// none.
  [[nodiscard]] int wake_descriptor() const noexcept { return wake_descriptor_; }

  /// Returns the buffers of receives.
  [[nodiscard]] std::span<notice_buffer> receive_buffers() const noexcept {
    return {notices(), receives_};
  }
  /// Returns the requests of receives.
  [[nodiscard]] std::span<request> receive_requests() const noexcept {
    return {receive_requests_.get(), receives_};
  }
  /// Returns the buffer of the notice that request number `place` to `peer` sends.
  [[nodiscard]] notice_buffer& sent_notice(rank_id peer, std::uint32_t place) const noexcept {
    const std::size_t before = peer.index() * request_ring::places(options_.queue_depth);
    return notices()[receives_ + before + place];
  }
  [[nodiscard]] void* notice_key() const noexcept { return registration_.local_key(); }

  /// Registers `memory`, called `what` in errors.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] registration make_reachable(std::span<std::byte> memory,
                                            std::string_view what) const {
    return register_memory(*domain_, *receiver_, *info_, memory, (*keys_)++, what);
  }

  /// Returns the address by which peers find the endpoint for datagrams.
  /// Throws: `error` system.
  [[nodiscard]] std::vector<std::byte> address() const {
    std::vector<std::byte> found(256);
    std::size_t length = found.size();
    ofi::require(fi_getname(&receiver_->fid, found.data(), &length), "asking for the address");
    found.resize(length);
    return found;
  }
  /// Returns an address of datagrams as text.
  [[nodiscard]] std::string describe(const std::vector<std::byte>& address) const {
    std::array<char, 256> text{};
    std::size_t length = text.size();
    return fi_av_straddr(addresses_.get(), address.data(), text.data(), &length);
  }

 private:
  void open_endpoint(std::size_t rank_count) {
    addresses_ = open<fid_av>("an address vector", [&](fid_av** made) {
      fi_av_attr wanted{};
      wanted.type =
          info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
      wanted.count = rank_count;
      return fi_av_open(domain_, &wanted, made, nullptr);
    });
    receiver_ = open<fid_ep>("an endpoint", [&](fid_ep** made) {
      return fi_endpoint(domain_, info_.get(), made, nullptr);
    });
    ofi::require(fi_ep_bind(receiver_.get(), &addresses_->fid, 0), "binding an address vector");
    ofi::require(fi_ep_bind(receiver_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV),
                 "binding a completion queue");
    ofi::require(fi_enable(receiver_.get()), concat("enabling an endpoint", describe_ports()));
  }

  [[nodiscard]] handle<fid_cq> open_queue(std::size_t ranks) {
    fi_cq_attr wanted{};
    wanted.size = receives_ + ranks * options_.queue_depth;
    wanted.format = FI_CQ_FORMAT_MSG;
    wanted.wait_obj = FI_WAIT_FD;
    fid_cq* made = nullptr;
    if (fi_cq_open(domain_, &wanted, &made, nullptr) == 0) {
      handle<fid_cq> queue{made};
      if (fi_control(&queue->fid, FI_GETWAIT, &wake_descriptor_) != 0) wake_descriptor_ = -1;
      return queue;
    }
    wanted.wait_obj = FI_WAIT_NONE;
    return open<fid_cq>("a completion queue", [&](fid_cq** opened) {
      return fi_cq_open(domain_, &wanted, opened, nullptr);
    });
  }

  [[nodiscard]] notice_buffer* notices() const noexcept {
    return peerbus::detail::placed<notice_buffer>(memory_.data());
  }

  // In the order in which they are made. Each needs those before it, except the memory and the
  // requests of receives, which the provider may use until all is closed.
  provider_info info_;
  fabric_options options_;
  traffic_class traffic_;
  std::size_t receives_;
  std::size_t inject_bytes_;
  int wake_descriptor_ = -1;
  /// The key of the next registration, shared by all resources of the domain.
  std::shared_ptr<std::atomic<std::uint64_t>> keys_ =
      std::make_shared<std::atomic<std::uint64_t>>(1);
  mapping memory_;
  std::unique_ptr<request[]> receive_requests_;
  handle<fid_fabric> own_fabric_;
  handle<fid_domain> own_domain_;
  fid_fabric* fabric_ = nullptr;  ///< this object's fabric, or that of latency traffic
  fid_domain* domain_ = nullptr;
  handle<fid_cq> queue_;
  handle<fid_av> addresses_;
  handle<fid_ep> receiver_;
  registration registration_;
};

}  // namespace peerbus::detail::ofi
