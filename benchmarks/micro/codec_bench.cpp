// SPDX-License-Identifier: MIT
//
// One row of 7168 columns through each codec and kernel, per instruction set. `plain_copy` and
// `plain_read` move the same bytes without arithmetic. Without `cold` the rows fit the
// second-level cache. bytes_per_second counts what is read and what is written; per_row is the
// time for one row, however many are summed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/group.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace micro::codec_bench {
namespace {

using peerbus::bf16;
using peerbus::kernel::kernel_set;

constexpr std::size_t hidden = 7168;
constexpr std::size_t cold_rows = 8192;  // 112 MiB
constexpr std::size_t hot_rows = 32;     // 448 KiB

/// Rows in an order in which no prefetcher can guess the next one.
class row_pool {
 public:
  static row_pool& get() {
    static row_pool pool;
    return pool;
  }

  /// `count` rows of a pool of `pool_rows`, others at each call while there are any.
  [[nodiscard]] const bf16* const* next(std::size_t count, std::size_t pool_rows) noexcept {
    place_ = place_ + 2 * count > pool_rows ? 0 : place_ + count;
    return order_.data() + place_;
  }

 private:
  row_pool() : storage_(cold_rows * hidden), order_(cold_rows) {
    std::mt19937 random{1};
    for (bf16& value : storage_)
      value = bf16::from_bits(static_cast<std::uint16_t>(0x3c00U + random() % 0x400U));
    for (std::size_t row = 0; row < cold_rows; ++row) order_[row] = storage_.data() + row * hidden;
    std::shuffle(order_.begin(), order_.end(), random);
  }

  std::vector<bf16> storage_;
  std::vector<const bf16*> order_;
  std::size_t place_ = 0;
};

/// The set that the first argument names, shown by its name.
const kernel_set& set_of(benchmark::State& state) {
  const kernel_set& set = *peerbus::kernel::available()[static_cast<std::size_t>(state.range(0))];
  state.SetLabel(set.name);
  return set;
}

std::size_t pool_of(std::int64_t cold) { return cold != 0 ? cold_rows : hot_rows; }

void count(benchmark::State& state, std::size_t rows, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) *
                          static_cast<std::int64_t>(state.iterations()));
  state.counters["per_row"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate |
                                                        benchmark::Counter::kInvert);
}

/// Each result is compared with that of the scalar set before anything is timed.
template <class Output, class Run>
bool agrees(benchmark::State& state, const kernel_set& set, std::size_t size, Run run) {
  std::vector<Output> expected(size);
  std::vector<Output> given(size);
  run(*peerbus::kernel::available().front(), expected.data());
  run(set, given.data());
  const bool same = std::memcmp(expected.data(), given.data(), size * sizeof(Output)) == 0;
  if (!same) state.SkipWithError("differs from the scalar reference");
  return same;
}

void weighted_sum(benchmark::State& state) {
  const kernel_set& set = set_of(state);
  const std::size_t pool_rows = pool_of(state.range(1));
  const auto rows = static_cast<std::size_t>(state.range(2));
  std::vector<float> weights(rows);
  for (std::size_t row = 0; row < rows; ++row) weights[row] = 1.0F / static_cast<float>(row + 3);
  row_pool& pool = row_pool::get();
  const bf16* const* const checked = pool.next(rows, cold_rows);
  if (!agrees<bf16>(state, set, hidden, [&](const kernel_set& by, bf16* out) {
        by.weighted_sum(checked, weights.data(), rows, hidden, out);
      }))
    return;
  std::vector<bf16> out(hidden);
  for (auto _ : state) {
    set.weighted_sum(pool.next(rows, pool_rows), weights.data(), rows, hidden, out.data());
    benchmark::ClobberMemory();
  }
  count(state, rows, (rows + 1) * hidden * sizeof(bf16));
}

