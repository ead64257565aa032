// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>

namespace bench {

/// Writes `costs` into a file of costs, with the machine and the number of costs. Costs that the
/// file has and `costs` does not have stay, so that several programs measure into one file.
/// Comments of the file are lost.
/// Throws: `peerbus::error` if the file holds something else, or cannot be written.
inline void merge_costs(const std::string& path, const peerbus::cost_table& costs) {
  peerbus::cost_table all;
  if (std::filesystem::exists(path)) all = peerbus::cost_table::load(path);
  all.merge(costs);
  std::ofstream file{path, std::ios::binary | std::ios::trunc};
  file << all.file_text();
  file.close();
  if (!file) throw peerbus::error{peerbus::errc::system, "costs cannot be written to " + path};
}

}  // namespace bench
