// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// Returns the rule by which the kernel gives huge pages to memory files, such as the windows of
/// `unified_bus`: "advise", "always", "never" and so on. Empty if it is not known. `root` is the
/// root directory of the file system.
/// Cost: a file of /sys.
std::string huge_pages_of_files(const std::string& root = "");
/// Returns the rule by which the kernel gives huge pages to other memory of the process, such as
/// the windows of `loopback`. Otherwise as `huge_pages_of_files`.
std::string huge_pages_of_process(const std::string& root = "");

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/huge_pages.ipp>  // IWYU pragma: keep
#endif
