// SPDX-License-Identifier: MIT
#include "stage.hpp"

#include <algorithm>
#include <cstring>

namespace peerbus::c_library {

std::span<std::byte> stage::room(std::size_t wanted, errc& code) noexcept {
  const std::span<std::byte> all = memory_.local();
  if (used_ == all.size()) {
    for (std::size_t rank = 0; rank < has_puts_to_.size(); ++rank) {
      if (has_puts_to_[rank] == 0) continue;
      code = memory_.flush(rank_id{rank});
      if (code != errc::ok) return {};
      has_puts_to_[rank] = 0;
    }
    used_ = 0;
  }
  const auto given = all.subspan(used_, std::min(wanted, all.size() - used_));
  used_ += given.size();
  return given;
}

errc stage::put(window<bus>& to, rank_id peer, std::size_t offset,
                std::span<const std::byte> source) noexcept {
  const std::lock_guard held{turn_};
  errc code = errc::ok;
  while (!source.empty() && code == errc::ok) {
    const auto piece = room(source.size(), code);
    if (code != errc::ok) break;
    std::memcpy(piece.data(), source.data(), piece.size());
    has_puts_to_[peer.index()] = 1;
    code = to.put(peer, offset, piece);
    offset += piece.size();
    source = source.subspan(piece.size());
  }
  return code;
}

errc stage::get(window<bus>& from, rank_id peer, std::size_t offset,
                std::span<std::byte> target) noexcept {
  const std::lock_guard held{turn_};
  errc code = errc::ok;
  while (!target.empty() && code == errc::ok) {
    const auto piece = room(target.size(), code);
    if (code != errc::ok) break;
    code = from.get(peer, offset, piece);
    if (code == errc::ok) code = from.flush(peer);
    if (code != errc::ok) break;
    std::memcpy(target.data(), piece.data(), piece.size());
    offset += piece.size();
    target = target.subspan(piece.size());
  }
  return code;
}

}  // namespace peerbus::c_library
