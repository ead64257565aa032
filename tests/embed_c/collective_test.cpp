// SPDX-License-Identifier: MIT
#include <peerbus.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

#include "embed_c/ranks_of_c.hpp"

namespace collective_test {

using embed_c::fails;
using embed_c::kind;
using embed_c::ok;
using embed_c::second;
using test::expect;
using test::expect_equal;

namespace {

/// A team of a test, with the numbers of its ranks.
class group {
 public:
  explicit group(peerbus_comm* comm, const peerbus_team_options* options = nullptr)
      : rank{peerbus_comm_rank(comm)}, size{peerbus_comm_size(comm)} {
    ok(peerbus_team_create(comm, options, 0, &team), "team_create");
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() { peerbus_team_destroy(&team); }

  std::uint64_t rank;
  std::uint64_t size;
  peerbus_team* team = nullptr;
};

using bytes = std::vector<std::uint8_t>;

/// Returns byte `i` of what `from` sends to `to`.
std::uint8_t letter(std::uint64_t from, std::uint64_t to, std::uint64_t i) {
  return static_cast<std::uint8_t>(1 + 31 * from + 7 * to + i + i / 251);
}
/// Returns what `from` sends to `to`.
bytes letters(std::uint64_t from, std::uint64_t to, std::uint64_t count) {
  bytes made(count);
  for (std::uint64_t i = 0; i < count; ++i) made[i] = letter(from, to, i);
  return made;
}
/// Appends `part`.
void add(bytes& all, const bytes& part) { all.insert(all.end(), part.begin(), part.end()); }

/// Checks the operations that move elements of `dtype`.
void check_moves(const group& on, peerbus_dtype dtype, std::uint64_t element, std::uint64_t count) {
  const std::uint64_t row = element * count;
  const bytes own = letters(on.rank, 0, row);
  bytes of_all;     // Row r is what rank r gives to all.
  bytes to_each;    // Row r is what this rank gives to rank r.
  bytes from_each;  // Row r is what rank r gives to this rank.
  for (std::uint64_t r = 0; r < on.size; ++r) {
    add(of_all, letters(r, 0, row));
    add(to_each, letters(on.rank, r, row));
    add(from_each, letters(r, on.rank, row));
  }
  const bytes empty(of_all.size(), 0xee);
  const auto row_of = [&](bytes& all, std::uint64_t r) { return all.data() + r * row; };

  bytes all = empty;
  ok(peerbus_all_gather(on.team, own.data(), all.data(), count, dtype, 0), "all_gather");
  expect(all == of_all, "all_gather");
  all = empty;
  std::copy(own.begin(), own.end(), row_of(all, on.rank));
  ok(peerbus_all_gather(on.team, row_of(all, on.rank), all.data(), count, dtype, 0), "in place");
  expect(all == of_all, "all_gather in place");

  all = empty;
  ok(peerbus_all_to_all(on.team, to_each.data(), all.data(), count, dtype, 0), "all_to_all");
  expect(all == from_each, "all_to_all");
  all = to_each;
  ok(peerbus_all_to_all(on.team, all.data(), all.data(), count, dtype, 0), "all_to_all in place");
  expect(all == from_each, "all_to_all in place");

  for (std::uint64_t root = 0; root < on.size; ++root) {
    const bool is_root = on.rank == root;
    bytes data = own;
    ok(peerbus_broadcast(on.team, data.data(), count, dtype, root, 0), "broadcast");
    expect(data == letters(root, 0, row), "broadcast");

    all = empty;
    ok(peerbus_gather(on.team, own.data(), is_root ? all.data() : nullptr, count, dtype, root, 0),
       "gather");
    expect(all == (is_root ? of_all : empty), "gather");

    data = bytes(row, 0xee);
    ok(peerbus_scatter(on.team, is_root ? to_each.data() : nullptr, data.data(), count, dtype, root,
                       0),
       "scatter");
    expect(data == letters(root, on.rank, row), "scatter");
  }
}

/// Checks the operations with parts of different sizes: rank r gives r elements to rank 0, r + 1 to
/// rank 1 and so on.
void check_varied_moves(const group& on) {
  constexpr std::uint64_t gap = 3;
  std::vector<std::uint64_t> counts(on.size), starts(on.size), sent(on.size), received(on.size);
  bytes gathered;
  bytes with_gaps;
  bytes outgoing;
  bytes incoming;
  for (std::uint64_t r = 0; r < on.size; ++r) {
    counts[r] = 5 * r;
    starts[r] = with_gaps.size();
    add(gathered, letters(r, 0, counts[r]));
    add(with_gaps, letters(r, 0, counts[r]));
    if (r + 1 < on.size) with_gaps.resize(with_gaps.size() + gap, 0xee);
    sent[r] = on.rank + r;
    received[r] = r + on.rank;
    add(outgoing, letters(on.rank, r, sent[r]));
    add(incoming, letters(r, on.rank, received[r]));
  }
  const bytes own = letters(on.rank, 0, counts[on.rank]);
  bytes all(gathered.size());
  ok(peerbus_all_gather_v(on.team, own.data(), all.data(), counts.data(), nullptr, PEERBUS_DTYPE_U8,
                          0),
     "all_gather_v");
  expect(all == gathered, "all_gather_v");
  all = bytes(with_gaps.size(), 0xee);
  ok(peerbus_all_gather_v(on.team, own.data(), all.data(), counts.data(), starts.data(),
                          PEERBUS_DTYPE_U8, 0),
     "all_gather_v with displacements");
  expect(all == with_gaps, "all_gather_v with displacements");
  all = bytes(incoming.size());
  ok(peerbus_all_to_all_v(on.team, outgoing.data(), sent.data(), nullptr, all.data(),
                          received.data(), nullptr, PEERBUS_DTYPE_U8, 0),
     "all_to_all_v");
  expect(all == incoming, "all_to_all_v");
}

/// Returns element `i` of `rank`. Sums and products of three of them fit into every type.
double number(std::uint64_t rank, std::uint64_t i) {
  return static_cast<double>(1 + (3 * rank + i) % 5);
}

double reduced(peerbus_reduction reduction, std::uint64_t ranks, std::uint64_t i) {
  double result = number(0, i);
  for (std::uint64_t r = 1; r < ranks; ++r) {
    const double next = number(r, i);
    switch (reduction) {
      case PEERBUS_SUM: result += next; break;
      case PEERBUS_PRODUCT: result *= next; break;
      case PEERBUS_MINIMUM: result = std::min(result, next); break;
      default: result = std::max(result, next); break;
    }
  }
  return result;
}

/// Elements of a type, compared by their bits.
template <class T>
class elements {
 public:
  explicit elements(std::uint64_t count) : values_(count, T(99.0F)) {}  // No result is 99.
  template <class Number>
  elements(std::uint64_t count, Number&& at) : values_(count) {
    for (std::uint64_t i = 0; i < count; ++i) values_[i] = T(static_cast<float>(at(i)));
  }
  [[nodiscard]] T* data() { return values_.data(); }
  friend bool operator==(const elements& a, const elements& b) {
    return a.values_.size() == b.values_.size() &&
           (a.values_.empty() ||
            std::memcmp(a.values_.data(), b.values_.data(), a.values_.size() * sizeof(T)) == 0);
  }