void plain_read(benchmark::State& state) {
  constexpr std::size_t rows = 8;
  const std::size_t pool_rows = pool_of(state.range(0));
  row_pool& pool = row_pool::get();
  for (auto _ : state) {
    const bf16* const* const chosen = pool.next(rows, pool_rows);
    std::uint64_t any = 0;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t column = 0; column < hidden; column += 32) {
        std::uint64_t first = 0;
        std::memcpy(&first, chosen[row] + column, sizeof(first));
        any |= first;
      }
    benchmark::DoNotOptimize(any);
  }
  count(state, rows, rows * hidden * sizeof(bf16));
}

void plain_copy(benchmark::State& state) {
  const std::size_t pool_rows = pool_of(state.range(0));
  row_pool& pool = row_pool::get();
  std::vector<bf16> out(hidden);
  for (auto _ : state) {
    std::memcpy(out.data(), *pool.next(1, pool_rows), hidden * sizeof(bf16));
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  count(state, 1, 2 * hidden * sizeof(bf16));
}

template <peerbus::token_codec Codec>
void encode(benchmark::State& state) {
  const kernel_set& set = set_of(state);
  const std::size_t pool_rows = pool_of(state.range(1));
  constexpr std::size_t row_bytes = Codec::row_bytes(hidden);
  constexpr std::size_t scale_bytes = Codec::scale_bytes(hidden);
  row_pool& pool = row_pool::get();
  const auto run = [](const kernel_set& by, const bf16* token, std::byte* out) {
    Codec{by}.encode(std::span{token, hidden}, std::span{out, row_bytes},
                     std::span{out + row_bytes, scale_bytes});
  };
  const bf16* const checked = *pool.next(1, cold_rows);
  if (!agrees<std::byte>(state, set, row_bytes + scale_bytes,
                         [&](const kernel_set& by, std::byte* out) { run(by, checked, out); }))
    return;
  std::vector<std::byte> out(row_bytes + scale_bytes);
  for (auto _ : state) {
    run(set, *pool.next(1, pool_rows), out.data());
    benchmark::ClobberMemory();
  }
  count(state, 1, hidden * sizeof(bf16) + row_bytes + scale_bytes);
}

template <peerbus::token_codec Codec>
void decode(benchmark::State& state) {
  const kernel_set& set = set_of(state);
  constexpr std::size_t row_bytes = Codec::row_bytes(hidden);
  constexpr std::size_t scale_bytes = Codec::scale_bytes(hidden);
  std::vector<std::byte> row(row_bytes);
  std::vector<std::byte> scales(scale_bytes);
  Codec{}.encode(std::span{*row_pool::get().next(1, cold_rows), hidden}, row, scales);
  if (!agrees<float>(state, set, hidden, [&](const kernel_set& by, float* out) {
        Codec{by}.decode(row, scales, std::span{out, hidden});
      }))
    return;
  const Codec codec{set};
  std::vector<float> out(hidden);
  for (auto _ : state) {
    codec.decode(row, scales, out);
    benchmark::ClobberMemory();
  }
  count(state, 1, row_bytes + scale_bytes + hidden * sizeof(float));
}

namespace logfmt10 = peerbus::codec::logfmt10;

/// A row that LogFMT codes as a whole: magnitudes below 1 of 8 octaves.
std::vector<bf16> small_row() {
  std::vector<bf16> row(hidden);
  std::mt19937 random{2};
  for (bf16& value : row)
    value = bf16::from_bits(static_cast<std::uint16_t>(0x3b80U + random() % 0x400U));
  return row;
}

void logfmt_encode(benchmark::State& state) {
  const std::vector<bf16> row = small_row();
  std::vector<logfmt10::head> heads(logfmt10::groups(hidden));
  std::vector<std::byte> out(2 * hidden);
  std::size_t bytes = 0;
  for (auto _ : state) {
    bytes = logfmt10::encode(row, heads, out.data());
    benchmark::ClobberMemory();
  }
  if (bytes != hidden * 10 / 8) state.SkipWithError("the row was not coded");
  count(state, 1, hidden * sizeof(bf16) + bytes + logfmt10::head_bytes(hidden));
}

/// As combine reads rows: several at once, group by group.
void logfmt_decode(benchmark::State& state) {
  constexpr std::size_t rows = 8;
  const std::vector<bf16> row = small_row();
  std::vector<logfmt10::head> heads(logfmt10::groups(hidden));
  std::vector<std::byte> coded(2 * hidden);
  const std::size_t bytes = logfmt10::encode(row, heads, coded.data());
  bf16 scratch[rows][peerbus::kernel::group_columns];
  const bf16* values[rows];
  for (auto _ : state) {
    std::vector<logfmt10::reader> readers(rows, {heads, coded.data()});
    for (std::size_t g = 0; g < heads.size(); ++g) {
      logfmt10::next_groups(readers, scratch, values);
      benchmark::ClobberMemory();
    }
  }
  count(state, rows, rows * (bytes + logfmt10::head_bytes(hidden) + hidden * sizeof(bf16)));
}

void narrow(benchmark::State& state) {
  const kernel_set& set = set_of(state);
  std::vector<float> wide(hidden);
  std::iota(wide.begin(), wide.end(), 0.1F);
  if (!agrees<bf16>(state, set, hidden,
                    [&](const kernel_set& by, bf16* out) { by.narrow(wide.data(), hidden, out); }))
    return;
  std::vector<bf16> out(hidden);
  for (auto _ : state) {
    set.narrow(wide.data(), hidden, out.data());
    benchmark::ClobberMemory();
  }
  count(state, 1, hidden * (sizeof(float) + sizeof(bf16)));
}

void each_set(benchmark::internal::Benchmark* bench) {
  bench->ArgName("set");
  for (std::size_t set = 0; set < peerbus::kernel::available().size(); ++set)
    bench->Arg(static_cast<std::int64_t>(set));
}

void each_set_and_heat(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"set", "cold"});
  for (const std::int64_t cold : {0, 1})
    for (std::size_t set = 0; set < peerbus::kernel::available().size(); ++set)
      bench->Args({static_cast<std::int64_t>(set), cold});
}

