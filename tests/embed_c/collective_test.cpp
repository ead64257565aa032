// SPDX-License-Identifier: MIT
#include <peerbus.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>

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

/// Checks the operations with parts of different sizes: rank r gives r x `unit` elements to rank 0,
/// (r + 1) x `unit` to rank 1 and so on.
void check_varied_moves(const group& on, peerbus_dtype dtype, std::uint64_t element,
                        std::uint64_t unit) {
  constexpr std::uint64_t gap = 3;
  std::vector<std::uint64_t> counts(on.size), starts(on.size), sent(on.size), received(on.size);
  bytes gathered;
  bytes with_gaps;
  bytes outgoing;
  bytes incoming;
  const auto byte_count = [&](const std::vector<std::uint64_t>& of, std::uint64_t r) {
    return of[r] * element;
  };
  for (std::uint64_t r = 0; r < on.size; ++r) {
    counts[r] = unit * r;
    starts[r] = with_gaps.size() / element;
    add(gathered, letters(r, 0, byte_count(counts, r)));
    add(with_gaps, letters(r, 0, byte_count(counts, r)));
    if (r + 1 < on.size) with_gaps.resize(with_gaps.size() + gap * element, 0xee);
    sent[r] = unit * (on.rank + r);
    received[r] = unit * (r + on.rank);
    add(outgoing, letters(on.rank, r, byte_count(sent, r)));
    add(incoming, letters(r, on.rank, byte_count(received, r)));
  }
  const std::uint64_t own_count = counts[on.rank];
  const bytes own = letters(on.rank, 0, byte_count(counts, on.rank));
  bytes all(gathered.size());
  ok(peerbus_all_gather_v(on.team, own.data(), all.data(), counts.data(), nullptr, dtype, 0),
     "all_gather_v");
  expect(all == gathered, "all_gather_v");
  all = bytes(with_gaps.size(), 0xee);
  ok(peerbus_all_gather_v(on.team, own.data(), all.data(), counts.data(), starts.data(), dtype, 0),
     "all_gather_v with displacements");
  expect(all == with_gaps, "all_gather_v with displacements");
  all = bytes(incoming.size());
  ok(peerbus_all_to_all_v(on.team, outgoing.data(), sent.data(), nullptr, all.data(),
                          received.data(), nullptr, dtype, 0),
     "all_to_all_v");
  expect(all == incoming, "all_to_all_v");

  for (std::uint64_t root = 0; root < on.size; ++root) {
    const bool is_root = on.rank == root;
    // Other ranks' arrays are not looked at.
    const std::uint64_t* const given = is_root ? counts.data() : nullptr;
    const std::uint64_t* const places = is_root ? starts.data() : nullptr;
    all = bytes(gathered.size(), 0xee);
    ok(peerbus_gather_v(on.team, own.data(), own_count, is_root ? all.data() : nullptr, given,
                        nullptr, dtype, root, 0),
       "gather_v");
    expect(all == (is_root ? gathered : bytes(gathered.size(), 0xee)), "gather_v");
    all = bytes(with_gaps.size(), 0xee);
    std::uint8_t* const part = all.data() + starts[on.rank] * element;
    std::copy(own.begin(), own.end(), part);
    ok(peerbus_gather_v(on.team, part, own_count, all.data(), given, places, dtype, root, 0),
       "gather_v in place");
    expect(!is_root || all == with_gaps, "gather_v in place, with displacements");

    bytes out(own.size(), 0xee);
    ok(peerbus_scatter_v(on.team, is_root ? gathered.data() : nullptr, given, nullptr, out.data(),
                         own_count, dtype, root, 0),
       "scatter_v");
    expect(out == own, "scatter_v");
    all = with_gaps;
    out = bytes(own.size(), 0xee);
    ok(peerbus_scatter_v(on.team, all.data(), given, places, is_root ? part : out.data(), own_count,
                         dtype, root, 0),
       "scatter_v in place");
    expect(is_root ? all == with_gaps : out == own, "scatter_v in place, with displacements");
  }
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

/// Checks `reduce_scatter_v` of `count` + r elements for each rank r, whose parts lie in the order
/// of ranks, or in the opposite order with gaps.
template <class T>
void check_varied_reduction(const group& on, peerbus_dtype dtype, peerbus_reduction reduction,
                            std::uint64_t count) {
  std::vector<std::uint64_t> counts(on.size), starts(on.size), places(on.size);
  std::uint64_t total = 0;
  for (std::uint64_t r = 0; r < on.size; ++r) {
    counts[r] = count + r;
    starts[r] = total;
    total += counts[r];
  }
  std::uint64_t end = 0;
  for (std::uint64_t r = on.size; r-- > 0; end += counts[r] + 2) places[r] = end;
  const auto given = [&](std::uint64_t i) { return number(on.rank, i); };
  for (const auto* const displacements : {&starts, &places}) {
    const bool is_default = displacements == &starts;
    const std::uint64_t first = (*displacements)[on.rank];
    const auto result = [&](std::uint64_t i) { return reduced(reduction, on.size, first + i); };
    elements<T> rows{end, given};
    elements<T> out{counts[on.rank]};
    ok(peerbus_reduce_scatter_v(on.team, rows.data(), counts.data(),
                                is_default ? nullptr : displacements->data(), out.data(), dtype,
                                reduction, 0),
       "reduce_scatter_v");
    expect(out == elements<T>{counts[on.rank], result}, "reduce_scatter_v of ", dtype, " by ",
           reduction);
    ok(peerbus_reduce_scatter_v(on.team, rows.data(), counts.data(), displacements->data(),
                                rows.data() + first, dtype, reduction, 0),
       "in place");
    const elements<T> in_place{end, [&](std::uint64_t i) {
                                 const bool is_own = i >= first && i < first + counts[on.rank];
                                 return is_own ? result(i - first) : number(on.rank, i);
                               }};
    expect(rows == in_place, "reduce_scatter_v in place");
  }
}

/// Checks `all_reduce_add` of `count` elements. The residual is what a rank more would give.
template <class T>
void check_add(const group& on, peerbus_dtype dtype, std::uint64_t count) {
  elements<T> own{count, [&](std::uint64_t i) { return number(on.rank, i); }};
  elements<T> residual{count, [&](std::uint64_t i) { return number(on.size, i); }};
  const elements<T> expected{count,
                             [&](std::uint64_t i) { return reduced(PEERBUS_SUM, on.size + 1, i); }};
  elements<T> out{count};
  ok(peerbus_all_reduce_add(on.team, own.data(), residual.data(), out.data(), count, dtype, 0),
     "all_reduce_add");
  expect(out == expected, "all_reduce_add of ", dtype);
  out = residual;
  ok(peerbus_all_reduce_add(on.team, own.data(), out.data(), out.data(), count, dtype, 0),
     "to the residual");
  expect(out == expected, "all_reduce_add to the residual");
  ok(peerbus_all_reduce_add(on.team, own.data(), residual.data(), own.data(), count, dtype, 0),
     "in place");
  expect(own == expected, "all_reduce_add in place");
}

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
    check_varied_reduction<T>(on, dtype, reduction, count);
  }
  check_add<T>(on, dtype, count);
}

