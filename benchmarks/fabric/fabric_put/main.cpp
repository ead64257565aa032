// SPDX-License-Identifier: MIT
//
// What peerbus::fabric does to one peer, in turns with plain libfabric over the same kind of
// endpoint: latency of a small put with its signal, and bandwidth of puts. Then what a signal costs
// that waits until its put is delivered, beside one that relies on the order of messages.
// `fabric_put --help` lists the options; compare.sh runs it beside fi_pingpong.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/transport/fabric.hpp>

#include "examples/support/command_line.hpp"
#include "fabric/fabric_put/plain.hpp"
#include "support/put_ping_pong.hpp"
#include "support/put_stream.hpp"
#include "support/statistics.hpp"

namespace {

struct options {
  std::vector<std::size_t> latency_bytes{8, 64};
  std::vector<std::size_t> bandwidth_bytes{65'536, 1'048'576, 4'194'304};
  std::vector<std::size_t> order_bytes{200, 4096, 65'536, 1'048'576};
  std::size_t order_rounds = 200;
  std::size_t rounds = 2000;
  std::size_t blocks = 5;
  std::size_t volume = std::size_t{32} << 20;
  peerbus::fabric_options fabric;
};

/// Puts with their signals, back and forth, between two ranks that confirm puts and two that rely
/// on order, in turns. Returns: whether all payloads were right.
bool compare_orders(peerbus::bootstrap& boot, const options& chosen) {
  if (chosen.order_bytes.empty()) return true;
  const auto over = [&](bool relies_on_order) {
    peerbus::fabric_options set = chosen.fabric;
    set.rely_on_order = relies_on_order;
    return peerbus::communicator{peerbus::fabric{boot, set}};
  };
  auto confirming = over(false);
  auto relying = over(true);
  const bool first = boot.rank().index() == 0;
  bool right = true;
  if (first)
    std::printf("\n%-34s%10s%12s%12s%8s\n", "p50 of the blocks' medians", "bytes", "confirmed",
                "ordered", "ratio");
  for (const std::size_t bytes : chosen.order_bytes) {
    bench::put_ping_pong confirmed{confirming, bytes};
    bench::put_ping_pong ordered{relying, bytes};
    std::vector<double> with_confirmation;
    std::vector<double> by_order;
    for (std::size_t block = 0; block <= chosen.blocks; ++block) {
      const double one = bench::median(confirmed.play(chosen.order_rounds));
      const double other = bench::median(ordered.play(chosen.order_rounds));
      if (block == 0) continue;  // It warms up.
      with_confirmation.push_back(one);
      by_order.push_back(other);
    }
    right = right && confirmed.right() && ordered.right();
    const double one = bench::median(with_confirmation);
    const double other = bench::median(by_order);
    if (first)
      std::printf("%-34s%10zu%12.2f%12.2f%8.2f\n", "put_signal, us one way", bytes, one, other,
                  one / other);
  }
  return right;
}

int run(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::communicator comm{peerbus::fabric{boot, chosen.fabric}};
  std::size_t most = chosen.volume + 4096;
  for (const std::size_t bytes : chosen.bandwidth_bytes) most = std::max(most, bytes);
  fabric_put::plain plain{boot, chosen.fabric, most};
  const bool first = comm.rank().index() == 0;
  bool right = true;
  if (first) {
    std::printf("fabric_put  %s\n\n%-34s%10s%12s%12s%8s\n", comm.bus().describe_provider().c_str(),
                "p50 of the blocks' medians", "bytes", "peerbus", "libfabric", "ratio");
  }
  for (const std::size_t bytes : chosen.latency_bytes) {
    bench::put_ping_pong game{comm, bytes};
    std::vector<double> ours;
    std::vector<double> theirs;
    for (std::size_t block = 0; block <= chosen.blocks; ++block) {
      const double mine = bench::median(game.play(chosen.rounds));
      const double other = bench::median(plain.ping_pong(bytes, chosen.rounds));
      comm.barrier();
      if (block == 0) continue;  // It warms up.
      ours.push_back(mine);
      theirs.push_back(other);
    }
    right = right && game.right();
    const double mine = bench::median(ours);
    const double other = bench::median(theirs);
    if (first)
      std::printf("%-34s%10zu%12.2f%12.2f%8.2f\n", "put_signal | message, us one way", bytes, mine,
                  other, mine / other);
  }
  for (const std::size_t bytes : chosen.bandwidth_bytes) {
    const std::size_t messages = std::max<std::size_t>(chosen.volume / bytes, 1);
    bench::put_stream flow{comm, bench::stream_shape{bytes, messages, 0}};
    std::vector<double> ours;
    std::vector<double> theirs;
    for (std::size_t block = 0; block <= chosen.blocks; ++block) {
      const double mine = flow.play();
      comm.barrier();
      const double other = plain.stream(bytes, messages);
      if (block == 0) continue;
      ours.push_back(mine);
      theirs.push_back(other);
    }
    right = right && flow.right();
    const auto rate = [&](const std::vector<double>& us) {
      return static_cast<double>(bytes * messages) / bench::median(us);
    };
    if (first)
      std::printf("%-34s%10zu%12.1f%12.1f%8.2f\n", "puts | fi_writemsg, MB/s", bytes, rate(ours),
                  rate(theirs), rate(ours) / rate(theirs));
  }
  right = compare_orders(boot, chosen) && right;
  if (!right)
    std::fprintf(stderr, "fabric_put: rank %zu has a wrong payload\n", comm.rank().index());
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  programs::command_line line{
      "fabric_put",
      "Latency and bandwidth of peerbus::fabric between two ranks, beside plain libfabric."};
  constexpr std::uint64_t most = 1 << 30;
  line.add("--provider", chosen.fabric.provider, "libfabric's provider");
  line.add("--domain", chosen.fabric.domain, "its domain [the loopback interface]");
  line.add("--latency-bytes", chosen.latency_bytes, "sizes of the small payload")
      .whole_number(1, 64);
  line.add("--bandwidth-bytes", chosen.bandwidth_bytes, "sizes of messages, multiples of 8")
      .whole_number(1, most);
  line.add("--order-bytes", chosen.order_bytes,
           "payloads sent both with and without --rely-on-order")
      .whole_number(1, most);
  line.add("--order-rounds", chosen.order_rounds, "round trips of a block of these")
      .whole_number(1, most);
  line.flag("--rely-on-order", chosen.fabric.rely_on_order,
            "a signal does not wait until its puts are delivered; for all but --order-bytes");
  line.add("--rounds", chosen.rounds, "round trips of a block").whole_number(1, most);
  line.add("--blocks", chosen.blocks, "blocks in turns").whole_number(1, most);
  line.add("--volume", chosen.volume, "bytes of a block of messages").whole_number(1, most);
  if (const auto status = line.parse(argc, argv)) return *status;
  try {
    return peerbus::run_local(2, [&](peerbus::bootstrap& boot) { return run(boot, chosen); },
                              {.pin = peerbus::usable_cores() >= 2});
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "fabric_put: %s\n", problem.what());
    return 1;
  }
}
