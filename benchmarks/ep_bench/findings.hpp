// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

namespace ep_bench {

/// Tells all ranks what each has found wrong, so that they agree whether to go on.
template <class Transport>
class shared_findings {
 public:
  explicit shared_findings(peerbus::communicator<Transport>& comm)
      : comm_{&comm}, texts_{comm.make_window(text_bytes, 0)} {}

  /// Collective. Returns: what rank 0 passes.
  [[nodiscard]] std::uint64_t of_first(std::uint64_t mine) {
    std::memcpy(texts_.local().data(), &mine, sizeof mine);
    comm_->barrier();
    std::uint64_t theirs = 0;
    const peerbus::rank_id first{0};
    peerbus::check(texts_.get(first, 0, std::span{&theirs, 1}), "reading findings");
    peerbus::check(texts_.flush(first), "reading findings");
    comm_->barrier();
    return theirs;
  }

  /// Collective. Returns: what the first rank that has found something says, or nothing.
  [[nodiscard]] std::string first_of_all(const std::string& mine) {
    const auto text = texts_.local();
    std::memset(text.data(), 0, text.size());
    std::memcpy(text.data(), mine.data(), std::min(mine.size(), text_bytes - 1));
    comm_->barrier();
    std::string found;
    for (const peerbus::rank_id peer : comm_->ranks()) {
      std::vector<char> theirs(text_bytes);
      peerbus::check(texts_.get(peer, 0, std::span{theirs}), "reading findings");
      peerbus::check(texts_.flush(peer), "reading findings");
      if (found.empty()) found = theirs.data();  // Ends with a zero.
    }
    comm_->barrier();
    return found;
  }

 private:
  static constexpr std::size_t text_bytes = 256;

  peerbus::communicator<Transport>* comm_;
  peerbus::window<Transport> texts_;
};

}  // namespace ep_bench
