// SPDX-License-Identifier: MIT
// ctest: tsan
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/loopback.hpp>

namespace threads_test {

// Exchanges of one communicator may run in threads of their own; when a peer dies, all of them find
// out at about the same time.
TEST_CASE("two threads whose exchanges fail at once both get an error") {
  std::atomic<int> dead_peers{0};
  std::atomic<int> others{0};
  const int worst_status = peerbus::run_threads(2, [&](peerbus::bootstrap& boot) {
    peerbus::communicator comm{peerbus::loopback{boot}};
    using exchange = peerbus::moe::exchange<peerbus::loopback, peerbus::codec::bf16>;
    const peerbus::moe::exchange_config config{
        .experts = 2, .hidden = 16, .top_k = 1, .max_tokens = 4};
    exchange first{comm, config};
    exchange second{comm, config};
    const std::vector<peerbus::bf16> tokens(64);
    const std::vector<std::int32_t> experts{0, 1, 0, 1};
    const std::vector<float> weights(4, 1.0F);
    const auto some_rounds = [&](exchange& moe, int rounds) {
      std::vector<peerbus::bf16> out(tokens.size());
      for (int i = 0; i < rounds; ++i) moe.combine(moe.dispatch(tokens, {experts, weights}), out);
    };
    constexpr int rounds = 100;
    const bool survivor = comm.rank() == peerbus::rank_id{0};
    const auto work = [&](exchange& moe) {
      some_rounds(moe, rounds);
      if (!survivor) return;
      try {
        some_rounds(moe, 1);
      } catch (const peerbus::error& caught) {
        const bool expected =
            caught.code() == peerbus::errc::peer_dead || caught.code() == peerbus::errc::poisoned;
        (expected ? dead_peers : others)++;
      }
    };
    std::array threads{std::thread{[&] { work(first); }}, std::thread{[&] { work(second); }}};
    for (std::thread& thread : threads) thread.join();
    if (!survivor) throw std::runtime_error{"this rank fails on purpose"};
  });
  CHECK(worst_status == 1);
  CHECK(dead_peers == 2);
  CHECK(others == 0);
}

}  // namespace threads_test
