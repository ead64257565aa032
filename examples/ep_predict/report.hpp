// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <peerbus/transport/simulated/links.hpp>

#include "aggregated.hpp"
#include "bounds.hpp"
#include "platform_file.hpp"
#include "prediction.hpp"

namespace ep_predict {

/// Prints what the columns of `print_row` are. `engine` carries messages, such as "ports".
void print_header(const load& batch, const platform_file& given, const std::string& engine,
                  bool csv);

/// Prints a prediction: a line for each of its two operations.
void print_row(const load& batch, const prediction& found, bool csv);

/// Prints the share of signals in a dispatch, which grows with the number of ranks.
void print_flags(const load& batch, const flag_words& flags);

/// Prints the shares of costs, and lines of advice.
void print_bounds(const std::vector<bound>& bounds);
void print_advice(const std::vector<std::string>& lines);

/// Prints the sources of a file, then the published times of `library`, or of all libraries if it
/// is empty, with what is predicted for them, by `links` if they are not null, and the mechanism of
/// misses.
/// Throws: as `predict`; std::runtime_error if the file has no times of this library.
void print_residuals(const platform_file& given, const std::string& library,
                     peerbus::simulated_links* links);

}  // namespace ep_predict
