// SPDX-License-Identifier: MIT
//
// What peerbus::verbs does to one peer, for comparison with perftest: latency of a small put with
// its signal, bandwidth of puts, and the memory that a peer costs. `verbs_put --help` lists the
// options; compare.sh runs it beside perftest.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/transport/verbs.hpp>

#include "examples/support/command_line.hpp"
#include "support/join_group.hpp"
#include "support/json.hpp"
#include "support/put_ping_pong.hpp"
#include "support/put_stream.hpp"
#include "support/statistics.hpp"
#include "verbs/verbs_put/memory.hpp"

namespace {

using bench::json;

struct options {
  std::vector<std::string> parts{"latency", "bandwidth", "rows"};
  std::vector<std::size_t> latency_bytes{2, 8, 64};
  std::vector<std::size_t> bandwidth_bytes{65'536, 1'048'576, 4'194'304};
  std::size_t row_bytes = 7680;
  std::size_t rows = 1024;
  std::size_t rounds = 2000;
  std::size_t blocks = 5;
  std::size_t volume = std::size_t{32} << 20;
  std::vector<std::size_t> memory_ranks{2, 8};
  peerbus::verbs_options device;
  std::string bootstrap = "auto";
  std::string json;
};

/// One rank's part, of two.
class session {
 public:
  session(peerbus::bootstrap& boot, const options& chosen)
      : chosen_{&chosen},
        comm_{peerbus::verbs{boot, chosen.device}},
        first_{comm_.rank().index() == 0} {
    if (!first_) return;
    std::printf("verbs_put  %s, %u queue pair%s of depth %u\n", comm_.bus().describe_port().c_str(),
                chosen.device.queue_pairs_per_peer,
                chosen.device.queue_pairs_per_peer == 1 ? "" : "s", chosen.device.queue_depth);
  }

  json latency() {
    json all = json::array();
    if (first_)
      std::printf("\n%-42s%10s%10s%10s%10s\n", "put + signal, us one way", "bytes", "min", "p50",
                  "p99");
    for (const std::size_t bytes : chosen_->latency_bytes) {
      bench::put_ping_pong game{comm_, bytes};
      static_cast<void>(game.play(chosen_->rounds / 10 + 1));
      const auto found = bench::summarise(game.play(chosen_->rounds));
      right_ = right_ && game.right();
      if (!first_) continue;
      std::printf("%-42s%10zu%10.2f%10.2f%10.2f\n", "", bytes, found.min, found.p50, found.p99);
      all.push_back({{"bytes", bytes}, {"one_way_us", bench::statistics_json(found)}});
    }
    if (first_)
      std::puts("one way = half of the time from put_signal until the answer's wait has returned");
    return all;
  }

  json bandwidth(bool large, bool rows) {
    json all = json::array();
    if (first_)
      std::printf("\n%-42s%10s%10s%12s%10s%10s\n", "puts to one peer", "bytes", "messages",
                  "us/message", "MB/s", "best");
    for (const std::size_t bytes : chosen_->bandwidth_bytes) {
      if (!large) break;
      const std::size_t messages = std::max<std::size_t>(chosen_->volume / bytes, 1);
      all.push_back(stream("side by side", {bytes, messages, 0}));
    }
    if (rows) {
      // The gap keeps a transport that merges neighbours from making one message of many.
      const std::size_t gap = 512;
      all.push_back(
          stream("rows apart: none can be merged", {chosen_->row_bytes, chosen_->rows, gap}));
      all.push_back(stream("rows side by side", {chosen_->row_bytes, chosen_->rows, 0}));
    }
    if (first_)
      std::puts(
          "us/message = (from the first put until the peer's answer to the signal behind the last) "
          "/ "
          "messages,\n  p50 of the blocks; MB/s = bytes / that, of 10^6; best: of the fastest "
          "block");
    return all;
  }

  [[nodiscard]] std::string port() { return comm_.bus().describe_port(); }
  [[nodiscard]] bool right() const noexcept { return right_; }
  [[nodiscard]] bool first() const noexcept { return first_; }

 private:
  json stream(const char* name, const bench::stream_shape& shape) {
    bench::put_stream flow{comm_, shape};
    std::vector<double> us;
    for (std::size_t block = 0; block <= chosen_->blocks; ++block) {
      const double spent = flow.play() / static_cast<double>(shape.messages);
      if (block != 0) us.push_back(spent);  // The first warms up.
    }
    right_ = right_ && flow.right();
    const auto found = bench::summarise(us);
    const auto rate = [&](double each) { return static_cast<double>(shape.bytes) / each; };
    if (first_)
      std::printf("%-42s%10zu%10zu%12.2f%10.1f%10.1f\n", name, shape.bytes, shape.messages,
                  found.p50, rate(found.p50), rate(found.min));
    return {{"bytes", shape.bytes},
            {"messages", shape.messages},
            {"gap", shape.gap},
            {"us_per_message", bench::statistics_json(found)},
            {"megabytes_per_second", rate(found.p50)}};
  }

