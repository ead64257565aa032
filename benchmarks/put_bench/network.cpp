// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/error.hpp>

#include "put_bench/rank.hpp"

#if PEERBUS_BENCH_FABRIC || PEERBUS_BENCH_VERBS
#include "put_bench/windows.hpp"
#include "support/networks.hpp"
#endif
#if PEERBUS_BENCH_FABRIC
#include "put_bench/libfabric.hpp"
#endif
#if PEERBUS_BENCH_VERBS
#include "put_bench/verbs_memory.hpp"
#endif

namespace put_bench {

#if PEERBUS_BENCH_FABRIC

namespace {

/// Measures signals that follow their puts over a connection beside signals that wait until their
/// puts are delivered by datagrams.
void measure_orders(peerbus::bootstrap& boot, report& found, const peerbus::fabric_options& with) {
  contenders both;
  for (const char* provider : {"tcp", "tcp;ofi_rxm"}) {
    peerbus::fabric_options set = with;
    set.provider = provider;
    peerbus::fabric bus{boot, set};
    both.push_back(std::make_unique<windows<peerbus::fabric>>(
        std::string{"put_signal, "} + provider, std::move(bus)));
  }
  found.measure_part("order", "put_signal, us one way", both, [] {});
}

}  // namespace

int run_fabric(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::fabric_options with = bench::options_of<peerbus::fabric>(chosen);
  with.queue_depth = chosen.queue_depth;
  auto ours = std::make_unique<windows<peerbus::fabric>>("peerbus: put_signal; puts",
                                                         peerbus::fabric{boot, with});
  report found{boot, chosen, ours->comm().bus().describe_provider()};
  contenders all;
  auto& comm = ours->comm();
  if (chosen.has("libfabric"))
    all.push_back(make_libfabric(boot, with.provider, with.domain, chosen.largest_stream()));
  if (chosen.has("peerbus")) all.push_back(std::move(ours));
  found.measure(all, [&] { comm.barrier(); });
  if (chosen.wants("order")) measure_orders(boot, found, with);
  return found.finish();
}

#else

int run_fabric(peerbus::bootstrap&, const options&) {
  throw peerbus::error{peerbus::errc::unsupported, "fabric: this put_bench was built without it"};
}

#endif

#if PEERBUS_BENCH_VERBS

int run_verbs(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::verbs_options with = bench::options_of<peerbus::verbs>(chosen);
  with.queue_depth = chosen.queue_depth;
  auto ours = std::make_unique<windows<peerbus::verbs>>("peerbus: put_signal; puts",
                                                        peerbus::verbs{boot, with});
  const std::string pairs = std::to_string(with.queue_pairs_per_peer) + " queue pair" +
                            (with.queue_pairs_per_peer == 1 ? "" : "s");
  report found{boot, chosen,
               ours->comm().bus().describe_port() + ", " + pairs + " of depth " +
                   std::to_string(with.queue_depth)};
  contenders all;
  all.push_back(std::move(ours));
  found.measure(all, [] {});
  return found.finish();
}

/// Only resident memory can be measured; how much of it is due to one more peer, two groups tell.
int show_verbs_memory(const options& chosen) {
  peerbus::verbs_options with = bench::options_of<peerbus::verbs>(chosen);
  with.queue_depth = chosen.queue_depth;
  std::vector<memory_use> found;
  std::printf("\n%-42s%10s%12s\n", "memory of a rank that is connected", "ranks", "KiB");
  for (const std::size_t ranks : chosen.memory_ranks) {
    const auto one = measure_memory(ranks, with);
    if (one.ranks == 0) return 1;  // It has said why.
    std::printf("%-42s%10zu%12.1f\n", "", one.ranks, static_cast<double>(one.resident) / 1024);
    found.push_back(one);
  }
  const auto [fewest, most] =
      std::ranges::minmax(found, {}, [](const memory_use& one) { return one.ranks; });
  if (most.ranks == fewest.ranks) return 0;
  const double slope = (static_cast<double>(most.resident) - static_cast<double>(fewest.resident)) /
                       static_cast<double>(most.ranks - fewest.ranks) / 1024;
  std::printf(
      "each more peer: %.1f KiB resident, the device driver's queues in this process included; "
      "%.1f KiB by the transport's own count, without those\n",
      slope, static_cast<double>(most.computed_per_peer) / 1024);
  return 0;
}

#else

int run_verbs(peerbus::bootstrap&, const options&) {
  throw peerbus::error{peerbus::errc::unsupported, "verbs: this put_bench was built without it"};
}
int show_verbs_memory(const options&) { return 1; }

#endif

}  // namespace put_bench
