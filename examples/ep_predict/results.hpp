// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bounds.hpp"
#include "platform_file.hpp"
#include "prediction.hpp"

namespace ep_predict {

/// Returns whether this program was built with the page of the benchmarks.
[[nodiscard]] bool has_page() noexcept;

/// The predictions of a run as JSON, which the page of the benchmarks draws: times over ranks and
/// over tokens, with bands from the 10th to the 90th percentile of ranks and rounds.
class results {
 public:
  /// `usual` has what all loads share; `command` is the command line.
  results(const load& usual, const platform_file& given, const std::string& engine,
          const std::vector<std::string>& command);

  /// Adds a prediction.
  void add(const load& batch, const prediction& found);
  /// Adds the shares of costs, or lines of advice, to the latest prediction.
  void add(const std::vector<bound>& bounds);
  void add(const std::vector<std::string>& advice);

  /// Writes the JSON to `json_path`, and a page of it to `page_path`, unless a path is empty.
  /// Throws: std::runtime_error or `peerbus::error` if a file cannot be written.
  void write(const std::string& json_path, const std::string& page_path) const;

 private:
  nlohmann::ordered_json all_;
};

}  // namespace ep_predict