constexpr std::uint64_t hidden = 128;

/// Tokens that every codec expresses exactly, and what codecs make of them.
struct coded_case {
  peerbus_dtype rows;
  std::int32_t codec;
  float scale;           ///< of each group, or of the token
  std::uint64_t scales;  ///< of a token
  std::uint64_t each;    ///< bytes of a scale
  float (*value)(std::uint64_t rank, std::uint64_t i);
};

/// Returns 1 to 127, with 127 in each token of 128: the codes of int8, whose scale is then 1.
float of_int8(std::uint64_t rank, std::uint64_t i) {
  return static_cast<float>((i * 11 + rank) % hidden == 0 ? 127 : (i * 11 + rank) % hidden);
}
/// Returns a power of two, with 256 in each token: 1.75 of it is a value of E4M3, and so is it.
float of_fp8(std::uint64_t rank, std::uint64_t i) {
  return static_cast<float>((1U << ((i + rank) % 9)));
}

/// Checks `all_gather_coded` of `count` tokens.
void check_coded(const group& on, std::uint64_t count) {
  // The factor from codes to values as docs/codecs.md has it. Codes are 1.75 x in the first case.
  constexpr float per_code = 256.0F * (1.0F / 448.0F);
  for (const coded_case& c :
       {coded_case{PEERBUS_DTYPE_BF16, PEERBUS_BF16, 1, 0, 0, of_fp8},
        coded_case{PEERBUS_DTYPE_I8, PEERBUS_INT8_PER_TOKEN, 1, 1, 4, of_int8},
        coded_case{PEERBUS_DTYPE_E4M3, PEERBUS_FP8_PER_128_F32, per_code, 1, 4, of_fp8},
        coded_case{PEERBUS_DTYPE_E4M3, PEERBUS_FP8_PER_128_ROUNDED, 1, 1, 4, of_fp8},
        coded_case{PEERBUS_DTYPE_E4M3, PEERBUS_FP8_PER_128_UE8M0, 1, 4, 1, of_fp8}}) {
    const float to_codes = c.codec == PEERBUS_FP8_PER_128_F32 ? 1.75F : 1;
    const std::uint64_t own_count = count * hidden;
    const std::uint64_t total = on.size * own_count;
    const auto value = [&](std::uint64_t i) {
      return to_codes * c.value(i / std::max<std::uint64_t>(own_count, 1), i) * c.scale;
    };
    const auto code = [&](std::uint64_t i) {
      return to_codes * c.value(i / std::max<std::uint64_t>(own_count, 1), i);
    };
    const std::uint64_t first = on.rank * own_count;
    elements<peerbus::bf16> own{own_count,
                                [&](std::uint64_t i) { return c.value(on.rank, first + i); }};
    elements<float> wide{total};
    ok(peerbus_all_gather_coded(on.team, c.codec, own.data(), count, hidden, wide.data(), nullptr,
                                PEERBUS_DTYPE_F32, 0),
       "all_gather_coded");
    expect(wide == elements<float>{total, value}, "codec ", c.codec, " to f32");
    elements<peerbus::bf16> narrow{total};
    if (own_count != 0) std::copy_n(own.data(), own_count, narrow.data() + first);
    ok(peerbus_all_gather_coded(on.team, c.codec, narrow.data() + first, count, hidden,
                                narrow.data(), nullptr, PEERBUS_DTYPE_BF16, 0),
       "all_gather_coded in place");
    expect(narrow == elements<peerbus::bf16>{total, value}, "codec ", c.codec, " to bf16");
    if (c.codec == PEERBUS_BF16) continue;

    std::vector<std::uint8_t> rows(total, 0xee);
    bytes scales(on.size * count * c.scales * c.each, 0xee);
    ok(peerbus_all_gather_coded(on.team, c.codec, own.data(), count, hidden, rows.data(),
                                scales.data(), c.rows, 0),
       "all_gather_coded to rows");
    for (std::uint64_t i = 0; i < total; ++i)
      expect_equal(c.codec == PEERBUS_INT8_PER_TOKEN
                       ? static_cast<float>(static_cast<std::int8_t>(rows[i]))
                       : static_cast<float>(peerbus::fp8_e4m3::from_bits(rows[i])),
                   code(i), "a code");
    for (std::uint64_t i = 0; i < on.size * count; ++i)
      if (c.each == 4) {
        float scale = 0;
        std::memcpy(&scale, scales.data() + 4 * i, sizeof scale);
        expect_equal(scale, c.scale, "a scale");
      } else {
        expect_equal(scales[4 * i], std::uint8_t{127}, "the exponent of 1");
      }
  }
  // What the caller has encoded travels as it is.
  const bytes codes = letters(on.rank, 0, count * 7);
  bytes of_all;
  for (std::uint64_t r = 0; r < on.size; ++r) add(of_all, letters(r, 0, count * 7));
  bytes out(of_all.size());
  ok(peerbus_all_gather_coded(on.team, PEERBUS_FP8_AS_GIVEN, codes.data(), count, 7, out.data(),
                              nullptr, PEERBUS_DTYPE_E4M3, 0),
     "all_gather_coded as given");
  expect(out == of_all, "all_gather_coded as given");
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
  for (const std::uint64_t unit : {1U, 5U}) check_varied_moves(on, PEERBUS_DTYPE_U8, 1, unit);
  check_varied_moves(on, PEERBUS_DTYPE_F32, 4, 7);
  for (const std::uint64_t count : {0U, 1U, 5U}) check_coded(on, count);

  // In several slices, and all_reduce in parts.
  peerbus_team_options options{};
  options.struct_bytes = sizeof options;
  options.scratch_bytes = 8192;
  options.one_shot_bytes = 64;
  const group narrow{comm, &options};
  check_moves(narrow, PEERBUS_DTYPE_I32, 4, 5000);
  check_reductions<float>(narrow, PEERBUS_DTYPE_F32, 5000);
  check_varied_moves(narrow, PEERBUS_DTYPE_I32, 4, 900);
  check_coded(narrow, 20);

  // bf16 is added in f32 and rounded once: 256 + 1 would be 256.
  peerbus::bf16 value{on.rank == 0 ? 256.0F : 1.0F};
  ok(peerbus_all_reduce(on.team, &value, &value, 1, PEERBUS_DTYPE_BF16, PEERBUS_SUM, 0), "bf16");
  const float sum = 255.0F + static_cast<float>(on.size);
  expect_equal(static_cast<float>(value), static_cast<float>(peerbus::bf16{sum}), "sum of bf16");
}

