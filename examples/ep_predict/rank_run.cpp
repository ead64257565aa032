// SPDX-License-Identifier: MIT
#include "rank_run.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/trace/chrome_trace.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>
#include <peerbus/transport/simulated/charged.hpp>

#include "sized_row.hpp"
#include "with_layout.hpp"

namespace ep_predict {

namespace {

using peerbus::any_transport;
using peerbus::simulated;
using std::chrono::nanoseconds;

/// Waits until one moment, the same for all ranks.
void begin_together(peerbus::communicator<any_transport>& comm, job& all) {
  comm.barrier();
  // The first rank to leave the barrier says when.
  if (all.waiting++ % comm.size() == 0) all.start = simulated::now() + all.pause;
  const nanoseconds left = all.start - simulated::now();
  if (left < nanoseconds{0}) throw std::runtime_error{"ranks leave a barrier too far apart"};
  simulated::advance(left);
}

double microseconds_since(nanoseconds start) {
  return std::chrono::duration<double, std::micro>{simulated::now() - start}.count();
}

nanoseconds rounded(double ns) { return nanoseconds{static_cast<std::int64_t>(ns)}; }

/// A recorder of what a rank does in the measured rounds.
class rank_recording {
 public:
  rank_recording(peerbus::bootstrap& boot, const load& batch)
      : boot_{boot}, events_{{.events = 64 * batch.rounds + 4 * batch.ranks, .threads = 1}} {
    boot_.members()->listeners().add(events_);
  }
  rank_recording(const rank_recording&) = delete;
  rank_recording& operator=(const rank_recording&) = delete;
  ~rank_recording() { boot_.members()->listeners().remove(events_); }

  [[nodiscard]] std::string text() const {
    return peerbus::chrome_events({.rank = boot_.rank(),
                                   .name = "simulated",
                                   .threads = events_.read(),
                                   .lost = events_.lost()},
                                  std::numeric_limits<std::size_t>::max());
  }

 private:
  peerbus::bootstrap& boot_;
  peerbus::recorder events_;
};

/// Begins operation number `operation`: late, and for a straggler slowly. Returns when the rank
/// has called it.
nanoseconds arrive(std::size_t rank, std::size_t operation, double start_ns, double tokens_ns,
                   const load& batch) {
  const arrival drawn = draw(batch.arrival, batch.seed, operation, rank);
  simulated::advance(rounded(drawn.late_us * 1000));
  const nanoseconds called = simulated::now();
  simulated::advance(rounded(start_ns));
  if (drawn.straggles)
    simulated::advance(rounded((batch.arrival.straggler_factor - 1) * (start_ns + tokens_ns)));
  return called;
}

template <class Layout>
auto exchange_of(peerbus::communicator<any_transport>& comm, const load& batch,
                 const Layout& layout) {
  return peerbus::moe::exchange{comm, config_of(batch),
                                peerbus::charged<sized_row>{sized_row{}, false}, layout};
}

template <class Layout>
void run_in_layout(peerbus::bootstrap& boot, job& all, const Layout& layout) {
  const load& batch = all.batch;
  peerbus::communicator<any_transport> comm{any_transport{simulated{boot}}};
  std::optional<rank_recording> recording;
  if (!all.events.empty()) recording.emplace(boot, batch);
  auto moe = exchange_of(comm, batch, layout);
  const std::size_t rank = comm.rank().index();
  all.window_bytes = moe.map().total;
  const auto experts = even_routing(batch, rank);
  const std::vector<float> weights(experts.size(), 1.0F);
  const double sums_ns = all.own.sum_ns * static_cast<double>(experts.size());
  const double tokens_ns = all.token_ns * static_cast<double>(batch.tokens);
  for (std::size_t round = 0; round <= batch.rounds; ++round) {
    begin_together(comm, all);
    if (round == 1 && rank == 0) {
      all.bytes = simulated::bytes_sent();
      all.messages = simulated::messages_sent();
    }
    nanoseconds called = arrive(rank, 2 * round, all.own.dispatch_ns, tokens_ns, batch);
    auto received = moe.dispatch(all.tokens, {experts, weights});
    const double dispatched = microseconds_since(called);
    begin_together(comm, all);
    called = arrive(rank, 2 * round + 1, all.own.combine_ns, 0, batch);
    moe.combine(received, all.outputs);
    simulated::advance(rounded(sums_ns));
    if (round == 0) continue;
    all.dispatch[round - 1][rank] = dispatched;
    all.combine[round - 1][rank] = microseconds_since(called);
  }
  if (recording) all.events[rank] = recording->text();
}

template <class Layout>
void run_layers_in_layout(peerbus::bootstrap& boot, job& all, const Layout& layout) {
  const load& batch = all.batch;
  peerbus::communicator<any_transport> comm{any_transport{simulated{boot}}};
  auto moe = exchange_of(comm, batch, layout);
  using received_type = typename decltype(moe)::received_type;
  struct batch_under_way {
    peerbus::moe::ticket ticket{};
    std::optional<received_type> rows{};
  };
  std::vector<batch_under_way> batches(batch.in_flight);
  const std::size_t rank = comm.rank().index();
  const auto experts = even_routing(batch, rank);
  const std::vector<float> weights(experts.size(), 1.0F);
  const double sums_ns = all.own.sum_ns * static_cast<double>(experts.size());
  const double tokens_ns = all.token_ns * static_cast<double>(batch.tokens);
  std::size_t operation = 0;
  const auto finish = [&](batch_under_way& ended) {
    if (!ended.rows) return;
    moe.combine_recv(*ended.rows, all.outputs);
    simulated::advance(rounded(sums_ns));
  };
  // Layers are in full swing from the second one to the last but one.
  nanoseconds begin{0};
  begin_together(comm, all);
  for (std::size_t layer = 0; layer < batch.rounds + 2; ++layer) {
    for (batch_under_way& sent : batches) {
      finish(sent);
      if (&sent == &batches.back() && layer == 1) begin = simulated::now();
      if (&sent == &batches.back() && layer == batch.rounds + 1)
        all.layers[rank] = microseconds_since(begin) / static_cast<double>(batch.rounds);
      static_cast<void>(arrive(rank, operation++, all.own.dispatch_ns, tokens_ns, batch));
      sent.ticket = moe.dispatch_send(all.tokens, {experts, weights});
    }
    for (batch_under_way& got : batches) {
      got.rows = moe.dispatch_recv(got.ticket);
      simulated::advance(rounded(all.experts_us * 1000));
      static_cast<void>(arrive(rank, operation++, all.own.combine_ns, 0, batch));
      moe.combine_send(*got.rows);
    }
  }
  for (batch_under_way& last : batches) finish(last);
}

}  // namespace

job::job(const load& asked, const work& taken, bool records)
    : batch{asked},
      own{taken},
      tokens(batch.tokens * batch.hidden),
      outputs(tokens.size()),
      dispatch(batch.rounds, std::vector<double>(batch.ranks)),
      combine(dispatch),
      events(records ? batch.ranks : 0),
      layers(batch.ranks) {}

void run_rank(peerbus::bootstrap& boot, job& all) {
  with_layout(all.batch.layout, [&](const auto& layout) { run_in_layout(boot, all, layout); });
}

void run_layers(peerbus::bootstrap& boot, job& all) {
  with_layout(all.batch.layout,
              [&](const auto& layout) { run_layers_in_layout(boot, all, layout); });
}

}  // namespace ep_predict
