// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/window.hpp>

namespace bench {

/// Tells all ranks what each has found wrong, so that they agree whether to go on.
template <class Transport>
class shared_findings {
 public:
  explicit shared_findings(peerbus::communicator<Transport>& comm)
      : comm_{&comm}, texts_{comm.make_window(2 * text_bytes, 0)} {}

  /// Collective. Returns: what rank 0 passes.
  [[nodiscard]] std::uint64_t of_first(std::uint64_t mine) {
    std::memcpy(texts_.local().data(), &mine, sizeof mine);
    comm_->barrier();
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, text_of(peerbus::rank_id{0}), sizeof theirs);
    comm_->barrier();
    return theirs;
  }

  /// Collective. Returns: what the first rank that has found something says, or nothing.
  [[nodiscard]] std::string first_of_all(const std::string& mine) {
    const auto text = texts_.local().first(text_bytes);
    std::memset(text.data(), 0, text.size());
    std::memcpy(text.data(), mine.data(), std::min(mine.size(), text_bytes - 1));
    comm_->barrier();
    std::string found;
    for (const peerbus::rank_id peer : comm_->ranks()) {
      const char* const theirs = text_of(peer);
      if (found.empty()) found = theirs;  // Ends with a zero.
    }
    comm_->barrier();
    return found;
  }

 private:
  static constexpr std::size_t text_bytes = 256;

  /// Read into the second half of this rank's own part, as not every transport can write elsewhere.
  const char* text_of(peerbus::rank_id peer) {
    const auto theirs = texts_.local().last(text_bytes);
    peerbus::check(texts_.get(peer, 0, theirs), "reading findings");
    peerbus::check(texts_.flush(peer), "reading findings");
    return reinterpret_cast<const char*>(theirs.data());
  }

  peerbus::communicator<Transport>* comm_;
  peerbus::window<Transport> texts_;
};

}  // namespace bench
