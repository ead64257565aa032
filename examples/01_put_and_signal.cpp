// SPDX-License-Identifier: MIT
// Each process writes into the memory of the next one and tells it so.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <peerbus/peerbus.hpp>

int main() {
  return peerbus::run<peerbus::unified_bus>(4, [](auto& comm) {
    const std::size_t ranks = comm.size();
    const std::size_t me = comm.rank().index();
    const peerbus::rank_id next{(me + 1) % ranks};
    const peerbus::rank_id previous{(me + ranks - 1) % ranks};
    constexpr peerbus::signal_id arrived{0};

    // 1024 bytes and one signal on every rank, all zero; all ranks may write to all of them.
    auto inbox = comm.make_window(1024, 1);
    const std::vector<std::uint64_t> letter(128, 100 + me);

    // Whoever sees the signal at 1 sees the whole letter.
    peerbus::check(inbox.put_signal(next, 0, std::span{letter}, arrived, 1), "sending the letter");
    inbox.await(arrived, 1, comm.default_deadline(), previous);

    for (const std::uint64_t word : inbox.template local<std::uint64_t>())
      if (word != 100 + previous.index()) {
        std::printf("rank %zu: read %zu, expected %zu\n", me, static_cast<std::size_t>(word),
                    100 + previous.index());
        return 1;
      }
    std::printf("rank %zu: the letter of rank %zu came\n", me, previous.index());
    return 0;
  });
}
