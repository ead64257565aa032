// SPDX-License-Identifier: MIT
#include "put_bench/options.hpp"

#include <algorithm>
#include <string>

#include "examples/support/command_line.hpp"
#include "support/network_command_line.hpp"

namespace put_bench {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::ranges::find(list, word) != list.end();
}

void require_words(const char* option, std::size_t bytes) {
  if (bytes % 8 != 0)
    programs::refuse(option, std::to_string(bytes) + " given, expected a multiple of 8");
}

/// Refuses a word of `list` that the transport does not have.
void require_known(const char* option, const std::vector<std::string>& list,
                   const std::vector<std::string>& known, const std::string& transport) {
  std::string expected;
  for (const std::string& each : known) expected += (expected.empty() ? "" : " or ") + each;
  for (const std::string& each : list)
    if (!contains(known, each)) bench::refuse_with(transport, option, each, expected);
}

void check_together(const options& chosen) {
  const std::string& transport = chosen.transport;
  for (const std::size_t bytes : chosen.bandwidth_bytes) require_words("--bandwidth-bytes", bytes);
  require_words("--row-bytes", chosen.row_bytes);
  if (chosen.in_memory()) {
    for (const std::size_t bytes : chosen.latency_bytes) require_words("--latency-bytes", bytes);
    bench::refuse_network_options(chosen, transport);
  } else {
    bench::check_network(chosen, transport, 2, "put_bench", "ub or loopback");
  }
  std::vector<std::string> parts{"latency"};
  std::vector<std::string> contenders{"peerbus"};
  if (chosen.in_memory()) {
    contenders.emplace_back("stores");
    if (PEERBUS_BENCH_UCX && transport == "ub") contenders.emplace_back("ucx");
  } else {
    parts.insert(parts.end(), {"bandwidth", "rows"});
    if (transport == "fabric") {
      parts.emplace_back("order");
      contenders.emplace_back("libfabric");
    } else {
      parts.emplace_back("memory");
    }
  }
  require_known("--parts", chosen.parts, parts, transport);
  require_known("--contenders", chosen.contenders, contenders, transport);
}

}  // namespace

std::size_t options::largest_stream() const {
  return std::max({volume, std::ranges::max(bandwidth_bytes), rows * (row_bytes + gap_of_rows)});
}

bool options::wants(const std::string& part) const {
  if (!parts.empty()) return contains(parts, part);
  if (part == "latency") return true;
  if (in_memory()) return false;
  if (part == "order") return transport == "fabric";
  return part == "bandwidth" || (part == "rows" && transport == "verbs");
}

bool options::has(const std::string& group) const {
  if (!contenders.empty()) return contains(contenders, group);
  if (group == "stores") return in_memory();
  if (group == "ucx") return PEERBUS_BENCH_UCX && transport == "ub";
  if (group == "libfabric") return transport == "fabric";
  return true;
}

std::variant<options, int> parse(int argc, char** argv) {
  options chosen;
  programs::command_line line{
      "put_bench",
      "Puts between two ranks: latency and bandwidth of peerbus's windows, in turns with plain "
      "stores, libfabric or UCX."};
  constexpr std::uint64_t most = 1 << 30;
  line.add("--transport", chosen.transport,
           "ub and loopback: memory of processes or threads of this host")
      .one_of({"ub", "loopback", "verbs", "fabric"});
  line.add("--contenders", chosen.contenders,
           "who takes turns: peerbus, stores (ub, loopback), ucx (ub), libfabric (fabric) [all]")
      .one_of({"peerbus", "stores", "ucx", "libfabric"})
      .by_commas();
  line.add("--parts", chosen.parts,
           "what to measure: latency; over a network also bandwidth and rows (each apart from its "
           "neighbours); fabric: order (signals behind puts over connections, and over datagrams); "
           "verbs: "
           "memory (of a peer, instead of all else) [all but rows of fabric and memory]")
      .one_of({"latency", "bandwidth", "rows", "order", "memory"})
      .by_commas();
  line.add("--latency-bytes", chosen.latency_bytes, "sizes of the small payload [8,7680 or 8,64]")
      .whole_number(1, most);
  line.add("--rounds", chosen.rounds, "round trips of a block [1000 or 2000]")
      .whole_number(1, most);
  line.add("--blocks", chosen.blocks, "blocks of each contender [200 or 5]").whole_number(1, most);
  line.add("--bandwidth-bytes", chosen.bandwidth_bytes, "sizes of large messages, multiples of 8")
      .whole_number(1, most);
  line.add("--volume", chosen.volume, "bytes of a block of large messages").whole_number(1, most);
  line.add("--row-bytes", chosen.row_bytes, "size of a row, a multiple of 8").whole_number(1, most);
  line.add("--rows", chosen.rows, "rows of a block").whole_number(1, most);
  line.add("--order-bytes", chosen.order_bytes, "payloads of order").whole_number(1, most);
  line.add("--order-rounds", chosen.order_rounds, "round trips of a block of these")
      .whole_number(1, most);
  line.add("--depth", chosen.queue_depth, "requests on their way to the peer")
      .whole_number(2, 16384);
  line.add("--memory-ranks", chosen.memory_ranks, "sizes of the groups whose memory is compared")
      .whole_number(1, 4096);
  line.add("--ucx-transports", chosen.ucx_transports, "of UCX, in the words of UCX_TLS");
  line.add("--bootstrap", chosen.bootstrap,
           "how ranks of a launcher meet: on this host, or over the network")
      .one_of({"auto", "host", "tcp"});
  line.add("--json", chosen.json, "also write the results there");
  bench::add_network_options(line, chosen, 2);
  if (const auto status = line.parse(argc, argv, [&] { check_together(chosen); })) return *status;
  const bool memory = chosen.in_memory();
  if (chosen.latency_bytes.empty())
    chosen.latency_bytes =
        memory ? std::vector<std::size_t>{8, 7680} : std::vector<std::size_t>{8, 64};
  if (chosen.rounds == 0) chosen.rounds = memory ? 1000 : 2000;
  if (chosen.blocks == 0) chosen.blocks = memory ? 200 : 5;
  return chosen;
}

}  // namespace put_bench
