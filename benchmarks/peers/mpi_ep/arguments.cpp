// SPDX-License-Identifier: MIT
#include "peers/mpi_ep/arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace mpi_ep {

std::variant<arguments, int> parse(int argc, char** argv, bool first_rank) {
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  arguments chosen;
  ep_bench::options& payload = chosen.payload;
  std::string sent = "expert";
  std::string own = "stay";
  CLI::App app{
      "MoE dispatch and combine over MPI, measured as ep_bench measures peerbus's.\n"
      "Start it with mpirun; docs/peers.md says with what settings.",
      "mpi_ep"};
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--tokens", payload.tokens, "tokens of each rank")
      ->check(CLI::Range(std::size_t{1}, most));
  app.add_option("--hidden", payload.hidden, "channels of a token, a multiple of 16")
      ->check(CLI::Range(std::size_t{16}, most));
  app.add_option("--top-k", payload.top_k, "experts of each token")
      ->check(CLI::Range(std::size_t{1}, std::size_t{32}));
  app.add_option("--experts", payload.experts, "experts of the group")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20));
  app.add_option("--codec", payload.codec, "how rows travel")
      ->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--rows", sent, "one per (token, expert) or one per (token, rank)")
      ->check(CLI::IsMember({"expert", "rank"}));
  app.add_option("--own-rows", own, "of a rank to itself: left where they are, or sent like others")
      ->check(CLI::IsMember({"stay", "travel"}));
  app.add_option("--iters", payload.iterations, "timed iterations")
      ->check(CLI::Range(std::size_t{1}, std::size_t{10'000'000}));
  app.add_option("--warmup", payload.warmup, "iterations before them")
      ->check(CLI::Range(std::size_t{0}, std::size_t{10'000'000}));
  app.add_option("--seed", payload.seed, "of tokens, weights and routing");
  app.add_option("--json", payload.json, "also write the results there");

  try {
    app.parse(argc, argv);
    if (payload.top_k > payload.experts)
      throw CLI::ValidationError{"--top-k", std::to_string(payload.top_k) +
                                                " given, expected at most the number of experts, " +
                                                std::to_string(payload.experts)};
    if (payload.hidden % 16 != 0)
      throw CLI::ValidationError{
          "--hidden", std::to_string(payload.hidden) + " given, expected a multiple of 16"};
  } catch (const CLI::CallForHelp&) {
    if (first_rank) std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& found) {
    if (first_rank)
      std::cerr << "mpi_ep: " << found.what() << "\nmpi_ep --help lists the options.\n";
    return ep_bench::bad_command_line;
  }
  chosen.sent = sent == "rank" ? rows::per_rank : rows::per_expert;
  chosen.own_rows_travel = own == "travel";
  return chosen;
}

}  // namespace mpi_ep