/// A handle of a team whose inputs lie in a window of its own.
class windowed {
 public:
  windowed(peerbus_comm* comm, const group& of, std::uint64_t size) {
    ok(peerbus_window_create(comm, size, 0, 0, &window), "window_create");
    ok(peerbus_team_in_window(of.team, window, &team), "team_in_window");
    part = static_cast<std::uint8_t*>(peerbus_window_part(window, of.rank));
  }
  windowed(const windowed&) = delete;
  windowed& operator=(const windowed&) = delete;
  ~windowed() {
    peerbus_window_destroy(&window);
    peerbus_team_destroy(&team);
  }

  peerbus_window* window = nullptr;
  peerbus_team* team = nullptr;
  std::uint8_t* part = nullptr;
};

/// Checks the operations with inputs of `row` bytes for each rank in a window, at an offset that
/// differs between ranks. Each input is changed as soon as its operation has returned.
void check_window_moves(peerbus_comm* comm, const group& on, std::uint64_t row) {
  const windowed in{comm, on, 2 * on.size * row + 16 * on.size};
  const peerbus_dtype u8 = PEERBUS_DTYPE_U8;
  std::uint8_t* const input = in.part + 16 * on.rank;
  std::uint8_t* const output = input + on.size * row;
  bytes of_all;
  bytes to_each;
  bytes from_each;
  bytes total;
  for (std::uint64_t r = 0; r < on.size; ++r) {
    add(of_all, letters(r, 0, row));
    add(to_each, letters(on.rank, r, row));
    add(from_each, letters(r, on.rank, row));
  }
  for (std::uint64_t i = 0; i < on.size * row; ++i) {
    unsigned sum = 0;
    for (std::uint64_t r = 0; r < on.size; ++r) sum += letter(r, i / row, i % row);
    total.push_back(static_cast<std::uint8_t>(sum));
  }
  const auto give = [&](const bytes& data) { std::copy(data.begin(), data.end(), input); };
  const auto own_row_of = [&](const bytes& all) {
    const auto* const first = all.data() + on.rank * row;
    return bytes(first, first + row);
  };
  const auto same = [&](peerbus_code code, const std::uint8_t* got, const bytes& expected,
                        std::string_view call) {
    ok(code, call);
    expect(std::equal(expected.begin(), expected.end(), got), call, " of a window, ", row,
           " bytes");
    std::fill_n(input, 2 * on.size * row, std::uint8_t{0xee});
  };

  give(letters(on.rank, 0, row));
  same(peerbus_all_gather(in.team, input, output, row, u8, 0), output, of_all, "all_gather");
  std::uint8_t* const own_row = output + on.rank * row;
  give(letters(on.rank, 0, row));
  std::copy_n(input, row, own_row);
  same(peerbus_all_gather(in.team, own_row, output, row, u8, 0), output, of_all, "all_gather");
  give(to_each);
  same(peerbus_all_to_all(in.team, input, output, row, u8, 0), output, from_each, "all_to_all");
  give(to_each);
  same(peerbus_all_to_all(in.team, input, input, row, u8, 0), input, from_each, "all_to_all");
  give(to_each);
  same(peerbus_all_reduce(in.team, input, input, on.size * row, u8, PEERBUS_SUM, 0), input, total,
       "all_reduce");
  bytes elsewhere(on.size * row);
  give(to_each);
  same(peerbus_all_reduce(in.team, input, elsewhere.data(), on.size * row, u8, PEERBUS_SUM, 0),
       elsewhere.data(), total, "all_reduce to other memory");
  give(to_each);
  same(peerbus_reduce_scatter(in.team, input, output, row, u8, PEERBUS_SUM, 0), output,
       own_row_of(total), "reduce_scatter");
  give(to_each);
  same(peerbus_reduce_scatter(in.team, input, input + on.rank * row, row, u8, PEERBUS_SUM, 0),
       input + on.rank * row, own_row_of(total), "reduce_scatter in place");

  const std::uint64_t root = on.size - 1;
  const bool is_root = on.rank == root;
  give(to_each);
  same(peerbus_broadcast(in.team, input, row, u8, root, 0), input, letters(root, 0, row),
       "broadcast");
  give(letters(on.rank, 0, row));
  same(peerbus_gather(in.team, input, output, row, u8, root, 0), output, is_root ? of_all : bytes{},
       "gather");
  give(to_each);
  same(peerbus_scatter(in.team, is_root ? input : nullptr, output, row, u8, root, 0), output,
       letters(root, on.rank, row), "scatter");
  give(to_each);
  same(peerbus_reduce(in.team, input, output, on.size * row, u8, PEERBUS_SUM, root, 0), output,
       is_root ? total : bytes{}, "reduce");

  const std::vector<std::uint64_t> counts(on.size, row);
  give(letters(on.rank, 0, row));
  same(peerbus_all_gather_v(in.team, input, output, counts.data(), nullptr, u8, 0), output, of_all,
       "all_gather_v");
  give(to_each);
  same(peerbus_all_to_all_v(in.team, input, counts.data(), nullptr, output, counts.data(), nullptr,
                            u8, 0),
       output, from_each, "all_to_all_v");
  give(to_each);
  same(peerbus_reduce_scatter_v(in.team, input, counts.data(), nullptr, output, u8, PEERBUS_SUM, 0),
       output, own_row_of(total), "reduce_scatter_v");
  give(letters(on.rank, 0, row));
  same(peerbus_gather_v(in.team, input, row, output, counts.data(), nullptr, u8, root, 0), output,
       is_root ? of_all : bytes{}, "gather_v");
  give(to_each);
  same(peerbus_scatter_v(in.team, input, counts.data(), nullptr, output, row, u8, root, 0), output,
       letters(root, on.rank, row), "scatter_v");

  // What has no form in a window takes operands anywhere.
  std::uint8_t one = 1;
  ok(peerbus_all_reduce_add(in.team, &one, &one, &one, 1, u8, 0), "all_reduce_add");
  expect_equal(one, static_cast<std::uint8_t>(on.size + 1), "all_reduce_add");
}

