// SPDX-License-Identifier: MIT
//
// Measures the costs from which exchanges in automatic layouts choose their protocol, and writes
// them into a file. `moe_costs --help` lists the options; docs/performance.md has the formula.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "examples/support/command_line.hpp"
#include "moe_costs/fit.hpp"
#include "moe_costs/measure.hpp"
#include "support/cost_file.hpp"
#include "support/join_group.hpp"
#include "support/network_command_line.hpp"
#include "support/network_options.hpp"
#include "support/networks.hpp"
#include "support/pin.hpp"
#include "support/put_only_bus.hpp"

namespace {

using moe_costs::point;

struct options : bench::network_options {
  std::string transport = "ub";
  std::vector<std::size_t> ranks;
  std::vector<std::size_t> tokens{1, 4, 16, 64};
  std::vector<std::size_t> hidden{1024, 7168};
  std::size_t top_k = 8;
  std::size_t experts = 256;
  std::size_t iterations = 300;
  std::string costs_to;

  [[nodiscard]] bool is_direct() const { return transport == "ub" || transport == "loopback"; }
  /// The name that costs use for the way of rows, as `path_name_of` has it.
  [[nodiscard]] std::string_view path() const {
    if (transport == "planes") return "mixed";
    return peerbus::moe::path_name_of(is_direct() ? peerbus::peer_reach::all
                                                  : peerbus::peer_reach::none);
  }
  /// The number of points of each group.
  [[nodiscard]] std::size_t points() const { return tokens.size() * hidden.size(); }
};

/// Points in memory that outlives the ranks, which may be forked processes.
class shared_points {
 public:
  explicit shared_points(std::size_t count) : bytes_{count * sizeof(point)} {
    static_assert(std::is_trivially_copyable_v<point>);
    page_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page_ == MAP_FAILED) throw std::bad_alloc{};
    for (std::size_t i = 0; i < count; ++i) new (static_cast<point*>(page_) + i) point{};
  }
  shared_points(const shared_points&) = delete;
  shared_points& operator=(const shared_points&) = delete;
  ~shared_points() { ::munmap(page_, bytes_); }

  [[nodiscard]] std::span<point> all() const noexcept {
    return {static_cast<point*>(page_), bytes_ / sizeof(point)};
  }

 private:
  std::size_t bytes_;
  void* page_;
};

/// Measures all sizes in one group. Rank 0 writes the points.
template <class Transport>
int run_over(const options& chosen, std::span<point> points, Transport bus) {
  peerbus::communicator<Transport> comm{std::move(bus)};
  std::size_t next = 0;
  for (const std::size_t hidden : chosen.hidden)
    for (const std::size_t tokens : chosen.tokens) {
      const point found = moe_costs::measure(
          comm, {tokens, hidden, chosen.top_k, chosen.experts, chosen.iterations});
      if (comm.rank().index() == 0) points[next] = found;
      ++next;
    }
  return 0;
}

/// Measures over what was chosen: `planes` must have several hosts.
template <class Far>
int run_over(const options& chosen, std::span<point> points, bench::hosts_over<Far> bus) {
  static_assert(peerbus::moe::path_name<bench::hosts_over<Far>> == "mixed");
  if (!bus.has_far())
    throw peerbus::error{peerbus::errc::invalid_argument,
                         "--groups: all ranks share one host, expected at least 2 groups"};
  return run_over<bench::hosts_over<Far>>(chosen, points, std::move(bus));
}

int run_rank(peerbus::bootstrap& boot, const options& chosen, std::span<point> points) {
  if (chosen.transport == "loopback")
    return run_over(chosen, points, peerbus::any_transport{peerbus::loopback{boot}});
  if (chosen.transport == "ub")
    return run_over(chosen, points, peerbus::any_transport{peerbus::unified_bus{boot}});
  if (chosen.transport == "puts")
    return run_over(chosen, points, peerbus::any_transport{bench::put_only_bus{boot}});
  return bench::over_network(boot, chosen, chosen.transport, "moe_costs",
                             [&](auto bus) { return run_over(chosen, points, std::move(bus)); });
}

int start(const options& chosen, std::size_t ranks, std::span<point> points) {
  const bool pin = ranks <= peerbus::usable_cores();
  if (chosen.transport == "loopback")
    return peerbus::run_threads(ranks, [&](peerbus::bootstrap& boot) {
      if (pin) bench::pin_this_thread(boot.rank().index());
      return run_rank(boot, chosen, points);
    });
  return peerbus::run_local(
      ranks, [&](peerbus::bootstrap& boot) { return run_rank(boot, chosen, points); },
      {.pin = pin});
}

