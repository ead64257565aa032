// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The names of the hosts of a group whose ranks met over TCP, for observers. A host's name is the
/// one that its settings give it, or else the address of its lowest rank that has an address for
/// other hosts. So each host has one text, even if it has several addresses.
class host_names {
 public:
  explicit host_names(std::size_t rank_count) : of_ranks_(rank_count) {}

  /// Adds a rank with its host and its address for other hosts, which may be empty. Lower ranks
  /// must be added first.
  void add(rank_id rank, const host_identity& host, std::string_view address) {
    std::string& name = names_.try_emplace(host.kernel, host.name()).first->second;
    if (name.empty()) name = address;
    of_ranks_[rank.index()] = &name;
  }

  /// Writes the hosts of the ranks to their page.
  void write(const state_page& page) const noexcept {
    for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank)
      if (of_ranks_[rank] != nullptr) page.set_host(rank, *of_ranks_[rank]);
  }

 private:
  std::map<decltype(host_identity::kernel), std::string> names_;  ///< the name of each host; the
                                                                  ///< strings never move
  std::vector<const std::string*> of_ranks_;
};

}  // namespace peerbus::detail
