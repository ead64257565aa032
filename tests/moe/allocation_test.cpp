// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

// The data path allocates nothing: every operator new of this program counts.

namespace {
thread_local std::uint64_t allocations = 0;

// Not inlined: g++ would take free for the wrong end of an inlined new.
[[gnu::noinline]] void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc{};
  return memory;
}
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }
}  // namespace

// The nothrow and array forms of the standard library call these.
void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace {

template <class Group, class Codec>
void check_no_allocation(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    const oracle::shape shape{comm.size(), 10, 128, 4};
    peerbus::moe::exchange moe{comm,
                               {.experts = 10, .hidden = 128, .top_k = 4, .max_tokens = 16},
                               oracle::codec_of<Codec>::make()};
    std::vector<oracle::input> inputs;
    for (std::size_t i = 0; i < 5; ++i)
      inputs.push_back(
          oracle::make_input(shape, comm.rank().index(), 4 * i, oracle::routes::holes, i));
    std::vector<peerbus::bf16> out(16 * 128);
    const auto operate = [&](const oracle::input& mine) {
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
      for (const auto& expert : got.experts())
        for (auto& value : expert.outputs()) value = peerbus::bf16{1.0F};
      moe.combine(got, std::span{out}.first(mine.tokens.size()));
      comm.barrier();
    };
    operate(inputs[4]);
    const std::uint64_t before = allocations;
    for (std::size_t i = 0; i < 100; ++i) operate(inputs[i % inputs.size()]);
    test::expect_equal(allocations - before, 0U, "allocations in 100 dispatches and combines");
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("the counter counts") {
  const std::uint64_t before = allocations;
  const std::vector<int> vector(100);
  CHECK(allocations == before + 1);
}

TEST_CASE("dispatch, combine and barrier allocate nothing") {
  using peerbus::codec::int8_per_token;
  using loopback = test::threads_over<peerbus::loopback>;
  using staged = test::threads_over<test::indirect<peerbus::loopback>>;
  using processes = test::processes_over<peerbus::unified_bus>;
  for (const std::size_t n : {1U, 2U, 4U}) {
    check_no_allocation<loopback, int8_per_token>(n);
    check_no_allocation<loopback, peerbus::codec::bf16>(n);
    check_no_allocation<staged, int8_per_token>(n);
    check_no_allocation<processes, int8_per_token>(n);
  }
}
