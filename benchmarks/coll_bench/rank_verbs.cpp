// SPDX-License-Identifier: MIT
#include "coll_bench/rank.hpp"

#if PEERBUS_BENCH_VERBS

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/verbs.hpp>

#include "coll_bench/rank_impl.hpp"
#include "support/join_hosts.hpp"
#include "support/network_verbs.hpp"

namespace coll_bench {

const bool verbs_built = true;

int run_verbs(peerbus::bootstrap& boot, const options& chosen) {
  const auto make = [&](peerbus::bootstrap& all) {
    return peerbus::verbs{all, bench::verbs_options_of(chosen)};
  };
  if (chosen.transport == "planes")
    return run_over(boot, chosen, bench::join_hosts<peerbus::verbs>(boot, chosen, make));
  return run_over(boot, chosen, peerbus::any_transport{make(boot)});
}

}  // namespace coll_bench

#else

#include <peerbus/core/error.hpp>

namespace coll_bench {

const bool verbs_built = false;

int run_verbs(peerbus::bootstrap&, const options&) {
  throw peerbus::error{peerbus::errc::unsupported, "verbs: this coll_bench was built without it"};
}

}  // namespace coll_bench

#endif
