// SPDX-License-Identifier: MIT
//
// Dispatches at a fixed period beside a stream that would fill the link: how long they take alone
// and beside it, and what the stream keeps, with both in one class of traffic and with the stream
// in the bulk class, over `fabric` or `verbs`. `fabric_classes --help` lists the options.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/traffic_class.hpp>
#if PEERBUS_BENCH_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

#include "examples/support/command_line.hpp"
#include "fabric/fabric_classes/stream.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace {

using fabric_classes::stream;

struct options {
  std::size_t tokens = 8;
  std::size_t hidden = 7168;
  std::size_t experts = 256;
  std::size_t top_k = 8;
  double busy = 0.15;
  double seconds = 3;
  std::size_t rounds = 3;
  std::size_t chunk = std::size_t{1} << 20;
  std::size_t slots = 16;
  std::string transport = "fabric";
  std::string device;  ///< of verbs
  peerbus::fabric_options fabric;
  std::optional<std::size_t> bulk_slice;      ///< of either transport
  std::optional<std::size_t> bulk_in_flight;  ///< likewise
};

/// The dispatch that is measured.
template <peerbus::transport Transport>
class work {
 public:
  work(peerbus::communicator<Transport>& comm, const options& chosen)
      : moe_{comm,
             {.experts = chosen.experts,
              .hidden = chosen.hidden,
              .top_k = chosen.top_k,
              .max_tokens = chosen.tokens},
             peerbus::codec::int8_per_token{}},
        tokens_(chosen.tokens * chosen.hidden, peerbus::bf16{1.0F}),
        experts_(chosen.tokens * chosen.top_k),
        weights_(experts_.size(), 1.0F) {
    for (std::size_t i = 0; i < experts_.size(); ++i)  // As many to each rank.
      experts_[i] = static_cast<std::int32_t>((i * 37 + comm.rank().index()) % chosen.experts);
  }
  void dispatch() { static_cast<void>(moe_.dispatch(tokens_, {experts_, weights_})); }

 private:
  peerbus::moe::exchange<Transport, peerbus::codec::int8_per_token> moe_;
  std::vector<peerbus::bf16> tokens_;
  std::vector<std::int32_t> experts_;
  std::vector<float> weights_;
};

/// Returns `value` of rank 0 on both ranks. Collective.
template <peerbus::transport Transport, class Value>
Value of_first(peerbus::communicator<Transport>& comm, Value value) {
  peerbus::bootstrap::contribution own;
  own.bytes.resize(sizeof value);
  std::memcpy(own.bytes.data(), &value, sizeof value);
  const auto all =
      comm.bus().boot().allgather(std::move(own), comm.default_deadline(), "fabric_classes");
  std::memcpy(&value, all.front().bytes.data(), sizeof value);
  return value;
}
/// Returns, for each sample, that of the slower rank. Collective.
template <peerbus::transport Transport>
std::vector<double> slower(peerbus::communicator<Transport>& comm, std::vector<double> samples) {
  peerbus::bootstrap::contribution own;
  own.bytes.resize(samples.size() * sizeof(double));
  if (!samples.empty()) std::memcpy(own.bytes.data(), samples.data(), own.bytes.size());
  const auto all =
      comm.bus().boot().allgather(std::move(own), comm.default_deadline(), "fabric_classes");
  for (const auto& told : all)
    for (std::size_t i = 0; i < samples.size(); ++i) {
      double other = 0;
      std::memcpy(&other, told.bytes.data() + i * sizeof other, sizeof other);
      samples[i] = std::max(samples[i], other);
    }
  return samples;
}

struct phase {
  std::vector<double> dispatches;  ///< microseconds from when each was due, on the slower rank
  double rate = 0;                 ///< of the stream, in MB/s
};