/// Checks inputs in windows, staged and where they lie, and what is refused of them.
void check_windows(peerbus_comm* comm) {
  peerbus_team_options options{};
  options.struct_bytes = sizeof options;
  options.window_bytes = 1;
  const group always{comm, &options};
  for (const std::uint64_t row : {0U, 1U, 3000U}) check_window_moves(comm, always, row);
  options.window_bytes = 1000;
  options.scratch_bytes = 16384;
  const group by_size{comm, &options};
  check_window_moves(comm, by_size, 40);
  check_window_moves(comm, by_size, 20001);

  // Nobody reads a window that is destroyed: the handle keeps it.
  const group on{comm};
  windowed in{comm, on, 64};
  peerbus_window_destroy(&in.window);
  std::fill_n(in.part, 4, static_cast<std::uint8_t>(on.rank + 1));
  ok(peerbus_all_reduce(in.team, in.part, in.part, 4, PEERBUS_DTYPE_U8, PEERBUS_SUM, 0),
     "a destroyed window");
  expect_equal(unsigned{in.part[3]}, static_cast<unsigned>(on.size * (on.size + 1) / 2), "the sum");

  peerbus_comm* alone = nullptr;
  const std::uint64_t self = on.rank;
  ok(peerbus_comm_subgroup(comm, &self, 1, nullptr, &alone), "comm_subgroup");
  {
    const group single{alone};
    const windowed of_single{alone, single, 8};
    peerbus_team* none = in.team;
    fails(peerbus_team_in_window(on.team, of_single.window, &none), PEERBUS_INVALID_ARGUMENT,
          "the window is of another communicator than the team");
    expect(none == nullptr, "no handle");
    fails(peerbus_team_in_window(on.team, nullptr, &none), PEERBUS_INVALID_ARGUMENT,
          "window is NULL");
    fails(peerbus_team_in_window(nullptr, of_single.window, &none), PEERBUS_INVALID_ARGUMENT,
          "team is NULL");
    fails(peerbus_team_in_window(on.team, of_single.window, nullptr), PEERBUS_INVALID_ARGUMENT,
          "in_window is NULL");
  }
  ok(peerbus_comm_destroy(&alone), "comm_destroy");
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
  const auto all_gather_v = [&](const std::uint64_t* given, const std::uint64_t* displacements) {
    return peerbus_all_gather_v(on.team, in.data(), out.data(), given, displacements, f32, 0);
  };
  // Rank 1 is the root, whose arrays alone are looked at.
  const auto gather_v = [&](const std::uint64_t* given, const std::uint64_t* displacements) {
    return peerbus_gather_v(on.team, in.data(), 1, out.data(), given, displacements, f32, 1, 0);
  };
  const auto scatter_v = [&](const std::uint64_t* given, const std::uint64_t* displacements) {
    return peerbus_scatter_v(on.team, in.data(), given, displacements, out.data(), 1, f32, 1, 0);
  };
  const auto reduce_scatter_v = [&](const std::uint64_t* given,
                                    const std::uint64_t* displacements) {
    return peerbus_reduce_scatter_v(on.team, in.data(), given, displacements, out.data(), f32,
                                    PEERBUS_SUM, 0);
  };
  const auto check_parts = [&](const auto& call) {
    refused_by_1(on, call(bad ? nullptr : counts.data(), nullptr), "counts that are NULL");
    refused_by_1(on, call(counts.data(), bad ? far.data() : nullptr), "more elements than memory");
    refused_by_1(on, call(bad ? far.data() : counts.data(), nullptr), "more elements than memory");
  };
  check_parts(all_gather_v);
  check_parts(gather_v);
  check_parts(scatter_v);
  check_parts(reduce_scatter_v);
  refused_by_1(on, all_gather_v(counts.data(), bad ? same.data() : nullptr), "overlap");
  refused_by_1(on, gather_v(counts.data(), same.data()), "overlap");
  refused_by_1(
      on,
      peerbus_reduce_scatter_v(on.team, in.data(), counts.data(), bad ? same.data() : nullptr,
                               bad ? in.data() : out.data(), f32, PEERBUS_SUM, 0),
      "overlap");
  refused_by_1(on,
               peerbus_gather_v(on.team, in.data(), 1, out.data(), counts.data(), nullptr, f32,
                                bad ? on.size : 0, 0),
               "expected a rank below");
  refused_by_1(on,
               peerbus_scatter_v(on.team, in.data(), counts.data(), nullptr, out.data(), 1, f32,
                                 bad ? UINT64_MAX : 0, 0),
               "expected a rank below");
  refused_by_1(on,
               peerbus_gather_v(on.team, bad ? nullptr : in.data(), 1, out.data(), counts.data(),
                                nullptr, f32, 0, 0),
               "an input that is null but 1 elements long");
  refused_by_1(on,
               peerbus_scatter_v(on.team, in.data(), counts.data(), nullptr,
                                 bad ? nullptr : out.data(), 1, f32, 0, 0),
               "an output that is null but 1 elements long");
  refused_by_1(on,
               peerbus_gather_v(on.team, in.data(), bad ? huge : 1, out.data(), counts.data(),
                                nullptr, f32, 0, 0),
               "more elements than memory");
  refused_by_1(on,
               peerbus_reduce_scatter_v(on.team, in.data(), counts.data(), nullptr, out.data(),
                                        bad ? PEERBUS_DTYPE_BOOL : f32, PEERBUS_SUM, 0),
               "of type bool, expected f32");

  const auto add = [&](const float* residual, float* output, std::uint64_t count) {
    return peerbus_all_reduce_add(on.team, in.data(), residual, output, count, f32, 0);
  };
  refused_by_1(on, add(bad ? nullptr : out.data(), out.data(), 2),
               "a residual that is null but 2 elements long");
  refused_by_1(on, add(bad ? out.data() + 1 : out.data(), out.data(), 2),
               "a residual that overlaps another operand in part");
  refused_by_1(on, add(out.data(), out.data(), bad ? huge : 2), "more elements than memory");

  std::array<peerbus::bf16, 256> tokens{};
  std::array<std::uint8_t, 4096> rows{};
  const auto gather_coded = [&](std::int32_t codec, std::uint64_t given, std::uint64_t width,
                                peerbus_dtype dtype, void* scales) {
    return peerbus_all_gather_coded(on.team, codec, tokens.data(), given, width, rows.data(),
                                    scales, dtype, 0);
  };
  constexpr peerbus_dtype e4m3 = PEERBUS_DTYPE_E4M3;
  constexpr std::int32_t fp8 = PEERBUS_FP8_PER_128_ROUNDED;
  std::array<float, 16> scales{};
  refused_by_1(on, gather_coded(bad ? 6 : fp8, 2, 128, e4m3, scales.data()),
               "a codec of 6, expected 0 to 5");
  refused_by_1(on, gather_coded(fp8, 2, bad ? 64 : 128, e4m3, scales.data()),
               "hidden 64, expected a positive multiple of 128");
  refused_by_1(on, gather_coded(fp8, 2, bad ? 0 : 128, e4m3, scales.data()), "hidden 0");
  refused_by_1(on, gather_coded(fp8, bad ? huge : 2, 128, e4m3, scales.data()),
               "more elements than memory");
  refused_by_1(on, gather_coded(fp8, 2, bad ? huge : 128, e4m3, scales.data()),
               "more elements than memory");
  refused_by_1(on, gather_coded(fp8, 2, 128, bad ? PEERBUS_DTYPE_I8 : e4m3, scales.data()),
               "an output of i8, expected f32, bf16 or e4m3");
  refused_by_1(on, gather_coded(PEERBUS_BF16, 2, 128, bad ? e4m3 : PEERBUS_DTYPE_BF16, nullptr),
               "an output of e4m3, expected f32 or bf16");
  refused_by_1(on, gather_coded(fp8, 2, 128, e4m3, bad ? nullptr : scales.data()),
               "scales that are null");
  refused_by_1(on, gather_coded(fp8, 2, 128, f32, bad ? scales.data() : nullptr),
               "scales beside an output that is decoded");
  refused_by_1(on,
               peerbus_all_gather_coded(on.team, fp8, bad ? rows.data() + 2049 : rows.data() + 2048,
                                        2, 128, rows.data(), nullptr, PEERBUS_DTYPE_BF16, 0),
               "tokens not aligned to 2 bytes");

  {
    const windowed in_window{comm, on, 64};
    auto* const part = reinterpret_cast<float*>(in_window.part);
    const auto reduce_in = [&](peerbus_team* team, float* data, std::uint64_t count) {
      return peerbus_all_reduce(team, data, data, count, f32, PEERBUS_SUM, 0);
    };
    refused_by_1(on, reduce_in(in_window.team, bad ? out.data() : part, 4),
                 "an input outside the window");
    refused_by_1(on, reduce_in(in_window.team, bad ? part + 1 : part, 16),
                 "an input outside the window");
    refused_by_1(on, reduce_in(in_window.team, bad ? nullptr : part, 4),
                 "an input that is null but 4 elements long");
    bool all_near = true;  // On rank 2 of three, too: it is alone on its host.
    for (std::uint64_t peer = 0; peer < peerbus_comm_size(comm); ++peer)
      all_near = all_near && peerbus_comm_is_near(comm, peer) != 0;
    const auto reduce_elsewhere = [&](peerbus_team* team, float* data, std::string_view text) {
      const peerbus_code code = reduce_in(team, data, 4);
      if (all_near)  // Peers load the operands.
        fails(code, PEERBUS_MISMATCH, text);
      else  // They are staged, wherever they lie.
        ok(code, "operands of different windows");
    };
    reduce_elsewhere(bad ? on.team : in_window.team, part,
                     "rank 0 called all_reduce of 4 x f32 by sum in place in window ");
    const windowed in_other{comm, on, 64};
    auto* const other = reinterpret_cast<float*>(in_other.part);
    reduce_elsewhere(bad ? in_other.team : in_window.team, bad ? other : part,
                     "rank 1 called all_reduce of 4 x f32 by sum in place in window ");
  }

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
  fails(all_gather_v(others.data(), nullptr), PEERBUS_MISMATCH, "all_gather_v");
  std::vector<std::uint64_t> more_from_0 = counts;
  more_from_0[0] = 2;
  fails(gather_v(more_from_0.data(), nullptr), PEERBUS_MISMATCH,
        "rank 0 sends 1 elements to rank 1, which expects 2");
  fails(scatter_v(more_from_0.data(), nullptr), PEERBUS_MISMATCH,
        "rank 1 sends 2 elements to rank 0, which expects 1");
  fails(reduce_scatter_v(others.data(), nullptr), PEERBUS_MISMATCH,
        "rank 1 sends 2 elements to rank 0, which expects 1");
  fails(add(out.data(), out.data(), bad ? 3 : 4), PEERBUS_MISMATCH,
        "rank 1 called all_reduce of 3 x f32 by sum+add");
  fails(gather_coded(bad ? PEERBUS_FP8_PER_128_F32 : fp8, 2, 128, e4m3, scales.data()),
        PEERBUS_MISMATCH, "all_gather_coded of 2 x fp8_e4m3");
  fails(gather_coded(fp8, bad ? 1 : 2, 128, e4m3, scales.data()), PEERBUS_MISMATCH,
        "all_gather_coded of 1 x fp8_e4m3");

  expect(out == untouched, "a refused operation wrote output");
  expect(std::ranges::all_of(rows, [](std::uint8_t byte) { return byte == 0; }),
         "a refused operation wrote rows");
  in.fill(1);
  ok(peerbus_all_reduce(on.team, in.data(), out.data(), 16, f32, PEERBUS_SUM, 0), "after that");
  expect_equal(out[15], static_cast<float>(on.size), "the sum");
}