 private:
  std::vector<T> values_;
};

/// Checks the operations that reduce `count` elements of `T` for each rank.
template <class T>
void check_reductions(const group& on, peerbus_dtype dtype, std::uint64_t count) {
  for (const peerbus_reduction reduction :
       {PEERBUS_SUM, PEERBUS_PRODUCT, PEERBUS_MINIMUM, PEERBUS_MAXIMUM}) {
    const auto given = [&](std::uint64_t i) { return number(on.rank, i); };
    const auto result = [&](std::uint64_t i) { return reduced(reduction, on.size, i); };
    const std::uint64_t first = on.rank * count;
    elements<T> own{count, given};
    elements<T> out{count};
    const elements<T> untouched = out;
    const elements<T> expected{count, result};
    ok(peerbus_all_reduce(on.team, own.data(), out.data(), count, dtype, reduction, 0),
       "all_reduce");
    expect(out == expected, "all_reduce of ", dtype, " by ", reduction);
    ok(peerbus_all_reduce(on.team, own.data(), own.data(), count, dtype, reduction, 0), "in place");
    expect(own == expected, "all_reduce in place");

    const std::uint64_t root = on.size - 1;
    own = elements<T>{count, given};
    out = elements<T>{count};
    ok(peerbus_reduce(on.team, own.data(), out.data(), count, dtype, reduction, root, 0), "reduce");
    expect(out == (on.rank == root ? expected : untouched), "reduce of ", dtype);

    elements<T> rows{on.size * count, given};
    const elements<T> part{count, [&](std::uint64_t i) { return result(first + i); }};
    ok(peerbus_reduce_scatter(on.team, rows.data(), out.data(), count, dtype, reduction, 0),
       "reduce_scatter");
    expect(out == part, "reduce_scatter of ", dtype, " by ", reduction);
    ok(peerbus_reduce_scatter(on.team, rows.data(), rows.data() + first, count, dtype, reduction,
                              0),
       "in place");
    const elements<T> in_place{on.size * count, [&](std::uint64_t i) {
                                 const bool is_own = i >= first && i < first + count;
                                 return is_own ? result(i) : number(on.rank, i);
                               }};
    expect(rows == in_place, "reduce_scatter in place");
  }
}

void check_operations(peerbus_comm* comm) {
  const group on{comm};
  for (const std::uint64_t count : {0U, 1U, 1000U}) {
    check_moves(on, PEERBUS_DTYPE_U8, 1, count);
    check_moves(on, PEERBUS_DTYPE_BF16, 2, count);
    check_moves(on, PEERBUS_DTYPE_F32, 4, count);
    check_moves(on, PEERBUS_DTYPE_I64, 8, count);
    check_moves(on, PEERBUS_DTYPE(5, 128), 16, count);  // DLPack's complex128.
    check_reductions<float>(on, PEERBUS_DTYPE_F32, count);
    check_reductions<double>(on, PEERBUS_DTYPE_F64, count);
    check_reductions<peerbus::bf16>(on, PEERBUS_DTYPE_BF16, count);
    check_reductions<std::int32_t>(on, PEERBUS_DTYPE_I32, count);
    check_reductions<std::int64_t>(on, PEERBUS_DTYPE_I64, count);
    check_reductions<std::uint8_t>(on, PEERBUS_DTYPE_U8, count);
  }
  check_varied_moves(on);

  // In several slices, and all_reduce in parts.
  peerbus_team_options options{};
  options.struct_bytes = sizeof options;
  options.scratch_bytes = 8192;
  options.one_shot_bytes = 64;
  const group narrow{comm, &options};
  check_moves(narrow, PEERBUS_DTYPE_I32, 4, 5000);
  check_reductions<float>(narrow, PEERBUS_DTYPE_F32, 5000);

  // bf16 is added in f32 and rounded once: 256 + 1 would be 256.
  peerbus::bf16 value{on.rank == 0 ? 256.0F : 1.0F};
  ok(peerbus_all_reduce(on.team, &value, &value, 1, PEERBUS_DTYPE_BF16, PEERBUS_SUM, 0), "bf16");
  const float sum = 255.0F + static_cast<float>(on.size);
  expect_equal(static_cast<float>(value), static_cast<float>(peerbus::bf16{sum}), "sum of bf16");
}

/// Requires that a call failed on all ranks with a text that has `fragment`: that it was refused
/// here, or by rank 1.
void refused_by_1(const group& on, peerbus_code code, std::string_view fragment) {
  const bool is_refuser = on.rank == 1;
  fails(code, is_refuser ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED, fragment);
  if (!is_refuser) fails(code, PEERBUS_REFUSED, "rank 1 was given");
}

/// Checks what makes all ranks fail, and that the team works after it.
void check_refusals(peerbus_comm* comm) {
  const group on{comm};
  const bool bad = on.rank == 1;
  std::array<float, 16> in{};
  std::array<float, 16> out{};
  out.fill(-1);
  const auto untouched = out;
  constexpr peerbus_dtype f32 = PEERBUS_DTYPE_F32;
  constexpr std::uint64_t huge = UINT64_MAX / 4;

  refused_by_1(on, peerbus_all_gather(on.team, bad ? nullptr : in.data(), out.data(), 2, f32, 0),
               "an input that is null but 2 elements long");
  refused_by_1(on, peerbus_all_to_all(on.team, in.data(), bad ? nullptr : out.data(), 1, f32, 0),
               "an output that is null");
  refused_by_1(on, peerbus_broadcast(on.team, out.data(), 2, f32, bad ? on.size : 0, 0),
               "expected a rank below");
  refused_by_1(on, peerbus_gather(on.team, in.data(), out.data(), 2, f32, bad ? UINT64_MAX : 0, 0),
               "expected a rank below");
  refused_by_1(on, peerbus_scatter(on.team, in.data(), out.data(), 2, f32, bad ? huge : 1, 0),
               "expected a rank below");
  refused_by_1(
      on, peerbus_reduce(on.team, in.data(), out.data(), bad ? huge : 2, f32, PEERBUS_SUM, 0, 0),
      "more elements than memory");
  refused_by_1(on, peerbus_all_gather(on.team, in.data(), out.data(), 2, bad ? 512 + 7 : f32, 0),
               "a dtype of 519");
  refused_by_1(on, peerbus_all_gather(on.team, in.data(), out.data(), 2, bad ? -f32 : f32, 0),
               "a dtype of -544");
  refused_by_1(
      on,
      peerbus_all_gather(on.team, in.data(), out.data(), 2, bad ? PEERBUS_DTYPE_REFUSED : f32, 0),
      "its caller had found wrong");
  refused_by_1(on,
               peerbus_all_reduce(on.team, in.data(), out.data(), 2, f32, bad ? 4 : PEERBUS_SUM, 0),
               "a reduction of 4, expected 0 to 3");
  refused_by_1(on,
               peerbus_reduce_scatter(on.team, in.data(), out.data(), 2,
                                      bad ? PEERBUS_DTYPE_F16 : f32, PEERBUS_SUM, 0),
               "of type f16, expected f32");
  refused_by_1(on,
               peerbus_all_reduce(on.team, in.data(), out.data(), 2,
                                  bad ? PEERBUS_DTYPE(5, 64) : f32, PEERBUS_SUM, 0),
               "of type DLPack's code 5 with 64 bits");
  refused_by_1(on,
               peerbus_all_reduce(on.team, in.data(), bad ? in.data() + 1 : out.data(), 2, f32,
                                  PEERBUS_SUM, 0),
               "overlap");
  const std::vector<std::uint64_t> counts(on.size, 1);
  const std::vector<std::uint64_t> same(on.size, 0);
  const std::vector<std::uint64_t> far(on.size, UINT64_MAX);
  const auto gather_v = [&](const std::uint64_t* given, const std::uint64_t* displacements) {
    return peerbus_all_gather_v(on.team, in.data(), out.data(), given, displacements, f32, 0);
  };
  refused_by_1(on, gather_v(bad ? nullptr : counts.data(), nullptr), "counts that are NULL");
  refused_by_1(on, gather_v(counts.data(), bad ? same.data() : nullptr), "overlap");
  refused_by_1(on, gather_v(counts.data(), bad ? far.data() : nullptr),
               "more elements than memory");

  // What no rank can see alone.
  fails(peerbus_all_reduce(on.team, in.data(), out.data(), bad ? 3 : 4, f32, PEERBUS_SUM, 0),
        PEERBUS_MISMATCH, "rank 1 called all_reduce of 3 x f32 by sum");
  fails(peerbus_all_reduce(on.team, in.data(), out.data(), 4, bad ? PEERBUS_DTYPE_I32 : f32,
                           PEERBUS_SUM, 0),
        PEERBUS_MISMATCH, "rank 1 called all_reduce of 4 x i32 by sum");
  fails(peerbus_all_reduce(on.team, in.data(), out.data(), 4, f32,
                           bad ? PEERBUS_MAXIMUM : PEERBUS_SUM, 0),
        PEERBUS_MISMATCH, "by max");
  fails(peerbus_broadcast(on.team, out.data(), 4, f32, bad ? 1 : 0, 0), PEERBUS_MISMATCH,
        "with root 1");
  const std::vector<std::uint64_t> others(on.size, bad ? 2 : 1);
  fails(gather_v(others.data(), nullptr), PEERBUS_MISMATCH, "all_gather_v");

  expect(out == untouched, "a refused operation wrote output");
  in.fill(1);
  ok(peerbus_all_reduce(on.team, in.data(), out.data(), 16, f32, PEERBUS_SUM, 0), "after that");
  expect_equal(out[15], static_cast<float>(on.size), "the sum");
}

}  // namespace

TEST_CASE("collective operations through C") {
  for (const std::uint64_t n : {1U, 2U, 3U})
    for (const kind how : {kind::threads, kind::processes})
      CHECK(embed_c::run(n, how, check_operations) == 0);
}

TEST_CASE("bad input of a rank ends an operation on all ranks") {
  for (const std::uint64_t n : {2U, 3U}) CHECK(embed_c::run(n, kind::threads, check_refusals) == 0);
  CHECK(embed_c::run(2, kind::processes, check_refusals) == 0);
}

TEST_CASE("teams that cannot be made or used") {
  peerbus_team* team = nullptr;
  std::uint8_t byte = 0;
  fails(peerbus_team_create(nullptr, nullptr, 0, &team), PEERBUS_INVALID_ARGUMENT,
        "communicator is NULL");
  fails(peerbus_broadcast(nullptr, &byte, 1, PEERBUS_DTYPE_U8, 0, 0), PEERBUS_INVALID_ARGUMENT,
        "team is NULL");
  peerbus_team_destroy(nullptr);
  peerbus_team_destroy(&team);
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_team* none = nullptr;
          fails(peerbus_team_create(comm, nullptr, 0, nullptr), PEERBUS_INVALID_ARGUMENT,
                "team is NULL");
          peerbus_team_options options{};
          fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_INVALID_ARGUMENT,
                "options.struct_bytes is 0");
          options.struct_bytes = sizeof options;
          options.scratch_bytes = 1;
          fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_INVALID_ARGUMENT, "scratch");
          options.scratch_bytes = peerbus_comm_rank(comm) == 0 ? 8192 : 16384;
          fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_MISMATCH, "");
          expect(none == nullptr, "no team");
        }) == 0);
}