/// Dispatches when they are due, if `beat` is not empty, and moves `flow` in between, if there is
/// one. Collective.
template <peerbus::transport Transport>
phase play(peerbus::communicator<Transport>& comm, work<Transport>& moe,
           std::optional<bench::clock::duration> beat, stream<Transport>* flow, double seconds) {
  comm.barrier();
  const auto head_start = std::chrono::milliseconds{2};
  const auto now = bench::clock::now().time_since_epoch().count();
  const bench::clock::time_point start{bench::clock::duration{of_first(comm, now)} +
                                       head_start};  // One clock, as on one machine.
  const auto end = start + std::chrono::duration_cast<bench::clock::duration>(
                               std::chrono::duration<double>{seconds});
  const std::size_t dispatches =
      beat ? std::max(static_cast<std::size_t>((end - start) / *beat), std::size_t{1})
           : std::size_t{0};
  phase result;
  const std::size_t before = flow != nullptr ? flow->bytes_seen() : 0;
  if (flow != nullptr) flow->turn(true);
  for (std::size_t next = 0;;) {
    const auto present = bench::clock::now();
    if (next < dispatches && present >= start + static_cast<long>(next) * *beat) {
      moe.dispatch();
      const auto due = start + static_cast<long>(next) * *beat;
      result.dispatches.push_back(bench::microseconds(bench::clock::now() - due));
      ++next;
      if (flow != nullptr) flow->step();  // Also where dispatches are late.
    } else if (present >= end && next == dispatches) {
      break;
    } else if (flow != nullptr) {
      flow->step();
    }
  }
  if (flow != nullptr) {
    result.rate = static_cast<double>(flow->bytes_seen() - before) /
                  bench::microseconds(bench::clock::now() - start);
    flow->turn(false);
    bool drained = false;
    while (!drained) {  // Both go on until rank 0 is drained.
      for (int i = 0; i < 100; ++i) flow->step();
      drained = of_first(comm, flow->is_drained());
    }
  }
  result.dispatches = slower(comm, std::move(result.dispatches));
  return result;
}

struct samples {
  std::vector<double> p50;
  std::vector<double> p99;
  std::vector<double> rate;
  void add(const phase& played) {
    if (!played.dispatches.empty()) {
      const auto found = bench::summarise(played.dispatches);
      p50.push_back(found.p50);
      p99.push_back(found.p99);
    }
    rate.push_back(played.rate);
  }
};

/// `network` says by what the transport sends, for people.
template <peerbus::transport Transport>
int run(Transport bus, const std::string& network, const options& chosen) {
  peerbus::communicator comm{std::move(bus)};
  const bool first = comm.rank().index() == 0;
  work<Transport> moe{comm, chosen};
  stream<Transport> one_class{comm, peerbus::traffic_class::latency, chosen.chunk, chosen.slots};

  std::vector<double> back_to_back;
  for (int i = 0; i < 300; ++i) {
    const auto start = bench::clock::now();
    moe.dispatch();
    if (i >= 100) back_to_back.push_back(bench::microseconds(bench::clock::now() - start));
  }
  const double period = of_first(comm, bench::median(back_to_back)) / chosen.busy;
  const auto beat = std::chrono::duration_cast<bench::clock::duration>(
      std::chrono::duration<double, std::micro>{period});
  if (first)
    std::printf(
        "fabric_classes  %s\n%zu tokens, hidden %zu, top-%zu of %zu; a dispatch every %.0f us, "
        "which is busy %.0f %% of the time when alone\nputs of %zu KiB in the stream; medians of "
        "%zu rounds of %.1f s\n\n",
        network.c_str(), chosen.tokens, chosen.hidden, chosen.top_k, chosen.experts, period,
        100 * chosen.busy, chosen.chunk >> 10, chosen.rounds, chosen.seconds);

  bool right = true;
  const auto report = [&](const char* name, stream<Transport>& flow) {
    samples alone;
    samples stream_alone;
    samples beside;
    for (std::size_t round = 0; round < chosen.rounds; ++round) {
      alone.add(play<Transport>(comm, moe, beat, nullptr, chosen.seconds));
      stream_alone.add(play(comm, moe, std::nullopt, &flow, chosen.seconds));
      beside.add(play(comm, moe, beat, &flow, chosen.seconds));
    }
    right = right && flow.is_right();
    if (!first) return;
    const auto line = [name](const char* what, const std::vector<double>& quiet,
                             const std::vector<double>& loaded) {
      const double own = bench::median(quiet);
      const double both = bench::median(loaded);
      std::printf("%-14s%-26s%12.1f%12.1f%10.2f\n", name, what, own, both, both / own);
    };
    line("dispatch p50, us", alone.p50, beside.p50);
    line("dispatch p99, us", alone.p99, beside.p99);
    line("stream, MB/s", stream_alone.rate, beside.rate);
  };
  if (first) std::printf("%-40s%12s%12s%10s\n", "", "alone", "beside", "ratio");
  report("one class", one_class);
  // Made now, so that it changes nothing above.
  stream<Transport> two_classes{comm, peerbus::traffic_class::bulk, chosen.chunk, chosen.slots};
  report("two classes", two_classes);
  if (!right)
    std::fprintf(stderr, "fabric_classes: rank %zu has a wrong chunk\n", comm.rank().index());
  return right ? 0 : 1;
}