/// A handle of a team whose operations do their first half.
class halved {
 public:
  explicit halved(peerbus_team* of) { ok(peerbus_team_in_halves(of, &team), "team_in_halves"); }
  halved(const halved&) = delete;
  halved& operator=(const halved&) = delete;
  ~halved() { peerbus_team_destroy(&team); }

  peerbus_team* team = nullptr;
};

/// Calls `call(team, output)` whole and, on some ranks, in halves, and compares what they give.
template <class Call>
void check_in_halves(peerbus_team* whole, std::uint64_t rank, const bytes& before, Call call,
                     std::string_view what) {
  static std::uint8_t other = 0;
  bytes expected = before;
  ok(call(whole, expected.data()), what);
  bytes out = before;
  const halved half{whole};
  if (rank % 2 == 1) {
    ok(call(whole, out.data()), what);
  } else {
    ok(call(half.team, out.data()), what);
    expect(out == before, what);  // No output is written between the halves.
    fails(peerbus_broadcast(whole, &other, 1, PEERBUS_DTYPE_U8, 0, 0), PEERBUS_INVALID_ARGUMENT,
          "is not finished");
    ok(peerbus_team_finish(half.team, 0), what);
  }
  expect(out == expected, what);
  fails(peerbus_team_finish(half.team, 0), PEERBUS_INVALID_ARGUMENT,
        "finish of a handle without a collective operation");
}

