// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "facts.hpp"

namespace peerbus_doctor {

/// Returns what this process sees. Reads files, environment variables and limits, opens RDMA
/// devices, and changes nothing. What cannot be read stays empty.
facts collect();

///@{
/// Returns a part of the facts. `root` precedes the paths of all files that are read. Tests pass a
/// directory with files of their own.
host_facts collect_host(const std::string& root);
processor_facts collect_processor(const std::string& root);
memory_facts collect_memory(const std::string& root);
limit_facts collect_limits(const std::string& root);
///@}

/// Returns the part of the facts that libibverbs knows.
rdma_facts collect_rdma(const std::string& root);

/// Returns the variables by which a launcher starts this process.
launcher_facts collect_launcher();

}  // namespace peerbus_doctor
