// SPDX-License-Identifier: MIT
#include "coll_bench/rank.hpp"

#if PEERBUS_BENCH_FABRIC

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "coll_bench/rank_impl.hpp"
#include "support/join_hosts.hpp"
#include "support/network_fabric.hpp"

namespace coll_bench {

const bool fabric_built = true;

int run_fabric(peerbus::bootstrap& boot, const options& chosen) {
  const auto make = [&](peerbus::bootstrap& all) {
    return peerbus::fabric{all, bench::fabric_options_of(chosen)};
  };
  if (chosen.transport == "planes")
    return run_over(boot, chosen, bench::join_hosts<peerbus::fabric>(boot, chosen, make));
  return run_over(boot, chosen, peerbus::any_transport{make(boot)});
}

}  // namespace coll_bench

#else

#include <peerbus/core/error.hpp>

namespace coll_bench {

const bool fabric_built = false;

int run_fabric(peerbus::bootstrap&, const options&) {
  throw peerbus::error{peerbus::errc::unsupported, "fabric: this coll_bench was built without it"};
}

}  // namespace coll_bench

#endif
