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
#include <peerbus/transport/any_transport.hpp>
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
using any_plain = test::any_over<peerbus::any_transport, plain>;

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

/// Makes sure that the guest has the devices rxe0, rxe1 and so on, `count` of them, 2 or 4: two and
/// two are the ends of a wire.
/// Returns: whether they are there; on a host with a real device they are not.
inline bool have_devices(std::size_t count) {
  if (std::system("ip link show v1 >/dev/null 2>&1") != 0) return false;
  // No name resolves a local address over a wire: it has to be let in there.
  std::string script =
      "set -e; allow() { sysctl -q -w net.ipv4.conf.$1.accept_local=1 "
      "net.ipv4.conf.$1.rp_filter=0; }; "
      "add() { rdma link show $1/1 >/dev/null 2>&1 && return; allow $2; "
      "ip addr add $3 dev $2 2>/dev/null || true; ip link set $2 up; rdma link add $1 type rxe "
      "netdev $2; }; "
      "allow all; allow v0; add rxe1 v1 10.9.0.2/24; ";
  if (count > 2)
    script +=
        "ip link show v2 >/dev/null 2>&1 || ip link add v2 type veth peer name v3; "
        "ip link set v3 up; add rxe2 v2 10.10.0.1/24; add rxe3 v3 10.10.0.2/24; "
        "for i in $(seq 100); do test $(rdma link | grep -c 'state ACTIVE') = 4 && exit 0; "
        "sleep 0.1; done; exit 1";
  shell(script);
  return true;
}

/// What the kernel keeps for users of RDMA devices: protection domains, queues, registrations.
inline std::string resources() { return output_of("rdma resource show"); }

}  // namespace verbs_test
