// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"

/// The variable forms against plain loops. What a rank sends another follows from both numbers, so
/// that every rank knows what it must receive.
namespace collective_suite {

/// An operand of parts, and how they lie in it.
struct parted {
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> displacements;
  std::size_t elements = 0;
  bool is_packed = true;

  /// Parts in the order of ranks without gaps, or the last first with an element between them.
  parted(std::vector<std::uint64_t> sizes, bool packed)
      : counts{std::move(sizes)}, displacements(counts.size()), is_packed{packed} {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::size_t r = packed ? i : counts.size() - 1 - i;
      displacements[r] = elements;
      elements += counts[r] + (packed ? 0 : 1);
    }
  }
  [[nodiscard]] peerbus::collective::part_layout layout() const {
    return {counts, is_packed ? std::span<const std::uint64_t>{} : std::span{displacements}};
  }
  template <class Of>
  [[nodiscard]] auto part(Of& operand, std::size_t r) const {
    return std::span{operand}.subspan(displacements[r], counts[r]);
  }
};

/// How many elements `source` sends `target`: up to `most`, and none in one of three cases.
inline std::uint64_t sent(std::size_t source, std::size_t target, std::size_t most,
                          std::uint64_t salt) {
  const std::uint64_t bits = mix(mix(salt + 11 * source) + target);
  return bits % 3 == 0 ? 0 : (bits >> 8U) % (most + 1);
}

/// Element `index` of the part that `source` sends `target`.
template <class T>
T part_value(std::size_t source, std::size_t target, std::size_t index, std::uint64_t salt) {
  return value<T>(source, (target << 32U) + index, salt);
}

template <class T, class Range>
void fill_part(Range&& part, std::size_t source, std::size_t target, std::uint64_t salt) {
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = part_value<T>(source, target, i, salt);
}

template <class T>
void check_parts_of(team& on, std::size_t most, std::uint64_t salt, bool packed) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const T untouched = static_cast<T>(77);
  std::vector<std::uint64_t> to_peers(n);
  std::vector<std::uint64_t> from_peers(n);
  std::vector<std::uint64_t> of_ranks(n);
  for (std::size_t r = 0; r < n; ++r) {
    to_peers[r] = sent(me, r, most, salt);
    from_peers[r] = sent(r, me, most, salt);
    of_ranks[r] = sent(r, n, most, salt);
  }

  // all_to_all_v
  const parted in{to_peers, !packed};
  const parted out{from_peers, packed};
  std::vector<T> input(in.elements, untouched);
  std::vector<T> expected(out.elements, untouched);
  std::vector<T> output = expected;
  for (std::size_t r = 0; r < n; ++r) {
    fill_part<T>(in.part(input, r), me, r, salt);
    fill_part<T>(out.part(expected, r), r, me, salt);
  }
  coll::all_to_all_v(on, input, in.layout(), output, out.layout());
  expect_same<T>(output, expected, "all_to_all_v");

  // In place, with counts that are the same in both directions.
  std::vector<std::uint64_t> pairs(n);
  for (std::size_t r = 0; r < n; ++r) pairs[r] = sent(std::min(me, r), std::max(me, r), most, salt);
  const parted both{pairs, packed};
  output.assign(both.elements, untouched);
  expected = output;
  for (std::size_t r = 0; r < n; ++r) {
    fill_part<T>(both.part(output, r), me, r, salt);
    fill_part<T>(both.part(expected, r), r, me, salt);
  }
  coll::all_to_all_v(on, output, both.layout(), output, both.layout());
  expect_same<T>(output, expected, "all_to_all_v in place");

  // all_gather_v and gather_v
  const parted all{of_ranks, packed};
  std::vector<T> own(of_ranks[me]);
  fill_part<T>(own, me, n, salt);
  expected.assign(all.elements, untouched);
  for (std::size_t r = 0; r < n; ++r) fill_part<T>(all.part(expected, r), r, n, salt);
  output.assign(all.elements, untouched);
  coll::all_gather_v(on, own, output, all.layout());
  expect_same<T>(output, expected, "all_gather_v");
  output.assign(all.elements, untouched);
  std::ranges::copy(own, all.part(output, me).begin());
  coll::all_gather_v(on, all.part(output, me), output, all.layout());
  expect_same<T>(output, expected, "all_gather_v in place");

  const rank_id root{salt % n};
  const bool is_root = on.rank() == root;
  output.assign(all.elements, untouched);
  if (is_root)
    coll::gather_v(on, own, output, all.layout(), root);
  else
    coll::gather_v(on, own, std::span<T>{}, {}, root);
  expect_same<T>(output, is_root ? expected : std::vector<T>(all.elements, untouched), "gather_v");

  // scatter_v, in place at the root
  input.assign(all.elements, untouched);
  if (is_root)
    for (std::size_t r = 0; r < n; ++r) fill_part<T>(all.part(input, r), me, r, salt);
  const std::vector<T> before = input;
  expected.resize(of_ranks[me]);
  fill_part<T>(expected, root.index(), me, salt);
  output.assign(of_ranks[me], untouched);
  coll::scatter_v(on, is_root ? input : std::vector<T>{},
                  is_root ? all.layout() : coll::part_layout{}, output, root);
  expect_same<T>(output, expected, "scatter_v");
  coll::scatter_v(on, input, all.layout(), is_root ? all.part(input, me) : std::span{output}, root);
  expect_same<T>(input, before, "scatter_v in place");

  // reduce_scatter_v
  for (std::size_t r = 0; r < n; ++r) fill_part<T>(all.part(input, r), me, r, salt);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto in_order = [&](std::size_t r) {
      return static_cast<coll::accumulator_t<T>>(part_value<T>(r, me, i, salt));
    };
    auto total = in_order(0);
    for (std::size_t r = 1; r < n; ++r) total = coll::sum{}(total, in_order(r));
    expected[i] = static_cast<T>(total);
  }
  output.assign(of_ranks[me], untouched);
  coll::reduce_scatter_v(on, input, all.layout(), output, coll::sum{});
  expect_same<T>(output, expected, "reduce_scatter_v");
  std::vector<T> after = input;
  std::ranges::copy(expected, all.part(after, me).begin());
  coll::reduce_scatter_v(on, input, all.layout(), all.part(input, me), coll::sum{});
  expect_same<T>(input, after, "reduce_scatter_v in place");
}

