// SPDX-License-Identifier: MIT
// A serving group that loses ranks and goes on: six processes serve batches, two of them are
// killed, and the others agree on who is left and serve the next batch. Each line tells an event
// with its time since the process was killed. Every sum is checked: what is lost are the slots of
// the experts that the dead ranks held.
//   ./elastic_moe
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include <peerbus/peerbus.hpp>

namespace {

using peerbus::bf16;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t ranks = 6, experts = 12, hidden = 256, top_k = 2, count = 8;
constexpr std::size_t steps = 40;

/// A rank that is killed, and the step before which that happens.
struct kill {
  std::size_t rank, step;
};
constexpr std::array kills{kill{1, 10}, kill{0, 25}};

/// When the latest rank was killed, in memory that all processes share.
using kill_time = std::atomic<clock_type::rep>;

double ms_since(const kill_time& when) {
  const auto passed = clock_type::now().time_since_epoch() - clock_type::duration{when.load()};
  return std::chrono::duration<double, std::milli>(passed).count();
}

// One rank's part.
void serve(peerbus::bootstrap& boot, kill_time& killed) {
  peerbus::communicator comm{peerbus::unified_bus{boot}};
  peerbus::moe::exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count},
      peerbus::codec::bf16{}};
  const std::size_t me = comm.rank().index();
  const std::vector<bf16> tokens(count * hidden, bf16{1.0F});
  const std::vector<float> weights(count * top_k, 0.5F);
  std::vector<std::int32_t> ids(count * top_k);
  std::vector<bf16> out(tokens.size());

  const auto serve_batch = [&](std::uint64_t step) {
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((me + step + i * 5) % experts);
    const auto received = moe.dispatch(tokens, {ids, weights});
    for (const auto& expert : received.experts())
      for (bf16& value : expert.outputs()) value = bf16{static_cast<float>(expert.id() + 1)};
    moe.combine(received, out);
    // Expert e gives e + 1; the experts of ranks that are gone give nothing.
    for (std::size_t t = 0; t < count; ++t) {
      float wanted = 0;
      for (std::size_t k = 0; k < top_k; ++k) {
        const auto expert = static_cast<std::size_t>(ids[t * top_k + k]);
        if (comm.view().contains(moe.placement().owner(expert)))
          wanted += 0.5F * static_cast<float>(expert + 1);
      }
      if (static_cast<float>(out[t * hidden]) != wanted) throw std::runtime_error{"a wrong sum"};
    }
  };
  const auto tells = [&] { return comm.view().members().front() == comm.rank(); };

  // A step is a batch, so the batches that all have combined are the steps that are done.
  bool has_lost = false;
  for (std::uint64_t step = 0; step < steps;) {
    try {
      if (has_lost) {
        const auto& view = comm.continue_without_the_dead();
        if (tells())
          std::printf("%7.2f ms: view %llu of %zu ranks\n", ms_since(killed),
                      static_cast<unsigned long long>(view.number()), view.members().size());
        step = moe.resume().combined;
      }
      for (const kill& next : kills)
        if (next.step == step && next.rank == me) {
          std::printf("rank %zu is killed before step %zu\n", me, next.step);
          std::fflush(stdout);
          killed = clock_type::now().time_since_epoch().count();
          ::raise(SIGKILL);
        }
      serve_batch(step);
      if (std::exchange(has_lost, false) && tells())
        std::printf("%7.2f ms: step %llu is served\n", ms_since(killed),
                    static_cast<unsigned long long>(step));
      ++step;
    } catch (const peerbus::error& problem) {
      if (problem.code() != peerbus::errc::peer_dead) throw;
      has_lost = true;
      if (tells()) std::printf("%7.2f ms: %s\n", ms_since(killed), problem.what());
    }
  }
  comm.barrier();
  if (tells()) std::printf("%zu steps served, every sum right\n", steps);
}

}  // namespace

int main() {
  void* const page =
      ::mmap(nullptr, sizeof(kill_time), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 1;
  auto& killed = *::new (page) kill_time{0};
  const int status =
      peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) { serve(boot, killed); });
  // The worst status is that of the killed ranks.
  return status == 128 + SIGKILL ? 0 : 1;
}
