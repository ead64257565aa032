// SPDX-License-Identifier: MIT
// A serving group that loses ranks, goes on, and takes one in again: six processes serve batches,
// two of them are killed, the others agree on who is left and serve the next batch, and a process
// that was started anew becomes rank 1 between two batches. Each line tells an event with its time
// since the process before was killed or started. Every sum is checked: what is lost are the slots
// of the experts whose ranks are not there.
//   ./elastic_moe
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <peerbus/communicator/admission.hpp>
#include <peerbus/peerbus.hpp>

namespace {

using peerbus::bf16;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t ranks = 6, experts = 12, hidden = 256, top_k = 2, count = 8;
constexpr std::uint64_t steps = 60, admit_every = 4;

/// A rank that is killed, and the step before which that happens.
struct kill {
  std::size_t rank;
  std::uint64_t step;
};
constexpr std::array kills{kill{1, 10}, kill{0, 25}};
constexpr std::size_t comes_back = 1;

/// What all processes share: when the latest was killed or started, and whether one shall start.
struct page {
  std::atomic<clock_type::rep> since{0};
  std::atomic<bool> is_wanted{false};

  void mark() { since = clock_type::now().time_since_epoch().count(); }
  [[nodiscard]] double ms() const {
    const auto passed = clock_type::now().time_since_epoch() - clock_type::duration{since.load()};
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

/// What a rank serves with. When the group takes in another rank, each makes this anew.
struct server {
  std::unique_ptr<peerbus::bootstrap> own;  ///< none for that of `run_local`
  peerbus::bootstrap& boot;
  peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}};
  peerbus::moe::exchange<peerbus::unified_bus, peerbus::codec::bf16> moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count},
      peerbus::codec::bf16{}};
  peerbus::admission door;

  server(peerbus::bootstrap& of_the_group, const peerbus::launch_settings& place)
      : boot{of_the_group}, door{comm, place} {}
  server(std::unique_ptr<peerbus::bootstrap> met, const peerbus::launch_settings& place)
      : own{std::move(met)}, boot{*own}, door{comm, place} {}

  /// Whether this rank tells what happens.
  [[nodiscard]] bool tells() const { return comm.view().members().front() == comm.rank(); }

  void serve(std::uint64_t step) {
    const std::size_t me = comm.rank().index();
    const std::vector<bf16> tokens(count * hidden, bf16{1.0F});
    const std::vector<float> weights(count * top_k, 0.5F);
    std::vector<std::int32_t> ids(count * top_k);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((me + step + i * 5) % experts);
    std::vector<bf16> out(tokens.size());
    const auto received = moe.dispatch(tokens, {ids, weights});
    for (const auto& expert : received.experts())
      for (bf16& value : expert.outputs()) value = bf16{static_cast<float>(expert.id() + 1)};
    moe.combine(received, out);
    // Expert e gives e + 1; the experts of ranks that are not there give nothing.
    for (std::size_t t = 0; t < count; ++t) {
      float wanted = 0;
      for (std::size_t k = 0; k < top_k; ++k) {
        const auto expert = static_cast<std::size_t>(ids[t * top_k + k]);
        if (comm.view().contains(moe.placement().owner(expert)))
          wanted += 0.5F * static_cast<float>(expert + 1);
      }
      if (static_cast<float>(out[t * hidden]) != wanted) throw std::runtime_error{"a wrong sum"};
    }
  }

  /// Returns the step of those that have served, which one that has just come does not know.
  [[nodiscard]] std::uint64_t agree_on(std::uint64_t step) {
    peerbus::bootstrap::contribution mine;
    mine.bytes.resize(sizeof step);
    std::memcpy(mine.bytes.data(), &step, sizeof step);
    for (const auto& given : boot.allgather(std::move(mine), comm.default_deadline(), "step"))
      if (std::uint64_t theirs = 0; given.bytes.size() == sizeof theirs) {
        std::memcpy(&theirs, given.bytes.data(), sizeof theirs);
        step = std::max(step, theirs);
      }
    return step;
  }
};

