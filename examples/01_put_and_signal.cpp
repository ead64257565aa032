// SPDX-License-Identifier: MIT
// Each process writes into the memory of the next process and signals when the data is complete.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <peerbus/peerbus.hpp>

int main() {
  return peerbus::run<peerbus::unified_bus>(4, [](auto& comm) {
    const std::size_t ranks = comm.size();
    const std::size_t rank = comm.rank().index();
    const peerbus::rank_id next{(rank + 1) % ranks};
    const peerbus::rank_id previous{(rank + ranks - 1) % ranks};
    constexpr peerbus::signal_id arrived{0};

    // A window with 1024 bytes and one signal on every rank, all zero. Every rank may write to
    // every part of it.
    auto inbox = comm.make_window(1024, 1);
    const std::vector<std::uint64_t> letter(128, 100 + rank);

    // A rank that sees the signal at 1 also sees the whole letter.
    peerbus::check(inbox.put_signal(next, 0, std::span{letter}, arrived, 1), "sending the letter");
    inbox.await(arrived, 1, comm.default_deadline(), previous);

    for (const std::uint64_t word : inbox.template local<std::uint64_t>())
      if (word != 100 + previous.index()) {
        std::printf("rank %zu: read %zu, expected %zu\n", rank, static_cast<std::size_t>(word),
                    100 + previous.index());
        return 1;
      }
    std::printf("rank %zu: the letter of rank %zu came\n", rank, previous.index());
    return 0;
  });
}
