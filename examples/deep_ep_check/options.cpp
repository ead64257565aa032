// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>

#include "examples/support/command_line.hpp"

namespace deep_ep_check {
namespace {

namespace deep_ep = peerbus::deep_ep;
using peerbus::concat;

/// Returns the enumerator in `all` with the given `name`.
/// Refuses other names, with a list of the possible ones.
template <class Enumerators>
auto named(const std::string& option, const std::string& name, const Enumerators& all) {
  std::string names;
  for (const auto each : all) {
    if (to_string(each) == name) return each;
    names += (names.empty() ? "" : ", ") + std::string{to_string(each)};
  }
  programs::refuse(option, "'" + name + "' given, expected one of " + names);
}

constexpr deep_ep::element_type types[] = {
    deep_ep::element_type::bf16, deep_ep::element_type::fp8_e4m3, deep_ep::element_type::other};
constexpr deep_ep::comm_algorithm algorithms[] = {
    deep_ep::comm_algorithm::automatic, deep_ep::comm_algorithm::fullmesh_v1,
    deep_ep::comm_algorithm::fullmesh_v2, deep_ep::comm_algorithm::fullmesh,
    deep_ep::comm_algorithm::hierarchy};
constexpr auto platforms = deep_ep::all_profiles;
constexpr call_mode modes[] = {call_mode::low_latency, call_mode::normal, call_mode::ep,
                               call_mode::a2e};

// Larger than any real configuration, and small enough that every number of bytes fits 64 bits.
constexpr std::uint64_t most_ranks = 1 << 16;
constexpr std::uint64_t most_experts = 1 << 16;
constexpr std::uint64_t most_tokens = 1 << 20;
constexpr std::uint64_t most_hidden = 1 << 17;

constexpr const char* deep_ep_group = "Options of DeepEP's modes";
constexpr const char* low_latency_group = "Options of the low-latency mode";
constexpr const char* buffer_group = "The Buffer of the low-latency and the normal mode";
constexpr const char* normal_group = "Options of the normal mode";
constexpr const char* normal_and_ep_group = "Options of the normal mode and of EPBuffer";
constexpr const char* ep_group = "Options of version 2.5's EPBuffer";
constexpr const char* a2e_group = "Options of the mode a2e";

/// Returns whether calls of `mode` have the options of `group`.
constexpr bool has_group(call_mode mode, std::string_view group) {
  if (group == a2e_group) return mode == call_mode::a2e;
  if (group == deep_ep_group) return mode != call_mode::a2e;
  if (group == low_latency_group) return mode == call_mode::low_latency;
  if (group == buffer_group) return mode == call_mode::low_latency || mode == call_mode::normal;
  if (group == normal_group) return mode == call_mode::normal;
  if (group == normal_and_ep_group) return mode == call_mode::normal || mode == call_mode::ep;
  if (group == ep_group) return mode == call_mode::ep;
  return true;
}

/// Texts of the command line that are converted to other values after parsing.
struct words {
  std::string mode = "low-latency";
  std::string dtype = "bf16";
  std::string algorithm = "automatic";
  std::vector<std::string> profiles;
  bool no_multiple_reduction = false;
};

void add_sizes(programs::command_line& line, options& chosen, words& texts) {
  deep_ep::call& c = chosen.call;
  line.add("--ranks", c.ranks, "Ranks of the group; in mode a2e those of attention and of experts")
      .whole_number(1, most_ranks)
      .required();
  line.add("--tokens", c.tokens, "Tokens that a rank dispatches at once")
      .whole_number(0, most_tokens)
      .required();
  line.add("--hidden", c.hidden, "Channels of a token").whole_number(1, most_hidden).required();
  line.add("--top-k", c.top_k, "Experts per token; 0 in normal mode: without topk_idx")
      .whole_number(0, most_experts)
      .required();
  line.add(
      "--mode", texts.mode,
      "low-latency, normal, ep (version 2.5's EPBuffer) or a2e (CANN's aclnnA2e and aclnnE2a)");
  line.add("--dtype", texts.dtype, "Type of dispatch's x: bf16, fp8_e4m3 or other");
  line.add("--target,--profile", texts.profiles,
           "unrestricted, deepep_v1, ascend_a2, ascend_a3, deepep_v2_5 or ascend_950; may be "
           "repeated (default: all, as a report)");
  line.flag("--json", chosen.wants_json, "Print JSON");

  line.group(deep_ep_group);
  line.add("--experts", c.experts, "Experts of the whole group").whole_number(1, most_experts);
  line.add("--ranks-per-node", c.ranks_per_node, "Default: 8; of no matter on ascend_a3")
      .whole_number(1, most_ranks);
  line.add("--max-tokens", c.max_tokens,
           "num_max_dispatch_tokens_per_rank, or num_max_tokens_per_rank of EPBuffer (default: "
           "--tokens); not in normal mode")
      .whole_number(1, most_tokens);
  line.flag("--dropped", c.dropped, "topk_idx has entries of -1");
  line.flag("--narrow-topk-idx", c.narrow_topk_idx, "topk_idx is not int64");
  line.flag("--gaps-in-x", c.gaps_in_x, "Combine's x is not contiguous");
  line.flag("--async-finish", c.async_finish);
  line.add("--in-flight", chosen.in_flight,
           "For peerbus's memory: batches between dispatch and combine at once")
      .whole_number(1, peerbus::moe::max_in_flight);
}

void add_options_of_a2e(programs::command_line& line, peerbus::cann::apart_call& c) {
  line.group(a2e_group);
  line.add("--expert-ranks", c.expert_rank_size, "expertRankSize: how many of --ranks have experts")
      .whole_number(1, most_ranks);
  line.flag("--compute-gate", c.compute_gate, "computeGate is 1: ids and scales travel");
  line.add("--aiv-num", c.aiv_num, "aivNum (default: as few as work)").whole_number(1, 1 << 10);
}

void add_options_of_modes(programs::command_line& line, deep_ep::call& c, words& texts) {
  const auto number = [&](const char* name, std::size_t& value) {
    line.add(name, value).whole_number(0, 1 << 30);
  };
  line.group(low_latency_group);
  line.flag("--use-fp8", c.use_fp8);
  line.flag("--round-scale", c.round_scale);
  line.flag("--use-ue8m0", c.use_ue8m0);
  line.flag("--topk-weights", c.weights_given, "Low-latency dispatch is given topk_weights");
  line.flag("--use-logfmt", c.use_logfmt);
  line.flag("--return-recv-hook", c.return_recv_hook);
  line.flag("--zero-copy", c.zero_copy);
  line.flag("--out", c.out_given);
  line.flag("--statistics", c.cumulative_statistics_given);
  line.flag("--wait-statistics", c.wait_statistics_given);
  line.add("--comm-alg", texts.algorithm,
           "automatic, fullmesh_v1 or _v2 (A3), fullmesh or hierarchy (A2)");

  line.group(buffer_group);
  line.flag("--no-low-latency-mode", c.no_low_latency_mode, "It is made without low_latency_mode");
  line.add("--num-rdma-bytes", c.num_rdma_bytes, "Default: as many as it needs")
      .whole_number(0, std::uint64_t{1} << 50);

  line.group(normal_group);
  line.add("--num-nvl-bytes", c.num_nvl_bytes, "Of the Buffer (default: as many as it needs)")
      .whole_number(0, std::uint64_t{1} << 50);
  line.flag("--config", c.config_given);
  number("--num-worst-tokens", c.num_worst_tokens);

  line.group(normal_and_ep_group);
  line.flag("--cached-handle", c.cached_handle);
  line.flag("--bias", c.bias_given);
  line.flag("--previous-event", c.previous_event_given);
  line.flag("--allocate-on-comm-stream", c.allocate_on_comm_stream);
  number("--expert-alignment", c.expert_alignment);

  line.group(ep_group);
  line.flag("--do-expand", c.do_expand);
  line.flag("--do-handle-copy", c.do_handle_copy);
  line.flag("--no-multiple-reduction", texts.no_multiple_reduction);
  line.flag("--sl-idx", c.sl_idx_given);
  number("--num-sms", c.num_sms);
  number("--num-qps", c.num_qps);
}

void add_environment(programs::command_line& line, deep_ep::target_environment& set) {
  line.group("Variables that are set already (default: as each platform needs them)");
  line.add("--hccl-buffsize", set.hccl_buffsize_mb, "HCCL_BUFFSIZE, in MB")
      .whole_number(1, 1 << 30);
  line.add("--qp-depth", set.nvshmem_qp_depth, "NVSHMEM_QP_DEPTH").whole_number(1, 1 << 30);
}

/// Refuses options of other modes.
void check_mode(const programs::command_line& line, call_mode chosen) {
  for (const auto& [name, group] : line.given()) {
    if (has_group(chosen, group)) continue;
    std::string expected;
    for (const call_mode mode : modes)
      if (has_group(mode, group))
        expected += (expected.empty() ? "" : " or ") + std::string{to_string(mode)};
    programs::refuse(name, "given with --mode " + std::string{to_string(chosen)} +
                               ", expected --mode " + expected);
  }
}

/// Completes the call of the mode a2e from the options that it shares with the others.
void finish_a2e(options& chosen) {
  const deep_ep::call& c = chosen.call;
  peerbus::cann::apart_call& apart = chosen.apart;
  if (apart.expert_rank_size == 0 || apart.expert_rank_size >= c.ranks)
    programs::refuse("--expert-ranks",
                     concat(apart.expert_rank_size, " of ", c.ranks,
                            " ranks, expected at least 1, and less than --ranks"));
  apart.attention_rank_size = c.ranks - apart.expert_rank_size;
  apart.tokens = c.tokens;
  apart.hidden_size = c.hidden;
  apart.topk = c.top_k;
  apart.dtype = c.dtype;
  apart.expert_ids_given = apart.scales_given = apart.compute_gate;
  if (apart.aiv_num == 0) apart.aiv_num = apart.compute_gate ? 3 : 1;
  apart.hccl_buffsize_mb = c.environment.hccl_buffsize_mb;
}

void finish(const programs::command_line& line, const words& texts, options& chosen) {
  chosen.mode = named("--mode", texts.mode, modes);
  check_mode(line, chosen.mode);
  deep_ep::call& c = chosen.call;
  c.dtype = named("--dtype", texts.dtype, types);
  c.algorithm = named("--comm-alg", texts.algorithm, algorithms);
  if (chosen.mode == call_mode::normal && c.max_tokens != 0)
    programs::refuse("--max-tokens", "given with --mode normal, expected --mode low-latency or ep");
  const bool has_most = chosen.mode == call_mode::low_latency || chosen.mode == call_mode::ep;
  if (has_most && c.max_tokens == 0) c.max_tokens = c.tokens;
  c.allow_multiple_reduction = !texts.no_multiple_reduction;
  for (const std::string& name : texts.profiles) {
    const deep_ep::profile platform = named("--target", name, platforms);
    if (std::ranges::find(chosen.profiles, platform) == chosen.profiles.end())
      chosen.profiles.push_back(platform);
  }
  if (chosen.mode == call_mode::a2e)
    finish_a2e(chosen);
  else if (c.experts == 0)
    programs::refuse("--experts", concat("missing, expected with --mode ", to_string(chosen.mode)));
  chosen.has_named_profiles = !chosen.profiles.empty();
  if (!chosen.has_named_profiles)
    chosen.profiles.assign(std::begin(platforms), std::end(platforms));
}

}  // namespace

options parse(int argc, char** argv) {
  options chosen;
  words texts;
  programs::command_line line{
      "deep_ep_check",
      "Says what platforms with DeepEP's API would refuse of a configuration, what memory it "
      "takes\n"
      "there and in peerbus, and which environment variables it needs. Runs nothing.\n\n"
      "Exit status: 0; 1 if a platform named by --target refuses; 2 for wrong arguments."};
  add_sizes(line, chosen, texts);
  add_options_of_modes(line, chosen.call, texts);
  add_options_of_a2e(line, chosen.apart);
  add_environment(line, chosen.call.environment);
  if (const auto status = line.parse(argc, argv, [&] { finish(line, texts, chosen); }))
    std::exit(*status);
  chosen.arguments.assign(argv + 1, argv + argc);
  return chosen;
}

}  // namespace deep_ep_check
