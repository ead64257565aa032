// SPDX-License-Identifier: MIT
// Real text through a mixture of experts that is spread over processes; what comes back is compared
// with a plain computation. worker.hpp shows the library at work.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <peerbus/peerbus.hpp>

#include "model.hpp"
#include "options.hpp"
#include "report.hpp"
#include "statistics.hpp"
#include "text.hpp"
#include "worker.hpp"

namespace moe_text {
namespace {

template <class Codec, class Transport>
int work(peerbus::communicator<Transport>& comm, const model& m, const options& given,
         const std::vector<std::string>& words) {
  // Rank 0 hears from everybody by this: first the ranks' statistics, then the experts' rows.
  const std::size_t ranks = comm.size();
  const std::size_t rows_at = ranks * sizeof(rank_statistics);
  auto board = comm.make_window(rows_at + given.experts * sizeof(std::uint64_t), 0);

  worker<Transport, Codec> mine{comm, m, given, words};
  mine.work();

  const peerbus::rank_id reporter{0};
  const rank_statistics statistics = mine.statistics();
  peerbus::check(board.put(reporter, comm.rank().index() * sizeof statistics,
                           std::span<const rank_statistics>{&statistics, 1}),
                 "sending the statistics");
  const peerbus::moe::expert_placement placement{given.experts, ranks};
  const std::size_t first = placement.first(comm.rank());
  peerbus::check(board.put(reporter, rows_at + first * sizeof(std::uint64_t),
                           mine.rows_of_expert().subspan(first, placement.count(comm.rank()))),
                 "sending the rows per expert");
  comm.barrier();
  if (comm.rank() != reporter) return 0;
  const auto rows =
      board.template local<std::uint64_t>().subspan(rows_at / sizeof(std::uint64_t), given.experts);
  const auto of_rank = board.template local<rank_statistics>().first(ranks);
  return print_report(given, words.size(), of_rank, rows) ? 0 : 1;
}

int run(const options& given) {
  const std::vector<std::string> words = split_words(read_text(given.file));
  print_introduction(given, words);
  const model m{given.experts,
                given.hidden};  // The ranks share it: they are forks of this process.
  return peerbus::run<peerbus::unified_bus>(given.ranks, [&](auto& comm) {
    return given.codec == wire_codec::int8
               ? work<peerbus::codec::int8_per_token>(comm, m, given, words)
               : work<peerbus::codec::bf16>(comm, m, given, words);
  });
}

}  // namespace
}  // namespace moe_text

int main(int argc, char** argv) {
  try {
    const auto given = moe_text::parse(argc, argv);
    return given ? moe_text::run(*given) : 0;
  } catch (const std::invalid_argument& bad) {
    std::fprintf(stderr, "moe_text: %s\n", bad.what());
    return 2;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "moe_text: %s\n", failure.what());
    return 1;
  }
}
