// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

#include "support/kernel_copy.hpp"

namespace ep_bench {

/// A window, with what it takes to write into it through the kernel instead.
template <class Transport>
class landing {
 public:
  /// Collective.
  landing(peerbus::communicator<Transport>& comm, std::size_t bytes)
      : window_{comm.make_window(bytes, 0)} {
    struct card {
      bench::far_address start;
      pid_t process;
    };
    auto cards = comm.make_window(comm.size() * sizeof(card), 0);
    const card mine{reinterpret_cast<bench::far_address>(window_.local().data()), ::getpid()};
    for (const peerbus::rank_id peer : comm.ranks())
      cards.template peer<card>(peer)[comm.rank().index()] = mine;
    comm.barrier();
    for (const peerbus::rank_id peer : comm.ranks()) {
      const card theirs = cards.template local<card>()[peer.index()];
      parts_.push_back({window_.peer(peer).data(), theirs.start, theirs.process});
    }
    comm.barrier();
  }

  [[nodiscard]] std::byte* local(std::size_t offset) const noexcept {
    return window_.local().data() + offset;
  }
  /// What the owner calls `address`, for stores and loads of this rank.
  [[nodiscard]] std::byte* near(std::size_t rank, bench::far_address address) const noexcept {
    return parts_[rank].here + (address - parts_[rank].there);
  }
  /// Byte `offset` of the part of `rank`, as that rank calls it.
  [[nodiscard]] bench::far_address address(std::size_t rank, std::size_t offset) const noexcept {
    return parts_[rank].there + offset;
  }
  [[nodiscard]] pid_t process(std::size_t rank) const noexcept { return parts_[rank].process; }

 private:
  struct part {
    std::byte* here;
    bench::far_address there;
    pid_t process;
  };
  peerbus::window<Transport> window_;
  std::vector<part> parts_;
};

}  // namespace ep_bench
