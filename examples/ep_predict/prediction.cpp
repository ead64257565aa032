// SPDX-License-Identifier: MIT
#include "prediction.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>
#include <peerbus/transport/simulated/charged.hpp>

#include "visit_order.hpp"

namespace ep_predict {

namespace {

using peerbus::any_transport;
using peerbus::bf16;
using peerbus::simulated;
using std::chrono::nanoseconds;

/// What all ranks share, as one thread simulates them: memory that nobody looks at, and times.
struct shared {
  shared(const load& asked, const work& taken)
      : batch{asked},
        own{taken},
        tokens(batch.tokens * batch.hidden),
        outputs(tokens.size()),
        dispatch(batch.rounds, std::vector<double>(batch.ranks)),
        combine(dispatch) {}

  const load& batch;
  const work& own;
  std::vector<bf16> tokens;
  std::vector<bf16> outputs;
  std::vector<std::vector<double>> dispatch;  ///< [rounds][ranks], in microseconds
  std::vector<std::vector<double>> combine;
  nanoseconds pause{};  ///< longer than ranks leave a barrier one after the other
  nanoseconds start{-1};
  std::size_t waiting = 0;
  std::uint64_t bytes = 0;  ///< of all ranks, when the measured rounds began, then in them
  std::uint64_t messages = 0;
};

/// Waits until one moment, the same for all ranks, and returns it.
nanoseconds begin_together(peerbus::communicator<any_transport>& comm, shared& all) {
  comm.barrier();
  // The first rank to leave the barrier says when.
  if (all.waiting++ % comm.size() == 0) all.start = simulated::now() + all.pause;
  const nanoseconds start = all.start;
  const nanoseconds left = start - simulated::now();
  if (left < nanoseconds{0}) throw std::runtime_error{"ranks leave a barrier too far apart"};
  simulated::advance(left);
  return start;
}

double microseconds_since(nanoseconds start) {
  return std::chrono::duration<double, std::micro>{simulated::now() - start}.count();
}

nanoseconds rounded(double ns) { return nanoseconds{static_cast<std::int64_t>(ns)}; }

/// Returns no less than the bytes of the longest message of a rank to another besides rows: for
/// each row 8 bytes of its origin and, by rank, 8 for each of its experts, or the counts of all
/// experts.
std::size_t most_control_bytes(const load& batch) {
  const peerbus::moe::expert_placement dealt{batch.experts, batch.ranks};
  const bool is_by_rank = batch.layout == "rank_major";
  std::size_t most_rows = 0;
  for (std::size_t rank = 0; rank < batch.ranks; ++rank) {
    std::vector<std::size_t> rows(batch.ranks, 0);
    std::vector<std::size_t> latest(batch.ranks, 0);  // The latest token to a rank, from 1 on.
    const auto experts = even_routing(batch, rank);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const std::size_t peer = dealt.owner(static_cast<std::size_t>(experts[i])).index();
      if (!is_by_rank || latest[peer] != i / batch.top_k + 1) ++rows[peer];
      latest[peer] = i / batch.top_k + 1;
    }
    most_rows = std::max(most_rows, std::ranges::max(rows));
  }
  return most_rows * (is_by_rank ? 8 + 8 * batch.top_k : 8) + 4 * batch.experts + 256;
}

/// Returns the other ranks in the order in which `own` visits them.
std::vector<peerbus::rank_id> peers_of(std::size_t own, const load& batch) {
  const visit_order visits{batch};
  std::vector<peerbus::rank_id> order;
  order.reserve(batch.ranks - 1);
  for (std::size_t i = 0; i + 1 < batch.ranks; ++i) order.emplace_back(visits.peer(own, i));
  return order;
}

template <class Codec, class Layout>
void run_rank(peerbus::bootstrap& boot, shared& all) {
  const load& batch = all.batch;
  peerbus::communicator<any_transport> comm{any_transport{simulated{boot}}};
  comm.order_peers(peers_of(comm.rank().index(), batch));
  peerbus::moe::exchange moe{comm,
                             {.experts = batch.experts,
                              .hidden = batch.hidden,
                              .top_k = batch.top_k,
                              .max_tokens = batch.tokens,
                              .outputs = peerbus::moe::outputs_at::home},
                             peerbus::charged<Codec>{Codec{}, batch.carries},
                             Layout{}};
  const std::size_t rank = comm.rank().index();
  const auto experts = even_routing(batch, rank);
  const std::vector<float> weights(experts.size(), 1.0F);
  const auto sums = static_cast<double>(experts.size());
  for (std::size_t round = 0; round <= batch.rounds; ++round) {
    nanoseconds start = begin_together(comm, all);
    if (round == 1 && rank == 0) {
      all.bytes = simulated::bytes_sent();
      all.messages = simulated::messages_sent();
    }
    simulated::advance(rounded(all.own.dispatch_ns));
    auto received = moe.dispatch(all.tokens, {experts, weights});
    const double dispatched = microseconds_since(start);
    start = begin_together(comm, all);
    simulated::advance(rounded(all.own.combine_ns));
    moe.combine(received, all.outputs);
    simulated::advance(rounded(all.own.sum_ns * sums));
    if (round == 0) continue;
    all.dispatch[round - 1][rank] = dispatched;
    all.combine[round - 1][rank] = microseconds_since(start);
  }
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::ranges::nth_element(samples, middle);
  return *middle;
}

times summary(const std::vector<std::vector<double>>& by_round) {
  std::vector<double> each;
  std::vector<double> slowest;
  for (const auto& ranks : by_round) {
    each.insert(each.end(), ranks.begin(), ranks.end());
    slowest.push_back(*std::ranges::max_element(ranks));
  }
  return {median(each), median(slowest)};
}

/// Has `f` run with the codec and the layout that `batch` names.
template <class Codec, class F>
void with_layout(const load& batch, F&& f) {
  if (batch.layout == "compact")
    f.template operator()<Codec, peerbus::moe::compact>();
  else if (batch.layout == "rank_major")
    f.template operator()<Codec, peerbus::moe::rank_major>();
  else
    f.template operator()<Codec, peerbus::moe::expert_slots>();
}
template <class F>
void with_codec_and_layout(const load& batch, F&& f) {
  if (batch.codec == "int8")
    with_layout<peerbus::codec::int8_per_token>(batch, f);
  else
    with_layout<peerbus::codec::fp8_e4m3_per_128_f32>(batch, f);
}

}  // namespace