auto maker(const peerbus::launch_settings& place) {
  return [&place](std::unique_ptr<peerbus::bootstrap> met) {
    return std::make_unique<server>(std::move(met), place);
  };
}

/// One rank's part. A step is a batch, so the batches that all have combined are the steps that are
/// done.
void serve(std::unique_ptr<server> now, const peerbus::launch_settings& place, page& shared,
           std::uint64_t step) {
  const std::size_t me = now->comm.rank().index();
  std::uint64_t first = step;  // that of the exchange that serves now
  bool has_lost = false;
  while (step < steps) {
    try {
      if (has_lost) {
        const auto& view = now->comm.continue_without_the_dead();
        if (now->tells())
          std::printf("%7.2f ms: view %llu of %zu ranks\n", shared.ms(),
                      static_cast<unsigned long long>(view.number()), view.members().size());
        step = first + now->moe.resume().combined;
      }
      for (const kill& next : kills)
        if (next.step == step && next.rank == me && step != first) {
          std::printf("rank %zu is killed before step %llu\n", me,
                      static_cast<unsigned long long>(step));
          std::fflush(stdout);
          shared.mark();
          ::raise(SIGKILL);
        }
      if (step == kills.back().step + 5 && now->tells() && !shared.is_wanted.exchange(true))
        std::printf("a process is started to be rank %zu\n", comes_back);
      const bool tells = now->tells();  // before the new rank may be the first
      const auto called = clock_type::now();
      if (step % admit_every == 0)
        if (auto larger = now->door.admit(maker(place))) {
          now = std::move(*larger);
          first = step = now->agree_on(step);
          const std::chrono::duration<double, std::milli> stall = clock_type::now() - called;
          if (tells)
            std::printf("%7.2f ms: %zu ranks; the others paused for %.2f ms before step %llu\n",
                        shared.ms(), now->comm.view().members().size(), stall.count(),
                        static_cast<unsigned long long>(step));
          continue;  // to where the new rank begins
        }
      now->serve(step);
      if (std::exchange(has_lost, false) && now->tells())
        std::printf("%7.2f ms: step %llu is served\n", shared.ms(),
                    static_cast<unsigned long long>(step));
      ++step;
    } catch (const peerbus::error& problem) {
      if (problem.code() != peerbus::errc::peer_dead) throw;
      has_lost = true;
      if (now->tells()) std::printf("%7.2f ms: %s\n", shared.ms(), problem.what());
    }
  }
  now->comm.barrier();
  if (now->tells())
    std::printf("%llu steps served, every sum right\n", static_cast<unsigned long long>(steps));
}

/// Starts the process that becomes rank `comes_back` when it is wanted.
pid_t start_again(peerbus::launch_settings place, page& shared) {
  const pid_t process = ::fork();
  if (process != 0) return process;
  int status = 1;
  try {
    while (!shared.is_wanted) {
      if (::getppid() == 1) ::_exit(1);  // the program was killed
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    place.rank = comes_back;
    shared.mark();
    auto now = peerbus::join_running(place, maker(place));
    const std::uint64_t step = now->agree_on(0);
    serve(std::move(now), place, shared, step);
    status = 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "the new rank %zu: %s\n", comes_back, problem.what());
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

int main() {
  void* const memory =
      ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& shared = *::new (memory) page;
  peerbus::launch_settings place;
  place.size = ranks;
  place.job = "elastic_moe/" + std::to_string(::getpid());
  const pid_t again = start_again(place, shared);
  const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    serve(std::make_unique<server>(boot, place), place, shared, 0);
  });
  int status_of_again = 1;
  if (again < 0 || ::waitpid(again, &status_of_again, 0) != again) return 1;
  // The worst status is that of the killed ranks.
  return status == 128 + SIGKILL && status_of_again == 0 ? 0 : 1;
}