/// Checks operations in halves beside ranks that call whole ones.
void check_halves(peerbus_comm* comm) {
  const group on{comm};
  const std::uint64_t n = on.size;
  const std::uint64_t count = 12;
  const bytes own = letters(on.rank, 0, 4 * count);
  bytes rows;
  for (std::uint64_t r = 0; r < n; ++r) add(rows, letters(on.rank, r, 4 * count));
  std::vector<std::uint64_t> counts(n, count);
  const bytes one(4 * count);
  const bytes all(n * 4 * count);
  const peerbus_dtype i32 = PEERBUS_DTYPE_I32;
  const auto check = [&](const bytes& before, auto call, std::string_view what) {
    check_in_halves(on.team, on.rank, before, call, what);
  };
  check(
      all,
      [&](auto* team, auto* out) {
        return peerbus_all_gather(team, own.data(), out, count, i32, 0);
      },
      "all_gather");
  check(
      own, [&](auto* team, auto* out) { return peerbus_broadcast(team, out, count, i32, 0, 0); },
      "broadcast of what all have");
  check(
      one,
      [&](auto* team, auto* out) {
        return peerbus_all_reduce(team, own.data(), out, count, i32, PEERBUS_MAXIMUM, 0);
      },
      "all_reduce");
  check(
      one,
      [&](auto* team, auto* out) {
        return peerbus_all_reduce_add(team, own.data(), rows.data(), out, count, i32, 0);
      },
      "all_reduce_add");
  check(
      all,
      [&](auto* team, auto* out) {
        return peerbus_all_to_all_v(team, rows.data(), counts.data(), nullptr, out, counts.data(),
                                    nullptr, i32, 0);
      },
      "all_to_all_v");
  check(
      one,
      [&](auto* team, auto* out) {
        return peerbus_reduce_scatter_v(team, rows.data(), counts.data(), nullptr, out, i32,
                                        PEERBUS_SUM, 0);
      },
      "reduce_scatter_v");
  alignas(4) const std::array<std::uint16_t, 32> tokens{0x3f80, 0x4000};
  std::vector<float> decoded(n * tokens.size());
  const halved half{on.team};
  ok(peerbus_all_gather_coded(half.team, PEERBUS_INT8_PER_TOKEN, tokens.data(), 1, tokens.size(),
                              decoded.data(), nullptr, PEERBUS_DTYPE_F32, 0),
     "all_gather_coded");
  expect(decoded.back() == 0 && decoded.front() == 0, "all_gather_coded between its halves");
  ok(peerbus_team_finish(half.team, 0), "all_gather_coded");
  expect(decoded.front() > 0.9F && decoded.front() < 1.1F, "all_gather_coded");

  // What is wrong with the arguments is said by the second half, on all ranks.
  float* const bad = on.rank == 0 ? nullptr : decoded.data();
  ok(peerbus_all_reduce(half.team, bad, decoded.data(), 4, PEERBUS_DTYPE_F32, PEERBUS_SUM, 0),
     "the first half of a bad call");
  fails(peerbus_team_finish(half.team, 0),
        on.rank == 0 ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED, "an input that is null");

  // A window, and an operation that is given up.
  const windowed in{comm, on, 64};
  const halved in_window{in.team};
  auto* const values = reinterpret_cast<std::int32_t*>(in.part);
  values[0] = 5;
  ok(peerbus_all_reduce(in_window.team, values, values, 1, i32, PEERBUS_SUM, 0), "in a window");
  ok(peerbus_team_finish(in_window.team, 0), "in a window");
  expect_equal(values[0], static_cast<std::int32_t>(5 * n), "a sum in a window");
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  // Over planes a first half may find that another rank has given up and left already.
  if (std::string_view{peerbus_comm_transport(comm)} == "planes") return;
  {
    const halved given_up{on.team};
    ok(peerbus_all_reduce(given_up.team, values, values, 1, i32, PEERBUS_SUM, 0), "a first half");
  }
  fails(peerbus_comm_barrier(comm, 0), PEERBUS_POISONED, "was started and never finished");
}

