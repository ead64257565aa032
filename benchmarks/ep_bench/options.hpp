// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/relay.hpp>

#include "ep_bench/routing_pattern.hpp"
#include "support/network_options.hpp"
#include "support/noise.hpp"

namespace ep_bench {

/// What comes between the operations that are timed, which says what the caches hold.
enum class between {
  nothing,  ///< one operation follows the other
  expert,   ///< each row is read once, and each output written
  weights   ///< that, and before each operation memory of its own is read, as weights are
};

/// What the command line asks for, checked.
struct options : bench::network_options {
  std::string transport = "ub";
  peerbus::moe::relay relay = peerbus::moe::relay::never;  ///< of planes
  /// The group of each rank, if rows are relayed among groups: [ranks]; empty if they are not.
  std::vector<std::uint32_t> relayed_among;
  std::string bootstrap = "auto";  ///< of ranks that a launcher has started
  std::size_t ranks = 2;
  bool ranks_given = false;
  /// Per rank: ranks take them in turn.
  std::vector<std::size_t> tokens_of_ranks{128};
  std::size_t tokens = 128;  ///< the most of a rank
  std::size_t hidden = 7168;
  std::size_t top_k = 8;
  std::size_t experts = 256;
  std::string codec = "int8";
  std::string layout = "compact";
  /// Returns the tokens of `rank`.
  [[nodiscard]] std::size_t tokens_of(std::size_t rank) const noexcept {
    return tokens_of_ranks[rank % tokens_of_ranks.size()];
  }
  /// Returns the tokens of all ranks below `rank`.
  [[nodiscard]] std::size_t tokens_before(std::size_t rank) const noexcept {
    std::size_t before = 0;
    for (std::size_t r = 0; r < rank; ++r) before += tokens_of(r);
    return before;
  }
  /// Lets every rank have `count` tokens.
  void set_tokens(std::size_t count) {
    tokens_of_ranks = {count};
    tokens = count;
  }
  [[nodiscard]] bool by_rank() const noexcept {
    return layout == "rank_major" || layout == "slots";
  }
  /// Whether ranks may be on several hosts.
  [[nodiscard]] bool has_network() const noexcept {
    return transport == "verbs" || transport == "fabric" || transport == "planes";
  }
  [[nodiscard]] bool in_slots() const noexcept {
    return layout == "slots" || layout == "expert_slots" ||
           (layout == "automatic" && protocol == peerbus::moe::dispatch_protocol::one_phase);
  }
  peerbus::moe::dispatch_protocol protocol = peerbus::moe::dispatch_protocol::automatic;
  peerbus::cost_table costs;  ///< empty: those that the library assumes
  std::string costs_to;       ///< the file for what rank 0 finds out about stores; empty: none
  std::string outputs = "expert";
  std::string stores = "automatic";
  ep_bench::between between = between::weights;
  std::size_t weights_mib = 64;  ///< of each core; ranks that share one divide them
  std::size_t lanes = 1;         ///< threads of a rank that carry one operation together
  std::string routing = "uniform";
  routing_pattern pattern;  ///< what `routing` says
  std::string balance = "none";
  bool balance_given = false;
  std::size_t spare = 1;          ///< places for replicas that each rank has, if there is balance
  std::size_t replan_after = 20;  ///< iterations from one plan of `incremental` to the next
  std::size_t moves = 8;          ///< the most experts that move by one of its plans
  /// The expert of each place, rank by rank equally many; empty: each expert once, dealt out.
  std::vector<std::uint32_t> physical_to_logical;
  double row_us = 0;  ///< of work of its rank for each row of an expert
  std::size_t iterations = 200;
  std::size_t warmup = 20;
  std::uint64_t seed = 1;
  double seconds = 0;  ///< of timing at most, roughly; 0: as long as the iterations take
  std::string json;    ///< empty: none
  std::string trace;   ///< the file that takes the events of all ranks; empty: none
  bench::noise_options noise;
  std::optional<bool> pin;  ///< empty: if every rank can have a core of its own

  bool topology = false;
  bool ablation = false;

  std::string report;              ///< the page; empty: none
  std::vector<std::string> peers;  ///< results of other libraries for the report
  std::vector<std::size_t> report_tokens{1,   2,   4,   8,    16,   32,   64,
                                         128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::size_t> report_ranks{1, 2, 4, 8, 16, 32, 64};
  double report_seconds = 180;  ///< for the whole report, roughly

  /// Returns `stores` as `exchange_config::stream_from` has it.
  [[nodiscard]] std::optional<std::size_t> stream_from() const {
    if (stores == "automatic") return std::nullopt;
    return stores == "streaming" ? 0 : peerbus::moe::never_stream;
  }
};

inline constexpr int bad_command_line = 2;
/// The exit status where the machine forbids what is to be measured.
inline constexpr int cannot_measure = 3;

/// Returns: the options, or the exit status after having printed the help (0) or what is wrong
/// with which option and what was expected (`bad_command_line`).
[[nodiscard]] std::variant<options, int> parse(int argc, char** argv);

/// The same words for what is found wrong only after the start.
void complain(const std::string& option, const std::string& text);

}  // namespace ep_bench