  const options* chosen_;
  peerbus::communicator<peerbus::verbs> comm_;
  bool first_;
  bool right_ = true;
};

int run(peerbus::bootstrap& boot, const options& chosen) {
  if (boot.size() != 2) {
    std::fprintf(stderr, "verbs_put: %zu ranks given, expected 2\n", boot.size());
    return 2;
  }
  session here{boot, chosen};
  json all;
  all["config"] = {{"port", here.port()},
                   {"queue_pairs", chosen.device.queue_pairs_per_peer},
                   {"queue_depth", chosen.device.queue_depth},
                   {"rounds", chosen.rounds},
                   {"blocks", chosen.blocks}};
  const auto wanted = [&](const char* part) {
    return std::ranges::find(chosen.parts, part) != chosen.parts.end();
  };
  all["latency"] = wanted("latency") ? here.latency() : json::array();
  const bool large = wanted("bandwidth");
  const bool rows = wanted("rows");
  all["bandwidth"] = large || rows ? here.bandwidth(large, rows) : json::array();
  all["check"] = {{"passed", here.right()}};
  if (!here.right())
    std::fprintf(stderr, "verbs_put: rank %zu has a wrong payload\n", boot.rank().index());
  if (!here.first()) return here.right() ? 0 : 1;
  std::printf("check    %s\n", here.right() ? "passed: every payload, byte by byte" : "FAILED");
  if (!chosen.json.empty()) bench::write_json(chosen.json, all);
  return here.right() ? 0 : 1;
}

/// Only resident memory can be measured; how much of it is due to one more peer, two groups tell.
void show_memory(const options& chosen) {
  std::vector<verbs_put::memory_use> found;
  std::printf("\n%-42s%10s%12s\n", "memory of a rank that is connected", "ranks", "KiB");
  for (const std::size_t ranks : chosen.memory_ranks) {
    const auto one = verbs_put::measure_memory(ranks, chosen.device);
    if (one.ranks == 0) return;  // It has said why.
    std::printf("%-42s%10zu%12.1f\n", "", one.ranks, static_cast<double>(one.resident) / 1024);
    found.push_back(one);
  }
  const auto [fewest, most] =
      std::ranges::minmax(found, {}, [](const verbs_put::memory_use& one) { return one.ranks; });
  if (most.ranks == fewest.ranks) return;
  const double slope = (static_cast<double>(most.resident) - static_cast<double>(fewest.resident)) /
                       static_cast<double>(most.ranks - fewest.ranks) / 1024;
  std::printf(
      "each more peer: %.1f KiB resident, the device driver's queues in this process included; "
      "%.1f KiB by the transport's own count, without those\n",
      slope, static_cast<double>(most.computed_per_peer) / 1024);
}

void check_together(const options& chosen) {
  const auto require_words = [](const char* option, std::size_t bytes) {
    if (bytes % 8 != 0)
      programs::refuse(option, std::to_string(bytes) + " given, expected a multiple of 8");
  };
  for (const std::size_t bytes : chosen.bandwidth_bytes) require_words("--bandwidth-bytes", bytes);
  require_words("--row-bytes", chosen.row_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  bool memory_only = false;
  programs::command_line line{
      "verbs_put",
      "Latency and bandwidth of peerbus::verbs between two ranks, and memory per peer."};
  constexpr std::uint64_t most = 1 << 30;
  line.add("--device", chosen.device.device,
           "name of the RDMA device [the first with an active port]");
  line.add("--gid-index", chosen.device.gid_index,
           "which address of its port; -1: the first of RoCE v2, IPv4 if there is one")
      .whole_number(-1, 255);
  line.add("--qps", chosen.device.queue_pairs_per_peer, "queue pairs").whole_number(1, 9);
  line.add("--depth", chosen.device.queue_depth, "requests on their way on each")
      .whole_number(2, 16384);
  line.add("--latency-bytes", chosen.latency_bytes, "sizes of the small payload")
      .whole_number(1, most);
  line.add("--bandwidth-bytes", chosen.bandwidth_bytes, "sizes of large messages")
      .whole_number(1, most);
  line.add("--row-bytes", chosen.row_bytes, "size of a row").whole_number(1, most);
  line.add("--rows", chosen.rows, "rows of a block").whole_number(1, most);
  line.add("--rounds", chosen.rounds, "round trips").whole_number(1, most);
  line.add("--blocks", chosen.blocks, "blocks of large messages or rows").whole_number(1, most);
  line.add("--volume", chosen.volume, "bytes of a block of large messages").whole_number(1, most);
  line.add("--memory-ranks", chosen.memory_ranks, "sizes of the groups whose memory is compared")
      .whole_number(1, 4096);
  line.add("--parts", chosen.parts, "what to measure").one_of({"latency", "bandwidth", "rows"});
  line.flag("--memory", memory_only, "instead: memory per peer");
  line.add("--bootstrap", chosen.bootstrap,
           "how ranks of a launcher meet: on this host, or over the network")
      .one_of({"auto", "host", "tcp"});
  line.add("--json", chosen.json, "also write the results there");
  if (const auto status = line.parse(argc, argv, [&] { check_together(chosen); })) return *status;
  try {
    if (peerbus::environment_bootstrap::launched()) {
      const auto boot = bench::join_group(chosen.bootstrap);
      return run(*boot, chosen);
    }
    if (memory_only) {
      show_memory(chosen);
      return 0;
    }
    return peerbus::run_local(2, [&](peerbus::bootstrap& boot) { return run(boot, chosen); },
                              {.pin = peerbus::usable_cores() >= 2});
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "verbs_put: %s\n", problem.what());
    return 1;
  }
}