/// Checks the choice of algorithms. `file` is the path of a table of costs.
void check_algorithms(peerbus_comm* comm, const char* file) {
  const auto options_by = [](std::int32_t algorithm, const char* costs) {
    peerbus_team_options options{};
    options.struct_bytes = sizeof options;
    options.algorithm = algorithm;
    options.costs_file = costs;
    return options;
  };
  const auto chosen_by = [](const group& on, std::int32_t operation) {
    std::int32_t chosen = -1;
    ok(peerbus_team_algorithm(on.team, operation, 1 << 20, 0, &chosen), "team_algorithm");
    return chosen;
  };
  const auto takes = [&](const peerbus_team_options& options, std::int32_t expected) {
    const group on{comm, &options};
    expect_equal(chosen_by(on, PEERBUS_OF_ALL_REDUCE), expected, "the algorithm of all_reduce");
    // Over memory that peers load, the others have one.
    for (const std::int32_t operation :
         {PEERBUS_OF_ALL_GATHER, PEERBUS_OF_REDUCE_SCATTER, PEERBUS_OF_BROADCAST})
      expect_equal(chosen_by(on, operation), std::int32_t{PEERBUS_ONE_SHOT}, "another algorithm");
    std::int32_t value = 3;
    ok(peerbus_all_reduce(on.team, &value, &value, 1, PEERBUS_DTYPE_I32, PEERBUS_SUM, 0), "sum");
    expect_equal(value, static_cast<std::int32_t>(3 * on.size), "a sum");
    std::int32_t none = 0;
    fails(peerbus_team_algorithm(on.team, 4, 1, 0, &none), PEERBUS_INVALID_ARGUMENT,
          "an operation of 4, expected 0 to 3");
    fails(peerbus_team_algorithm(on.team, 0, 1, 0, nullptr), PEERBUS_INVALID_ARGUMENT,
          "algorithm is NULL");
  };
  takes(options_by(PEERBUS_ONE_SHOT, nullptr), PEERBUS_ONE_SHOT);
  takes(options_by(PEERBUS_TWO_SHOTS, nullptr), PEERBUS_TWO_SHOTS);
  takes(options_by(PEERBUS_AUTOMATIC, nullptr), PEERBUS_TWO_SHOTS);
  takes(options_by(PEERBUS_AUTOMATIC, file), PEERBUS_ONE_SHOT);  // A byte costs nothing in it.

  // Bad options of one rank end the call on all ranks.
  const bool is_bad = peerbus_comm_rank(comm) == 1;
  peerbus_team* none = nullptr;
  auto options = options_by(is_bad ? 6 : 0, nullptr);
  fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_INVALID_ARGUMENT,
        "an algorithm of 6, expected 0 to 5");
  options = options_by(0, is_bad ? "/nowhere/costs" : file);
  fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_SYSTEM, "/nowhere/costs");
  options = options_by(0, is_bad ? nullptr : file);
  fails(peerbus_team_create(comm, &options, 0, &none), PEERBUS_MISMATCH, "ranks disagree");
}

}  // namespace