TEST_CASE("an operation that a rank does not come to") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          const group on{comm};
          std::uint8_t byte = 0;
          if (on.rank == 1) return;
          const peerbus_code code =
              peerbus_broadcast(on.team, &byte, 1, PEERBUS_DTYPE_U8, 0, second / 20);
          expect(code == PEERBUS_TIMED_OUT || code == PEERBUS_PEER_DEAD, "returned ", code);
          fails(peerbus_broadcast(on.team, &byte, 1, PEERBUS_DTYPE_U8, 0, 0), PEERBUS_POISONED, "");
        }) == 0);
}

TEST_CASE("a team keeps its communicator, and a child by fork can use neither") {
  peerbus_place place{};
  place.struct_bytes = sizeof place;
  place.size = 1;
  place.port = 29875;
  peerbus_comm* comm = nullptr;
  REQUIRE(peerbus_comm_at(&place, nullptr, &comm) == PEERBUS_OK);
  peerbus_team* team = nullptr;
  REQUIRE(peerbus_team_create(comm, nullptr, 0, &team) == PEERBUS_OK);
  REQUIRE(peerbus_comm_destroy(&comm) == PEERBUS_OK);
  std::int32_t value = 3;
  const auto add_up = [&] {
    return peerbus_all_reduce(team, &value, &value, 1, PEERBUS_DTYPE_I32, PEERBUS_SUM, 0);
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(add_up() == PEERBUS_INVALID_ARGUMENT ? 0 : 1);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(add_up() == PEERBUS_OK);
  CHECK(value == 3);
  peerbus_team_destroy(&team);
  CHECK(team == nullptr);
}

}  // namespace collective_test