/// The options of a transport, with what was chosen in place of its defaults.
template <class Options>
Options with_slices(Options with, const options& chosen) {
  with.bulk_slice = chosen.bulk_slice.value_or(with.bulk_slice);
  with.bulk_in_flight = chosen.bulk_in_flight.value_or(with.bulk_in_flight);
  return with;
}

int run_over(peerbus::bootstrap& boot, const options& chosen) {
#if PEERBUS_BENCH_VERBS
  if (chosen.transport == "verbs") {
    peerbus::verbs bus{boot, with_slices(peerbus::verbs_options{.device = chosen.device}, chosen)};
    const std::string network = bus.describe_port();
    return run(std::move(bus), network, chosen);
  }
#endif
  peerbus::fabric bus{boot, with_slices(chosen.fabric, chosen)};
  const std::string network = bus.describe_provider();
  return run(std::move(bus), network, chosen);
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  programs::command_line line{
      "fabric_classes", "Dispatches of two ranks over a network beside a stream of large puts."};
  constexpr std::uint64_t most = 1 << 30;
  line.add("--transport", chosen.transport, "fabric, or verbs where that is compiled in")
      .one_of({
          "fabric",
#if PEERBUS_BENCH_VERBS
          "verbs",
#endif
      });
  line.add("--device", chosen.device, "the device of verbs [the nearest]");
  line.add("--provider", chosen.fabric.provider, "libfabric's provider");
  line.add("--domain", chosen.fabric.domain, "its domain [the loopback interface]");
  line.add("--tokens", chosen.tokens, "tokens of a rank in a dispatch").whole_number(1, most);
  line.add("--hidden", chosen.hidden, "channels of a token").whole_number(1, most);
  line.add("--experts", chosen.experts, "experts in all").whole_number(1, most);
  line.add("--top-k", chosen.top_k, "experts of a token").whole_number(1, most);
  line.add("--busy", chosen.busy, "part of the time that dispatches take when alone")
      .number(0.001, 0.9);
  line.add("--seconds", chosen.seconds, "length of a measurement").number(0.01, 600);
  line.add("--rounds", chosen.rounds, "measurements of each kind, in turns").whole_number(1, most);
  line.add("--chunk", chosen.chunk, "bytes of a put of the stream, a multiple of 8")
      .whole_number(1, most);
  line.add("--slots", chosen.slots, "puts that the stream sends ahead").whole_number(1, most);
  line.add("--slice", chosen.bulk_slice, "bulk_slice of the transport [its default]")
      .whole_number(1, most);
  line.add("--in-flight", chosen.bulk_in_flight, "bulk_in_flight of the transport [its default]")
      .whole_number(1, most);
  const auto check = [&] {
    if (chosen.chunk % 8 != 0)
      programs::refuse("--chunk",
                       std::to_string(chosen.chunk) + " given, expected a multiple of 8");
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  try {
    return peerbus::run_local(2, [&](peerbus::bootstrap& boot) { return run_over(boot, chosen); },
                              {.pin = peerbus::usable_cores() >= 2});
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "fabric_classes: %s\n", problem.what());
    return 1;
  }
}
