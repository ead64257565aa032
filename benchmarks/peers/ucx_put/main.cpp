// SPDX-License-Identifier: MIT
//
// One-way latency of UCX's one-sided verbs between two pinned processes of this host, the peer of
// put_signal in micro_bench. `ucx_put --help` lists the options.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/core/cores.hpp>

#include "examples/support/command_line.hpp"
#include "peers/ucx_put/endpoint.hpp"
#include "peers/ucx_put/ping_pong.hpp"
#include "support/json.hpp"
#include "support/statistics.hpp"

namespace {

using ucx_put::arrival;

struct options {
  std::vector<std::size_t> bytes{8, 7680};
  std::size_t rounds = 1000;
  std::size_t blocks = 200;
  std::string transports = "posix";
  std::string json;
};

const char* name_of(arrival how) noexcept {
  return how == arrival::by_flag ? "put, fence, put of a flag" : "put, its own words polled";
}

int run(peerbus::bootstrap& boot, const options& chosen) {
  const bool first = boot.rank().index() == 0;
  const std::size_t most = std::ranges::max(chosen.bytes);
  ucx_put::endpoint here{boot, chosen.transports, ucx_put::ping_pong::memory_bytes(most)};
  bench::json results = bench::json::array();
  bool right = true;
  if (first)
    std::printf(
        "ucx_put  UCX %s over %s, ns one way, blocks of %zu round trips\n%-28s%8s%10s%10s%10s\n",
        ::ucp_get_version_string(), chosen.transports.c_str(), chosen.rounds, "", "bytes", "min",
        "p50", "p99");
  std::size_t epoch_base = 0;
  for (const std::size_t bytes : chosen.bytes)
    for (const arrival how : {arrival::by_flag, arrival::by_payload}) {
      ucx_put::ping_pong game{here, bytes, first, epoch_base};
      std::vector<double> one_way_ns;
      one_way_ns.reserve(chosen.blocks);
      game.play(how, chosen.rounds);
      for (std::size_t i = 0; i < chosen.blocks; ++i)
        one_way_ns.push_back(game.play(how, chosen.rounds));
      epoch_base = game.number();
      right = right && game.right();
      if (!first) continue;
      const auto found = bench::summarise(one_way_ns);
      std::printf("%-28s%8zu%10.1f%10.1f%10.1f\n", name_of(how), bytes, found.min, found.p50,
                  found.p99);
      results.push_back({{"bytes", bytes},
                         {"arrival", how == arrival::by_flag ? "flag" : "payload"},
                         {"one_way_ns", bench::statistics_json(found)}});
    }
  if (!right) std::fprintf(stderr, "ucx_put: rank %zu got a wrong payload\n", boot.rank().index());
  if (first && !chosen.json.empty())
    bench::write_json(chosen.json, {{"config",
                                     {{"ucx", ::ucp_get_version_string()},
                                      {"transports", chosen.transports},
                                      {"rounds", chosen.rounds},
                                      {"blocks", chosen.blocks}}},
                                    {"put", results},
                                    {"check", {{"passed", right}}}});
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  programs::command_line line{
      "ucx_put", "One-way latency of UCX's put over shared memory, between two pinned processes."};
  line.add("--bytes", chosen.bytes, "sizes of the payload, multiples of 8")
      .whole_number(8, 1 << 30);
  line.add("--rounds", chosen.rounds, "round trips of a block").whole_number(1, 1 << 30);
  line.add("--blocks", chosen.blocks, "blocks; a time is the mean of one").whole_number(1, 1 << 30);
  line.add("--transports", chosen.transports, "of UCX, in the words of UCX_TLS");
  line.add("--json", chosen.json, "also write the results there");
  const auto check = [&] {
    if (std::ranges::any_of(chosen.bytes, [](std::size_t bytes) { return bytes % 8 != 0; }))
      programs::refuse("--bytes", "expected multiples of 8");
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  try {
    return peerbus::run_local(2, [&](peerbus::bootstrap& boot) { return run(boot, chosen); },
                              {.pin = peerbus::usable_cores() >= 2});
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ucx_put: %s\n", problem.what());
    return 1;
  }
}