TEST_CASE("collective operations through C") {
  for (const std::uint64_t n : {1U, 2U, 3U})
    for (const kind how : {kind::threads, kind::processes, kind::hosts})
      CHECK(embed_c::run(n, how, check_operations) == 0);
}

TEST_CASE("collective operations in halves through C") {
  for (const std::uint64_t n : {1U, 2U, 3U})
    CHECK(embed_c::run(n, kind::threads, check_halves) == 0);
  CHECK(embed_c::run(2, kind::processes, check_halves) == 0);
  CHECK(embed_c::run(3, kind::hosts, check_halves) == 0);
}

TEST_CASE("the choice of algorithms through C") {
  const std::string path = "collective_test_costs." + std::to_string(::getpid());
  std::ofstream{path} << "peerbus costs 1\ncollective.loads.byte_ns 0\n"
                         "collective.loads.reduce_byte_ns 0\ncollective.loads.round_us 100\n";
  const int status = embed_c::run(
      3, kind::threads, [&](peerbus_comm* comm) { check_algorithms(comm, path.c_str()); });
  std::remove(path.c_str());
  CHECK(status == 0);
}

TEST_CASE("inputs of collective operations in a window") {
  for (const std::uint64_t n : {1U, 2U, 3U})
    for (const kind how : {kind::threads, kind::processes})
      CHECK(embed_c::run(n, how, check_windows) == 0);
}

TEST_CASE("bad input of a rank ends an operation on all ranks") {
  for (const std::uint64_t n : {2U, 3U}) CHECK(embed_c::run(n, kind::threads, check_refusals) == 0);
  CHECK(embed_c::run(2, kind::processes, check_refusals) == 0);
  CHECK(embed_c::run(3, kind::hosts, check_refusals) == 0);
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
          options.struct_bytes = offsetof(peerbus_team_options, window_bytes);
          options.window_bytes = UINT64_MAX;  // Not read: the first version had no such member.
          ok(peerbus_team_create(comm, &options, 0, &none), "with the first version's options");
          peerbus_team_destroy(&none);
          options = {};
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
