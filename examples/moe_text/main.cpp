// SPDX-License-Identifier: MIT
// Sends real text through a mixture of experts that is spread over processes, and compares the
// result with a plain computation. worker.hpp shows the use of the library.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/peerbus.hpp>
#include <peerbus/transport/any_transport.hpp>
#ifdef MOE_TEXT_VERBS
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/transport/verbs.hpp>
#endif

#include "model.hpp"
#include "options.hpp"
#include "report.hpp"
#include "statistics.hpp"
#include "text.hpp"
#include "worker.hpp"

namespace moe_text {
namespace {

template <class Codec>
int work(peerbus::communicator<peerbus::any_transport>& comm, const model& m, const options& given,
         const std::vector<std::string>& words) {
  // Rank 0 collects the results in this window: first the statistics of each rank, then what each
  // got of each expert. A rank writes its results to its own part of the window. From there it puts
  // them to the same offsets of rank 0's part.
  const std::size_t ranks = comm.size();
  const std::size_t rows_offset = ranks * sizeof(rank_statistics);
  auto board = comm.make_window(rows_offset + ranks * given.experts * sizeof(std::uint64_t), 0);
  const auto statistics = board.local<rank_statistics>().first(ranks);
  const auto rows = board.local<std::uint64_t>().subspan(rows_offset / sizeof(std::uint64_t),
                                                         ranks * given.experts);

  worker<Codec> own_worker{comm, m, given, words};
  own_worker.work();

  const std::size_t rank = comm.rank().index();
  const std::size_t first = rank * given.experts;
  statistics[rank] = own_worker.statistics();
  std::ranges::copy(own_worker.rows_of_expert(), rows.subspan(first).begin());
  const peerbus::rank_id reporter{0};
  if (comm.rank() != reporter) {
    peerbus::check(board.put(reporter, rank * sizeof(rank_statistics), statistics.subspan(rank, 1)),
                   "sending the statistics");
    peerbus::check(board.put(reporter, rows_offset + first * sizeof(std::uint64_t),
                             rows.subspan(first, given.experts)),
                   "sending the rows per expert");
  }
  comm.barrier();
  if (comm.rank() != reporter) return 0;
  own_worker.load().print();
  return print_report(given, words.size(), statistics, rows) ? 0 : 1;
}

/// Runs the program over `Transport`. If a launcher has started this process, its ranks meet
/// through `Launched`, which reads the launcher's variables.
template <class Transport, class Launched>
int run_over(options given) {
  const std::vector<std::string> words = split_words(read_text(given.file));
  const auto work_over = [&](peerbus::bootstrap& boot, const model& m) {
    peerbus::communicator comm{peerbus::any_transport{Transport{boot}}};
    return given.codec == wire_codec::int8
               ? work<peerbus::codec::int8_per_token>(comm, m, given, words)
               : work<peerbus::codec::bf16>(comm, m, given, words);
  };
  if (peerbus::environment_bootstrap::launched()) {
    auto boot = Launched::from_environment();
    given.ranks = boot.size();
    if (boot.rank().index() == 0) print_introduction(given, words);
    return work_over(boot, {given.experts, given.hidden});
  }
  print_introduction(given, words);
  // The ranks share the model, because they are forks of this process.
  const model m{given.experts, given.hidden};
  return peerbus::run_local(given.ranks,
                            [&](peerbus::bootstrap& boot) { return work_over(boot, m); });
}

int run(const options& given) {
  if (given.bus == transport::ub)
    return run_over<peerbus::unified_bus, peerbus::environment_bootstrap>(given);
#ifdef MOE_TEXT_VERBS
  return run_over<peerbus::verbs, peerbus::tcp_bootstrap>(given);
#else
  throw std::invalid_argument{
      "--transport was given 'verbs', but this moe_text was built without libibverbs or "
      "OpenSSL (Debian: libibverbs-dev libssl-dev), expected ub"};
#endif
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
