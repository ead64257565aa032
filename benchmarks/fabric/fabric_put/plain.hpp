// SPDX-License-Identifier: MIT
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/resources.hpp>

#include "support/clock.hpp"

namespace fabric_put {

/// libfabric without peerbus's protocol, over the endpoint that `peerbus::fabric` opens: messages
/// and writes between two ranks.
class plain {
  using resources = peerbus::detail::ofi::resources;

 public:
  /// Collective; the group has two ranks.
  plain(peerbus::bootstrap& boot, const peerbus::fabric_options& chosen, std::size_t bytes)
      : first_{boot.rank().index() == 0},
        memory_{peerbus::mapping::anonymous(bytes)},
        own_{peerbus::detail::ofi::provider_search{chosen, true}.find(), chosen, 2, nullptr},
        registration_{own_.make_reachable({memory_.data(), bytes}, "a benchmark")} {
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const std::uint64_t place[]{registration_.remote_key(),
                                registration_.address({memory_.data(), bytes})};
    std::vector<std::byte> told = own_.address();
    const std::size_t length = told.size();
    told.resize(length + sizeof place);
    std::memcpy(told.data() + length, place, sizeof place);
    const auto all = boot.allgather({std::move(told), {}}, until, "plain libfabric");
    const auto& theirs = all[1 - boot.rank().index()].bytes;
    if (fi_av_insert(&own_.addresses(), theirs.data(), 1, &peer_, 0, nullptr) != 1)
      throw std::runtime_error{"fi_av_insert refused an address"};
    std::uint64_t found[2];
    std::memcpy(found, theirs.data() + theirs.size() - sizeof found, sizeof found);
    key_ = found[0];
    address_ = found[1];
    for (std::size_t i = 0; i < receives_.size(); ++i) receive(i);
    static_cast<void>(boot.allgather({}, until, "plain libfabric can receive"));
    static_cast<void>(ping_pong(8, 10));  // Connects.
  }

  /// Collective. Returns: microseconds one way of a message, half of each round trip.
  [[nodiscard]] std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) {
    std::vector<double> one_way_us;
    for (std::size_t i = 0; i < rounds; ++i) {
      const auto start = bench::clock::now();
      if (first_) send(bytes);
      await_message();
      if (!first_) send(bytes);
      one_way_us.push_back(bench::microseconds(bench::clock::now() - start) / 2);
    }
    return one_way_us;
  }

  /// Collective. Rank 0 writes `messages` of `bytes` side by side, then sends a message, which rank
  /// 1 answers. Returns: microseconds until the answer has come; on rank 0.
  [[nodiscard]] double stream(std::size_t bytes, std::size_t messages) {
    const auto start = bench::clock::now();
    if (first_) {
      void* key = registration_.local_key();
      for (std::size_t i = 0; i < messages; ++i) {
        const iovec local{memory_.data() + i * bytes, bytes};
        const fi_rma_iov remote{address_ + i * bytes, bytes, key_};
        const fi_msg_rma message{&local, &key, 1, peer_, &remote, 1, &written_, 0};
        again([&] { return fi_writemsg(&own_.endpoint(), &message, FI_COMPLETION); });
      }
      send(8);
      await_message();
    } else {
      await_message();
      send(8);
    }
    return bench::microseconds(bench::clock::now() - start);
  }

 private:
  template <class Call>
  void again(Call&& call) {
    long failed = 0;
    while ((failed = call()) == -FI_EAGAIN) look();
    if (failed != 0) throw std::runtime_error{fi_strerror(static_cast<int>(-failed))};
  }
  void receive(std::size_t i) {
    again([&] {
      return fi_recv(&own_.endpoint(), &buffers_[i], sizeof buffers_[i], own_.notice_key(),
                     FI_ADDR_UNSPEC, &receives_[i]);
    });
  }
  void send(std::size_t bytes) {
    again([&] { return fi_inject(&own_.endpoint(), memory_.data(), bytes, peer_); });
  }
  void look() {
    std::array<fi_cq_msg_entry, 16> batch;
    const auto count = fi_cq_read(&own_.queue(), batch.data(), batch.size());
    if (count == -FI_EAVAIL) throw std::runtime_error{"a request of plain libfabric failed"};
    for (long i = 0; i < count; ++i) {
      void* const context = batch[static_cast<std::size_t>(i)].op_context;
      if (context == &written_) continue;
      ++arrived_;
      receive(static_cast<std::size_t>(static_cast<fi_context2*>(context) - receives_.data()));
    }
  }
  void await_message() {
    while (arrived_ == taken_) look();
    ++taken_;
  }

  bool first_;
  peerbus::mapping memory_;
  resources own_;
  peerbus::detail::ofi::registration registration_;
  std::array<fi_context2, 16> receives_{};
  std::array<std::array<std::byte, 256>, 16> buffers_{};
  fi_context2 written_{};
  fi_addr_t peer_ = FI_ADDR_NOTAVAIL;
  std::uint64_t key_ = 0;
  std::uint64_t address_ = 0;
  std::size_t arrived_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace fabric_put
