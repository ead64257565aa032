// SPDX-License-Identifier: MIT
#include "peers/mpi_ep/arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "examples/support/command_line.hpp"

namespace mpi_ep {

std::variant<arguments, int> parse(int argc, char** argv, bool first_rank) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  arguments chosen;
  ep_bench::options& payload = chosen.payload;
  std::string sent = "expert";
  std::string own = "stay";
  programs::command_line line{
      "mpi_ep",
      "MoE dispatch and combine over MPI, measured as ep_bench measures peerbus's.\n"
      "Start it with mpirun; docs/peers.md says with what settings."};
  std::size_t tokens = payload.tokens;
  line.add("--tokens", tokens, "tokens of each rank").whole_number(1, most);
  line.add("--hidden", payload.hidden, "channels of a token, a multiple of 16")
      .whole_number(16, most);
  line.add("--top-k", payload.top_k, "experts of each token").whole_number(1, 32);
  line.add("--experts", payload.experts, "experts of the group").whole_number(1, 1 << 20);
  line.add("--codec", payload.codec, "how rows travel").one_of({"bf16", "int8"});
  line.add("--rows", sent, "one per (token, expert) or one per (token, rank)")
      .one_of({"expert", "rank"});
  line.add("--own-rows", own, "of a rank to itself: left where they are, or sent like others")
      .one_of({"stay", "travel"});
  line.add("--iters", payload.iterations, "timed iterations").whole_number(1, 10'000'000);
  line.add("--warmup", payload.warmup, "iterations before them").whole_number(0, 10'000'000);
  line.add("--seed", payload.seed, "of tokens, weights and routing");
  line.add("--json", payload.json, "also write the results there");
  const auto check = [&] {
    payload.set_tokens(tokens);
    if (payload.top_k > payload.experts)
      programs::refuse("--top-k", std::to_string(payload.top_k) +
                                      " given, expected at most the number of experts, " +
                                      std::to_string(payload.experts));
    if (payload.hidden % 16 != 0)
      programs::refuse("--hidden",
                       std::to_string(payload.hidden) + " given, expected a multiple of 16");
  };
  if (const auto status = line.parse(argc, argv, check, first_rank)) return *status;
  chosen.sent = sent == "rank" ? rows::per_rank : rows::per_expert;
  chosen.own_rows_travel = own == "travel";
  return chosen;
}

}  // namespace mpi_ep
