// SPDX-License-Identifier: MIT
#include "ep_bench/rank.hpp"

#if PEERBUS_BENCH_VERBS

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/verbs.hpp>

#include "ep_bench/measure/planes.hpp"
#include "ep_bench/rank_impl.hpp"
#include "support/join_hosts.hpp"
#include "support/network_verbs.hpp"

namespace ep_bench {

const bool verbs_built = true;

// Held as `any_transport`, because the network takes the time, and each further transport takes
// long to compile.
int run_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
              const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver,
                  peerbus::any_transport{peerbus::verbs{boot, bench::verbs_options_of(chosen)}});
}

int run_planes_over_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
                          const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver,
                  bench::join_hosts<peerbus::verbs>(boot, chosen, [&](peerbus::bootstrap& all) {
                    return peerbus::verbs{all, bench::verbs_options_of(chosen)};
                  }));
}

}  // namespace ep_bench

#else

#include <peerbus/core/error.hpp>

namespace ep_bench {

const bool verbs_built = false;

int run_verbs(peerbus::bootstrap&, const options&, placement, const delivery&) {
  throw peerbus::error{peerbus::errc::unsupported, "verbs: this ep_bench was built without it"};
}
int run_planes_over_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
                          const delivery& deliver) {
  return run_verbs(boot, chosen, how, deliver);
}

}  // namespace ep_bench

#endif