/// Prints what was measured and what the costs make of it, and writes the costs.
void report(const options& chosen, std::span<const point> points) {
  peerbus::cost_table costs = moe_costs::fit(points, chosen.path());
  costs.set_machine(peerbus::this_machine());
  std::printf(
      "microseconds of a dispatch, median of the slowest rank; estimated from the costs "
      "below\n%6s%8s%10s%14s%12s%10s%11s  %s\n",
      "ranks", "rows", "row, KiB", "counts first", "one phase", "saved", "estimated", "chosen");
  for (const point& at : points) {
    const auto estimate =
        peerbus::moe::estimate_protocols(costs, {chosen.path(), at.ranks, at.rows, at.row_kib});
    const std::string name{describe(estimate.cheaper())};
    std::printf("%6zu%8.0f%10.2f%14.2f%12.2f%10.2f%11.2f  %s\n", at.ranks, at.rows, at.row_kib,
                at.counts_first_us, at.one_phase_us, at.counts_first_us - at.one_phase_us,
                estimate.counts_us - estimate.slots_us, name.c_str());
  }
  std::printf("\n%s", costs.text().c_str());
  if (chosen.costs_to.empty()) return;
  bench::merge_costs(chosen.costs_to, costs);
  std::printf("\nwritten to %s\n", chosen.costs_to.c_str());
}

int run_launched(const options& chosen) {
  const auto boot =
      bench::join_group(chosen.is_direct() || chosen.transport == "puts" ? "host" : "auto");
  std::vector<point> points(chosen.points());
  const int status = run_rank(*boot, chosen, points);
  if (status == 0 && boot->rank().index() == 0) report(chosen, points);
  return status;
}

int run_here(options chosen) {
  if (chosen.ranks.empty()) {
    chosen.ranks = {2};
    for (std::size_t ranks = 4; ranks <= peerbus::usable_cores() && ranks <= 64; ranks *= 2)
      chosen.ranks.push_back(ranks);
  }
  const shared_points points{chosen.points() * chosen.ranks.size()};
  std::span<point> left = points.all();
  for (const std::size_t ranks : chosen.ranks) {
    if (const int status = start(chosen, ranks, left.first(chosen.points())); status != 0)
      return status;
    left = left.subspan(chosen.points());
  }
  report(chosen, points.all());
  return 0;
}

/// Refuses the options that `transport` does not use, and completes those that it uses.
void check_network(options& chosen, const std::vector<std::string>& networks) {
  const bool planes = chosen.transport == "planes";
  if (!planes && std::find(networks.begin(), networks.end(), chosen.transport) == networks.end())
    return bench::refuse_network_options(chosen, chosen.transport);
  if (chosen.far.empty() && planes) chosen.far = networks.back();
  bench::refuse_options_of_others(chosen, chosen.transport);
}

std::optional<int> parse(int argc, char** argv, options& chosen) {
  programs::command_line line{
      "moe_costs",
      "Measures dispatches with counts first and with slots, in turns, and the costs from which "
      "exchanges in automatic layouts choose between them.\n"
      "Starts the ranks itself, or joins those of torchrun, mpirun or srun."};
  constexpr std::uint64_t most = 1 << 20;
  std::vector<std::string> transports{"ub", "loopback", "puts"};
  std::vector<std::string> networks;
#if PEERBUS_BENCH_FABRIC
  networks.emplace_back("fabric");
#endif
#if PEERBUS_BENCH_VERBS
  networks.emplace_back("verbs");
#endif
  if (!networks.empty()) {
    transports.insert(transports.end(), networks.begin(), networks.end());
    transports.emplace_back("planes");
  }
  line.add("--transport", chosen.transport,
           "ub; loopback: ranks are threads; puts: ub without its peer memory; fabric, verbs; "
           "planes: ub among the ranks of a host, --far between hosts")
      .one_of(transports);
  line.add("--device", chosen.device, "of verbs, or libfabric's domain [the first]");
  line.add("--provider", chosen.provider, "of fabric [tcp]");
  if (!networks.empty())
    line.add("--far", chosen.far,
             ("what connects hosts, for planes [" + networks.back() + "]").c_str())
        .one_of(networks);
  line.add("--groups", chosen.groups,
           "pretended hosts, for planes: consecutive ranks share one [the real hosts]")
      .whole_number(1, 1024);
  line.add("--ranks", chosen.ranks,
           "sizes of groups [2, 4, 8 and so on, as many as there are cores]; with a launcher: as "
           "many as it started")
      .whole_number(1, 1024);
  line.add("--tokens", chosen.tokens, "tokens of a rank").whole_number(1, most);
  line.add("--hidden", chosen.hidden, "channels of a token, multiples of 16").whole_number(1, most);
  line.add("--top-k", chosen.top_k).whole_number(1, 32);
  line.add("--experts", chosen.experts).whole_number(1, most);
  line.add("-n,--iters", chosen.iterations, "dispatches by each protocol for each size")
      .whole_number(1, most);
  line.add("--costs-to", chosen.costs_to, "file for the costs; other costs that it has stay there");
  return line.parse(argc, argv, [&] {
    check_network(chosen, networks);
    if (chosen.top_k > chosen.experts)
      programs::refuse("--top-k", std::to_string(chosen.top_k) +
                                      " given, expected at most --experts, " +
                                      std::to_string(chosen.experts));
  });
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  if (const auto status = parse(argc, argv, chosen)) return *status;
  try {
    return peerbus::environment_bootstrap::launched() ? run_launched(chosen) : run_here(chosen);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "moe_costs: %s\n", problem.what());
    return 1;
  }
}
