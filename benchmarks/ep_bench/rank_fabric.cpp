// SPDX-License-Identifier: MIT
#include "ep_bench/rank.hpp"

#if PEERBUS_BENCH_FABRIC

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "ep_bench/measure/planes.hpp"
#include "ep_bench/rank_impl.hpp"
#include "support/join_hosts.hpp"
#include "support/network_fabric.hpp"

namespace ep_bench {

const bool fabric_built = true;

// Held as `any_transport`, because the network takes the time, and each further transport takes
// long to compile.
int run_fabric(peerbus::bootstrap& boot, const options& chosen, placement how,
               const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver,
                  peerbus::any_transport{peerbus::fabric{boot, bench::fabric_options_of(chosen)}});
}

int run_planes_over_fabric(peerbus::bootstrap& boot, const options& chosen, placement how,
                           const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver,
                  bench::join_hosts<peerbus::fabric>(boot, chosen, [&](peerbus::bootstrap& all) {
                    return peerbus::fabric{all, bench::fabric_options_of(chosen)};
                  }));
}

}  // namespace ep_bench

#else

#include <peerbus/core/error.hpp>

namespace ep_bench {

const bool fabric_built = false;

int run_fabric(peerbus::bootstrap&, const options&, placement, const delivery&) {
  throw peerbus::error{peerbus::errc::unsupported, "fabric: this ep_bench was built without it"};
}
int run_planes_over_fabric(peerbus::bootstrap& boot, const options& chosen, placement how,
                           const delivery& deliver) {
  return run_fabric(boot, chosen, how, deliver);
}

}  // namespace ep_bench

#endif
