// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/verbs.hpp>

#include "support/ranks.hpp"

namespace verbs_test {

/// Small queues and several of them, so that short tests fill them, and puts of a few words are
/// spread.
class striped_verbs : public peerbus::basic_verbs<> {
 public:
  explicit striped_verbs(peerbus::bootstrap& boot)
      : basic_verbs{boot, {.queue_pairs_per_peer = 3, .stripe_bytes = 48, .queue_depth = 5}} {}
};
static_assert(peerbus::runnable_transport<striped_verbs>);

using plain = test::processes_over<peerbus::verbs>;
using striped = test::processes_over<striped_verbs>;

/// What a command prints. Throws if it fails.
inline std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe{::popen(command.c_str(), "r"),
                                                             ::pclose};
  std::string text;
  std::array<char, 256> part;
  while (pipe && std::fgets(part.data(), static_cast<int>(part.size()), pipe.get()) != nullptr)
    text += part.data();
  if (text.empty()) test::fail("'", command, "' printed nothing");
  return text;
}

inline void shell(const std::string& command) {
  if (const int status = std::system(command.c_str()); status != 0)
    test::fail("'", command, "' ended with ", status);
}

/// What the kernel keeps for users of RDMA devices: protection domains, queues, registrations.
inline std::string resources() { return output_of("rdma resource show"); }

}  // namespace verbs_test
