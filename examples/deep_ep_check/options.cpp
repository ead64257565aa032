// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <CLI/CLI.hpp>

#include <peerbus/moe/config.hpp>

#include "support/whole_number.hpp"

namespace deep_ep_check {
namespace {

using examples::whole_number;
namespace deep_ep = peerbus::deep_ep;

/// Returns the enumerator in `all` with the given `name`.
/// Throws: `CLI::ValidationError` that lists the possible names.
template <class Enumerators>
auto named(const std::string& option, const std::string& name, const Enumerators& all) {
  std::string names;
  for (const auto each : all) {
    if (to_string(each) == name) return each;
    names += (names.empty() ? "" : ", ") + std::string{to_string(each)};
  }
  throw CLI::ValidationError{option, "'" + name + "' given, expected one of " + names};
}

constexpr deep_ep::element_type types[] = {
    deep_ep::element_type::bf16, deep_ep::element_type::fp8_e4m3, deep_ep::element_type::other};
constexpr deep_ep::comm_algorithm algorithms[] = {
    deep_ep::comm_algorithm::automatic, deep_ep::comm_algorithm::fullmesh_v1,
    deep_ep::comm_algorithm::fullmesh_v2, deep_ep::comm_algorithm::fullmesh,
    deep_ep::comm_algorithm::hierarchy};
constexpr auto platforms = deep_ep::all_profiles;
constexpr call_mode modes[] = {call_mode::low_latency, call_mode::normal, call_mode::ep};

// Larger than any real configuration, and small enough that every number of bytes fits 64 bits.
constexpr std::uint64_t most_ranks = 1 << 16;
constexpr std::uint64_t most_experts = 1 << 16;
constexpr std::uint64_t most_tokens = 1 << 20;
constexpr std::uint64_t most_hidden = 1 << 17;

constexpr const char* low_latency_group = "Options of the low-latency mode";
constexpr const char* normal_group = "Options of the normal mode";
constexpr const char* normal_and_ep_group = "Options of the normal mode and of EPBuffer";
constexpr const char* ep_group = "Options of version 2.5's EPBuffer";

/// Returns whether calls of `mode` have the options of `group`.
constexpr bool has_group(call_mode mode, std::string_view group) {
  if (group == low_latency_group) return mode == call_mode::low_latency;
  if (group == normal_group) return mode == call_mode::normal;
  if (group == normal_and_ep_group) return mode != call_mode::low_latency;
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

void add_sizes(CLI::App& app, options& chosen, words& texts) {
  deep_ep::call& c = chosen.call;
  const auto number = [&](const char* name, std::size_t& value, std::uint64_t least,
                          std::uint64_t most, const char* help) {
    return app.add_option(name, value, help)->check(whole_number(least, most));
  };
  number("--ranks", c.ranks, 1, most_ranks, "Ranks of the group")->required();
  number("--ranks-per-node", c.ranks_per_node, 1, most_ranks,
         "Default: 8; of no matter on ascend_a3");
  number("--tokens", c.tokens, 0, most_tokens, "Tokens that a rank dispatches at once")->required();
  number("--max-tokens", c.max_tokens, 1, most_tokens,
         "num_max_dispatch_tokens_per_rank, or num_max_tokens_per_rank of EPBuffer (default: "
         "--tokens); not in normal mode");
  number("--hidden", c.hidden, 1, most_hidden, "Channels of a token")->required();
  number("--top-k", c.top_k, 1, most_experts, "Experts per token")->required();
  number("--experts", c.experts, 1, most_experts, "Experts of the whole group")->required();
  app.add_option("--mode", texts.mode, "low-latency, normal or ep (version 2.5's EPBuffer)")
      ->capture_default_str();
  app.add_option("--dtype", texts.dtype, "Type of dispatch's x: bf16, fp8_e4m3 or other")
      ->capture_default_str();
  app.add_flag("--dropped", c.dropped, "topk_idx has entries of -1");
  app.add_flag("--async-finish", c.async_finish);
  app.add_option("--in-flight", chosen.in_flight,
                 "For peerbus's memory: batches between dispatch and combine at once")
      ->capture_default_str()
      ->check(whole_number(1, peerbus::moe::max_in_flight));
}

void add_options_of_modes(CLI::App& app, options& chosen, words& texts) {
  deep_ep::call& c = chosen.call;
  const auto low_latency = [&](const char* name, bool& value) {
    app.add_flag(name, value)->group(low_latency_group);
  };
  low_latency("--use-fp8", c.use_fp8);
  low_latency("--round-scale", c.round_scale);
  low_latency("--use-ue8m0", c.use_ue8m0);
  low_latency("--use-logfmt", c.use_logfmt);
  low_latency("--return-recv-hook", c.return_recv_hook);
  low_latency("--zero-copy", c.zero_copy);
  low_latency("--out", c.out_given);
  low_latency("--statistics", c.cumulative_statistics_given);
  low_latency("--wait-statistics", c.wait_statistics_given);
  app.add_option("--comm-alg", texts.algorithm,
                 "automatic, fullmesh_v1 or _v2 (A3), fullmesh or hierarchy (A2)")
      ->capture_default_str()
      ->group(low_latency_group);

  const auto number = [&](const char* name, std::size_t& value, const char* group) {
    app.add_option(name, value)->check(whole_number(0, 1 << 30))->group(group);
  };
  app.add_flag("--config", c.config_given)->group(normal_group);
  number("--num-worst-tokens", c.num_worst_tokens, normal_group);

  const auto normal_and_ep = [&](const char* name, bool& value) {
    app.add_flag(name, value)->group(normal_and_ep_group);
  };
  normal_and_ep("--cached-handle", c.cached_handle);
  normal_and_ep("--bias", c.bias_given);
  normal_and_ep("--previous-event", c.previous_event_given);
  normal_and_ep("--allocate-on-comm-stream", c.allocate_on_comm_stream);
  number("--expert-alignment", c.expert_alignment, normal_and_ep_group);

  const auto ep = [&](const char* name, bool& value) {
    return app.add_flag(name, value)->group(ep_group);
  };
  ep("--do-expand", c.do_expand);
  ep("--do-handle-copy", c.do_handle_copy);
  ep("--no-multiple-reduction", texts.no_multiple_reduction);
  ep("--narrow-topk-idx", c.narrow_topk_idx)->description("topk_idx is not int64");
  ep("--sl-idx", c.sl_idx_given);
  number("--num-sms", c.num_sms, ep_group);
  number("--num-qps", c.num_qps, ep_group);
}

void add_environment(CLI::App& app, deep_ep::target_environment& set) {
  const auto number = [&](const char* name, std::size_t& value, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_number(1, 1 << 30))
        ->group("Variables that are set already (default: as each platform needs them)");
  };
  number("--hccl-buffsize", set.hccl_buffsize_mb, "HCCL_BUFFSIZE, in MB");
  number("--qp-depth", set.nvshmem_qp_depth, "NVSHMEM_QP_DEPTH");
}

/// Checks that no option of another mode was given.
/// Throws: `CLI::ValidationError` for an option of another mode.
void check_mode(const CLI::App& app, call_mode chosen) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || has_group(chosen, option->get_group())) continue;
    std::string expected;
    for (const call_mode mode : modes)
      if (has_group(mode, option->get_group()))
        expected += (expected.empty() ? "" : " or ") + std::string{to_string(mode)};
    throw CLI::ValidationError{
        option->get_name(),
        "given with --mode " + std::string{to_string(chosen)} + ", expected --mode " + expected};
  }
}