inline void check_parts(team& on) {
  std::uint64_t salt = 100;
  for (const std::size_t most : {0U, 1U, 5U, 40U, 300U})
    for (const bool packed : {true, false}) {
      check_parts_of<float>(on, most, ++salt, packed);
      check_parts_of<bf16>(on, most, ++salt, packed);
    }
}

/// Memory of this process, of which only the pages that are touched exist.
class sparse_memory {
 public:
  explicit sparse_memory(std::size_t bytes)
      : bytes_{bytes},
        base_{::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)} {
    if (base_ == MAP_FAILED) test::fail("no sparse memory");
  }
  sparse_memory(const sparse_memory&) = delete;
  sparse_memory& operator=(const sparse_memory&) = delete;
  ~sparse_memory() { ::munmap(base_, bytes_); }
  [[nodiscard]] std::span<std::uint8_t> span() const {
    return {static_cast<std::uint8_t*>(base_), bytes_};
  }

 private:
  std::size_t bytes_;
  void* base_;
};

/// Parts that begin beyond 4 GiB, where an offset of 32 bits would end up elsewhere.
inline void check_far_parts(team& on) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const sparse_memory input{std::size_t{5} << 30U};
  const sparse_memory output{std::size_t{5} << 30U};
  std::vector<std::uint64_t> counts(n, 5000);
  std::vector<std::uint64_t> places(n);
  for (std::size_t r = 0; r < n; ++r) places[r] = (std::uint64_t{1} << 32U) + 7 + 10'000 * r;
  const auto part = [&](const sparse_memory& of, std::size_t r) {
    return of.span().subspan(places[r], counts[r]);
  };
  for (std::size_t r = 0; r < n; ++r) fill_part<std::uint8_t>(part(input, r), me, r, 50);
  coll::all_to_all_v(on, input.span(), {counts, places}, output.span(), {counts, places});
  for (std::size_t r = 0; r < n; ++r) {
    std::vector<std::uint8_t> expected(counts[r]);
    fill_part<std::uint8_t>(expected, r, me, 50);
    expect_same<std::uint8_t>(part(output, r), expected, "a part beyond 4 GiB");
  }
}

/// A few operations of many ranks.
inline void check_many_ranks(team& on) {
  namespace coll = peerbus::collective;
  check_reductions<float>(on, 3, 60, coll::sum{});
  check_reductions<bf16>(on, 200, 61, coll::sum{});
  check_parts_of<float>(on, 9, 62, true);
  check_parts_of<float>(on, 9, 63, false);
  std::vector<std::uint64_t> all(on.size());
  coll::all_gather(on, std::vector<std::uint64_t>{on.rank().index()}, all);
  for (std::size_t r = 0; r < all.size(); ++r) test::expect_equal(all[r], r, "a rank's number");
}

}  // namespace collective_suite
