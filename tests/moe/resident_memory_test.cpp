// SPDX-License-Identifier: MIT
// ctest: many unsanitized serial timeout=300
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace resident_memory_test {

// What memory_map::touched says against what the kernel says is there.

namespace {

using peerbus::moe::exchange_config;
using peerbus::moe::outputs_at;
using group = test::processes_over<peerbus::unified_bus>;

std::size_t small_page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

/// Whether the kernel may back shared memory with huge pages where asked to.
bool huge_pages_offered() {
  std::ifstream file{"/sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  std::string words;
  std::getline(file, words);
  return !words.empty() && words.find("[never]") == std::string::npos &&
         words.find("[deny]") == std::string::npos;
}

/// Bytes of `part`, which begins on a page, that are in memory, whichever process touched them.
std::size_t resident(std::span<std::byte> part) {
  std::vector<unsigned char> there(peerbus::align_up(part.size(), small_page()) / small_page());
  test::expect(::mincore(part.data(), part.size(), there.data()) == 0, "mincore to work");
  const auto count =
      std::count_if(there.begin(), there.end(), [](unsigned char one) { return one % 2 == 1; });
  return static_cast<std::size_t>(count) * small_page();
}

/// Returns the bytes of stack that `f` touches, in a thread of its own. `f` must not throw.
template <class F>
std::size_t stack_used(F f) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  constexpr unsigned char untouched = 0xa5;
  const peerbus::mapping stack = peerbus::mapping::anonymous(bytes);
  const std::span words{static_cast<unsigned char*>(static_cast<void*>(stack.data())), bytes};
  std::ranges::fill(words, untouched);
  pthread_attr_t with;
  test::expect(::pthread_attr_init(&with) == 0, "attributes of a thread");
  test::expect(::pthread_attr_setstack(&with, words.data(), bytes) == 0, "a stack of its own");
  pthread_t thread{};
  const auto start = [](void* given) -> void* {
    (*static_cast<F*>(given))();
    return nullptr;
  };
  test::expect(::pthread_create(&thread, &with, start, &f) == 0, "a thread");
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&with);
  return bytes -
         static_cast<std::size_t>(
             std::ranges::find_if_not(words, [](unsigned char byte) { return byte == untouched; }) -
             words.begin());
}

template <class Codec>
std::size_t rows_of(const peerbus::moe::received<Codec>& got) {
  return got.rows();
}
template <class Codec>
std::size_t rows_of(const peerbus::moe::received_tokens<Codec>& got) {
  return got.count();
}

template <class Codec, class Layout>
void check_resident(std::size_t ranks, const exchange_config& config) {
  CAPTURE(ranks);
  CAPTURE(Layout::name);
  const int worst_status = group::run(ranks, [&](auto& comm) {
    peerbus::moe::exchange moe{comm, config, Codec{}, Layout{}};
    const oracle::shape shape{comm.size(), config.experts, config.hidden, config.top_k};
    const std::size_t me = comm.rank().index();
    const std::vector<std::byte> attached(config.max_tokens * std::ranges::max(config.attachments));
    std::size_t most_rows = 0;
    // Each batch set and each generation of messages is used.
    for (std::size_t round = 0; round < 2 * config.in_flight; ++round) {
      const auto mine =
          oracle::make_input(shape, me, config.max_tokens, oracle::routes::uniform, 5 + round);
      peerbus::moe::dispatch_options with;
      for (std::size_t a = 0; a < config.attachments.size(); ++a)
        with.attachments[a] = std::span{attached}.first(config.max_tokens * config.attachments[a]);
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights}, with);
      most_rows = std::max(most_rows, rows_of(got));
      test::run_experts(got);
      std::vector<peerbus::bf16> out(mine.tokens.size());
      moe.combine(got, out);
    }
    comm.barrier();
    const bool huge = moe.map().total >= peerbus::huge_page_bytes && huge_pages_offered();
    const std::size_t page = huge ? peerbus::huge_page_bytes : small_page();
    const auto said = static_cast<double>(moe.map().touched(most_rows, config.max_tokens, page));
    const auto taken = static_cast<double>(resident(moe.memory().local()));
    test::expect(taken <= 1.2 * said, taken, " bytes in memory, but at most 1.2 x what touched(",
                 most_rows, ", ", config.max_tokens, ", ", page, ") says, ", said);
    // Less may be taken where the kernel gives small pages all the same, and where tokens with
    // several experts on one rank leave slots at home empty.
    constexpr bool by_rank = std::is_same_v<Layout, peerbus::moe::rank_major>;
    if (!huge && !(by_rank && config.outputs == outputs_at::home)) {
      const double least = me == 0 ? said : said - static_cast<double>(moe.map().sets);
      test::expect(least <= 1.2 * taken, taken, " bytes in memory, but at least 1 / 1.2 of ",
                   least);
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

template <class Codec>
void check_layouts(std::size_t ranks, exchange_config config) {
  for (const outputs_at outputs : {outputs_at::expert, outputs_at::home}) {
    config.outputs = outputs;
    check_resident<Codec, peerbus::moe::compact>(ranks, config);
    check_resident<Codec, peerbus::moe::rank_major>(ranks, config);
  }
}

}  // namespace

TEST_CASE("a window smaller than a huge page") {
  using peerbus::codec::bf16;
  check_layouts<bf16>(8, {.experts = 8, .hidden = 1024, .top_k = 4, .max_tokens = 8});
  check_layouts<bf16>(8, {.experts = 24,
                          .hidden = 512,
                          .top_k = 4,
                          .max_tokens = 4,
                          .in_flight = 3,
                          .attachments = {64, 260}});
  check_layouts<bf16>(64, {.experts = 64, .hidden = 256, .top_k = 4, .max_tokens = 4});
}

TEST_CASE("large windows") {
  using peerbus::codec::int8_per_token;
  check_layouts<int8_per_token>(8, {.experts = 64, .hidden = 7168, .top_k = 8, .max_tokens = 16});
  check_layouts<int8_per_token>(64, {.experts = 256, .hidden = 1024, .top_k = 8, .max_tokens = 8});
}

TEST_CASE("an exchange needs little stack, however long its rows are") {
  // Half of what docs/limits.md asks for, because test files are not optimised.
  constexpr std::size_t most_stack = std::size_t{32} * 1024;
  constexpr exchange_config config{.experts = 8,
                                   .hidden = peerbus::moe::row_buffers::most_bytes / 2,
                                   .top_k = 8,
                                   .max_tokens = 4};
  for (const std::size_t stream_from : {std::size_t{0}, peerbus::moe::never_stream}) {
    const int worst_status = group::run(2, [&](auto& comm) {
      auto wanted = config;
      wanted.stream_from = stream_from;
      const auto mine = oracle::make_input({2, config.experts, config.hidden, config.top_k},
                                           comm.rank().index(), 4, oracle::routes::uniform, 5);
      std::vector<peerbus::bf16> out(mine.tokens.size());
      const std::size_t used = stack_used([&] {
        peerbus::moe::exchange moe{comm, wanted, peerbus::codec::int8_per_token{}};
        const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
        moe.combine(got, out);
      });
      test::expect(used <= most_stack, used, " bytes of stack, expected at most ", most_stack);
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace resident_memory_test