void finish(const CLI::App& app, const words& texts, options& chosen) {
  chosen.mode = named("--mode", texts.mode, modes);
  check_mode(app, chosen.mode);
  deep_ep::call& c = chosen.call;
  c.dtype = named("--dtype", texts.dtype, types);
  c.algorithm = named("--comm-alg", texts.algorithm, algorithms);
  if (chosen.mode == call_mode::normal && c.max_tokens != 0)
    throw CLI::ValidationError{"--max-tokens",
                               "given with --mode normal, expected --mode low-latency or ep"};
  if (chosen.mode != call_mode::normal && c.max_tokens == 0) c.max_tokens = c.tokens;
  c.allow_multiple_reduction = !texts.no_multiple_reduction;
  for (const std::string& name : texts.profiles) {
    const deep_ep::profile platform = named("--profile", name, platforms);
    if (std::ranges::find(chosen.profiles, platform) == chosen.profiles.end())
      chosen.profiles.push_back(platform);
  }
  chosen.has_named_profiles = !chosen.profiles.empty();
  if (!chosen.has_named_profiles)
    chosen.profiles.assign(std::begin(platforms), std::end(platforms));
}

}  // namespace

options parse(int argc, char** argv) {
  options chosen;
  words texts;
  CLI::App app{
      "Says what platforms with DeepEP's API would refuse of a configuration, what memory it "
      "takes\n"
      "there and in peerbus, and which environment variables it needs. Runs nothing.\n\n"
      "Exit status: 0; 1 if a platform named by --profile refuses; 2 for wrong arguments.",
      "deep_ep_check"};
  add_sizes(app, chosen, texts);
  add_options_of_modes(app, chosen, texts);
  add_environment(app, chosen.call.environment);
  app.add_option("--profile", texts.profiles,
                 "unrestricted, deepep_v1, ascend_a2, ascend_a3, deepep_v2_5 or ascend_950; may be "
                 "repeated (default: all, as a report)")
      ->allow_extra_args(false);
  app.add_flag("--json", chosen.wants_json, "Print JSON");
  try {
    app.parse(argc, argv);
    finish(app, texts, chosen);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e) == 0 ? 0 : 2);
  }
  chosen.arguments.assign(argv + 1, argv + argc);
  return chosen;
}

}  // namespace deep_ep_check