void each_set_rows_and_heat(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"set", "cold", "rows"});
  for (const std::int64_t cold : {0, 1})
    for (const std::int64_t rows : {8, 32})
      for (std::size_t set = 0; set < peerbus::kernel::available().size(); ++set)
        bench->Args({static_cast<std::int64_t>(set), cold, rows});
}

BENCHMARK(plain_copy)->Name("codec/plain_copy")->ArgName("cold")->Arg(0)->Arg(1);
BENCHMARK(plain_read)->Name("codec/plain_read")->ArgName("cold")->Arg(0)->Arg(1);
BENCHMARK(weighted_sum)->Name("codec/weighted_sum")->Apply(each_set_rows_and_heat);
BENCHMARK(encode<peerbus::codec::int8_per_token>)
    ->Name("codec/int8_per_token/encode")
    ->Apply(each_set_and_heat);
BENCHMARK(decode<peerbus::codec::int8_per_token>)
    ->Name("codec/int8_per_token/decode")
    ->Apply(each_set);
BENCHMARK(encode<peerbus::codec::fp8_e4m3_per_128_f32>)
    ->Name("codec/fp8_e4m3_per_128_f32/encode")
    ->Apply(each_set_and_heat);
BENCHMARK(decode<peerbus::codec::fp8_e4m3_per_128_f32>)
    ->Name("codec/fp8_e4m3_per_128_f32/decode")
    ->Apply(each_set);
BENCHMARK(encode<peerbus::codec::fp8_e4m3_per_128_ue8m0>)
    ->Name("codec/fp8_e4m3_per_128_ue8m0/encode")
    ->Apply(each_set_and_heat);
BENCHMARK(decode<peerbus::codec::fp8_e4m3_per_128_ue8m0>)
    ->Name("codec/fp8_e4m3_per_128_ue8m0/decode")
    ->Apply(each_set);
BENCHMARK(decode<peerbus::codec::bf16>)->Name("codec/bf16/decode")->Apply(each_set);
BENCHMARK(logfmt_encode)->Name("codec/logfmt10/encode");
BENCHMARK(logfmt_decode)->Name("codec/logfmt10/decode");
BENCHMARK(narrow)->Name("codec/narrow")->Apply(each_set);

}  // namespace
}  // namespace micro::codec_bench