std::vector<std::int32_t> even_routing(const load& batch, std::size_t rank) {
  std::mt19937_64 random{batch.seed * 1'000'003 + rank};
  std::vector<std::int32_t> experts;
  experts.reserve(batch.tokens * batch.top_k);
  for (std::size_t token = 0; token < batch.tokens; ++token) {
    const auto first = static_cast<std::ptrdiff_t>(experts.size());
    while (experts.size() < (token + 1) * batch.top_k) {
      const auto drawn = static_cast<std::int32_t>(random() % batch.experts);
      if (std::find(experts.begin() + first, experts.end(), drawn) == experts.end())
        experts.push_back(drawn);
    }
  }
  return experts;
}

std::vector<std::string> layouts() { return {"compact", "rank_major", "expert_slots"}; }
std::vector<std::string> codecs() { return {"fp8", "int8"}; }

prediction predict(const load& batch, const work& own,
                   const peerbus::simulated_platform& platform) {
  shared all{batch, own};
  peerbus::simulation_options options;
  options.platform = platform;
  options.seed = batch.seed;
  double latency = 0;
  for (const peerbus::simulated_level& level : platform.levels)
    latency = std::max(latency, level.latency_ns + level.message_ns);
  all.pause = std::chrono::milliseconds{1} +
              64 * rounded(std::clamp(latency, 0.0, 1e9));  // Rounds of a barrier, and more.
  // Where something else than rows is as long as a row, all is carried: ranks read the rest.
  const std::size_t control = most_control_bytes(batch);
  if (!batch.carries && control < batch.hidden) options.most_carried_bytes = control;
  with_codec_and_layout(batch, [&]<class Codec, class Layout>() {
    const int status = peerbus::run_simulated(
        batch.ranks,
        [&all](peerbus::bootstrap& boot) {
          run_rank<Codec, Layout>(boot, all);
          if (boot.rank() == peerbus::rank_id{0}) {
            all.bytes = simulated::bytes_sent() - all.bytes;
            all.messages = simulated::messages_sent() - all.messages;
          }
        },
        options);
    if (status != 0) throw std::runtime_error{"a simulated rank failed"};
  });
  const std::size_t shares = batch.rounds * batch.ranks;
  return {summary(all.dispatch), summary(all.combine), all.bytes / shares, all.messages / shares};
}

}  // namespace ep_predict
