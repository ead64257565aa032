// SPDX-License-Identifier: MIT
#include "ep_bench/rank.hpp"

#if PEERBUS_BENCH_VERBS

#include <algorithm>
#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/verbs.hpp>

#include "ep_bench/measure/planes.hpp"
#include "ep_bench/measure/verbs.hpp"
#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

const bool verbs_built = true;

namespace {

peerbus::verbs_options verbs_options_of(const options& chosen) {
  peerbus::verbs_options with;
  for (std::size_t begin = 0; begin < chosen.device.size();) {  // "rxe0,rxe1" names two.
    const std::size_t end = std::min(chosen.device.find(',', begin), chosen.device.size());
    with.devices.push_back(chosen.device.substr(begin, end - begin));
    begin = end + 1;
  }
  if (with.devices.size() == 1) {
    with.device = with.devices.front();
    with.devices.clear();
  }
  if (chosen.gid_index) with.gid_index = static_cast<int>(*chosen.gid_index);
  with.queue_pairs_per_peer = static_cast<decltype(with.queue_pairs_per_peer)>(chosen.queue_pairs);
  return with;
}

}  // namespace

int run_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
              const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver, peerbus::verbs{boot, verbs_options_of(chosen)});
}

int run_planes_over_verbs(peerbus::bootstrap& boot, const options& chosen, placement how,
                          const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver,
                  join_hosts<peerbus::verbs>(boot, chosen, [&](peerbus::bootstrap& all) {
                    return peerbus::verbs{all, verbs_options_of(chosen)};
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
