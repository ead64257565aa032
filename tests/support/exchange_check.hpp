// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/row_run.hpp>
#include <peerbus/moe/token_index.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/bytes.hpp"
#include "support/layout_oracle.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace test {

/// What all ranks put into one dispatch; every rank knows all of it.
struct scenario {
  oracle::shape shape;
  std::vector<oracle::input> inputs;
  bool narrow_ids = false;
  std::array<std::size_t, peerbus::moe::max_attachments> attachments{};  ///< bytes per token
  std::uint64_t seed = 0;                                                ///< of what travels beside
  std::size_t note_bytes = 0;
  std::size_t output_attachment = 0;
};

/// What the layout and the place of outputs promise beyond rows in order.
struct promises {
  oracle::expert_major rule{};
  bool zero_gaps = false;
  bool untouched_gaps = false;
  bool outputs_together = true;
  std::size_t slots = 0;  ///< of a source rank in a block; 0: rows follow each other
};

inline promises promises_of(const peerbus::moe::compact& layout, const oracle::shape&,
                            std::size_t) {
  return {{layout.alignment, 0}, layout.zero_gaps};
}
inline promises promises_of(const peerbus::moe::padded&, const oracle::shape& shape,
                            std::size_t max_tokens) {
  return {{1, shape.ranks * max_tokens}, false, true};
}
template <class Layout>
  requires peerbus::moe::layout_by_rank<Layout> || peerbus::moe::slot_layout<Layout> ||
           peerbus::moe::automatic_layout<Layout>
promises promises_of(const Layout&, const oracle::shape&, std::size_t) {
  return {};
}

/// What lies where rows may come to lie before they do.
inline constexpr std::byte junk{0xa5};

std::uint64_t hash(std::uint64_t before, std::span<const std::byte> bytes);

namespace detail {
/// Makes a text of `parts`.
template <class... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}
/// Compares byte by byte and fails at the first that differs.
void compare_bytes(std::span<const std::byte> given, std::span<const std::byte> expected,
                   const std::string& what);
/// Compares value by value and fails at the first that differs. Two NaNs are equal.
void compare_values(std::span<const float> given, std::span<const float> expected,
                    const std::string& what);
/// Fails at the first byte that is not `expected`.
void compare_gap(std::span<const std::byte> gap, std::byte expected, const std::string& what);
}  // namespace detail

/// Compares bit by bit and names the first element that differs. The text of `what` is only made
/// then, which matters: these checks are most of what many tests do.
template <class T, class... What>
void expect_same_bytes(std::span<const T> given, std::span<const std::byte> expected,
                       const What&... what) {
  if (!equal_bytes(std::as_bytes(given), expected))
    detail::compare_bytes(std::as_bytes(given), expected, detail::join(what...));
}

/// Compares decoded values, which are equal if both are not numbers.
template <class... What>
void expect_same_values(std::span<const float> given, std::span<const float> expected,
                        const What&... what) {
  if (!equal_bytes(std::as_bytes(given), std::as_bytes(expected)))
    detail::compare_values(given, expected, detail::join(what...));
}

/// Checks the bytes that lie behind the last row of a block.
template <class... What>
void expect_gap(std::span<const std::byte> gap, std::byte expected, const What&... what) {
  if (!all_bytes_are(gap, expected)) detail::compare_gap(gap, expected, detail::join(what...));
}

/// Checks consecutive rows, and what travels with them, against `expected`.
/// Returns: `hashed` and all of it hashed.
template <class Codec>
std::uint64_t check_run(const peerbus::moe::row_run<Codec>& block,
                        std::span<const oracle::placed> expected, const scenario& from,
                        const promises& promised, std::string_view name, std::uint64_t hashed) {
  const std::size_t hidden = from.shape.hidden;
  expect_equal(block.hidden(), hidden, name, ", hidden");
  expect_equal(block.count(), expected.size(), name, ", rows");
  const std::size_t scale_bytes = Codec::scale_bytes(hidden);
  std::vector<float> values(hidden);
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const auto [source, token, slot] = expected[row];
    expect_equal(block.origin(row).rank.index(), source, name, ", row ", row, ", source rank");
    expect_equal(block.origin(row).token, token, name, ", row ", row, ", token");
    expect_equal(block.origin(row).slot, slot, name, ", row ", row, ", slot");
    const auto wanted =
        oracle::codec_of<Codec>::encode(oracle::token_of(from.shape, from.inputs[source], token));
    expect_same_bytes(block.row(row), wanted.bytes, name, ", row ", row, ", payload");
    expect_same_bytes(block.template scales<std::byte>().subspan(row * scale_bytes, scale_bytes),
                      wanted.scales, name, ", row ", row, ", scales");
    block.decode(row, values);
    expect_same_values(values, wanted.values, name, ", row ", row);
    hashed = hash(hash(hashed, std::as_bytes(block.row(row))), wanted.scales);
    for (std::size_t a = 0; a < from.attachments.size(); ++a) {
      const std::size_t bytes = from.attachments[a];
      const auto all = block.attachment(a);
      expect_equal(all.size(), expected.size() * bytes, name, ", row ", row,
                   ", size of attachment ", a);
      expect_same_bytes(all.subspan(row * bytes, bytes),
                        oracle::attachment_of(source, token, a, bytes, from.seed), name, ", row ",
                        row, ", attachment ", a);
    }
  }
  if (promised.outputs_together)
    expect_equal(block.outputs().size(), expected.size() * hidden, name, ", outputs");
  else
    expect_error(peerbus::errc::unsupported, {"outputs_at::home", "output(i)"},
                 [&] { static_cast<void>(block.outputs()); });
  return hashed;
}

/// Checks the rows of one block, what travels with them, and the gap behind them.
/// Returns: as `check_run`.
template <class Codec>
std::uint64_t check_block(const peerbus::moe::row_block<Codec>& block,
                          std::span<const oracle::placed> expected, const scenario& from,
                          const promises& promised, std::string_view name, std::uint64_t hashed) {
  hashed = check_run<Codec>(block, expected, from, promised, name, hashed);
  const std::size_t row_bytes = Codec::row_bytes(from.shape.hidden);
  const std::size_t scale_bytes = Codec::scale_bytes(from.shape.hidden);
  std::vector<std::size_t> by_source(from.shape.ranks);
  for (const oracle::placed& row : expected) ++by_source[row.rank];
  for (std::size_t r = 0; r < by_source.size(); ++r)
    expect_equal(block.count_from(peerbus::rank_id{r}), by_source[r], name, ", rows from rank ", r);
  if (promised.zero_gaps || promised.untouched_gaps) {
    const std::byte left = promised.zero_gaps ? std::byte{0} : junk;
    const std::size_t gap = block.padded_count() - block.count();
    const auto* const rows = reinterpret_cast<const std::byte*>(block.rows().data());
    const auto* const scales = block.template scales<std::byte>().data();
    expect_gap({rows + block.count() * row_bytes, gap * row_bytes}, left, name);
    expect_gap({scales + block.count() * scale_bytes, gap * scale_bytes}, left, name, ", scales");
    for (std::size_t a = 0; promised.zero_gaps && a < from.attachments.size(); ++a)
      if (const std::size_t bytes = from.attachments[a]; bytes != 0)
        expect_gap({block.attachment(a).data() + block.count() * bytes, gap * bytes}, left, name,
                   ", attachment ", a);
  }
  return hashed;
}

/// Checks that the batch's arrays are whole, and that `block` lies where its first row says.
template <class Codec>
void check_columns(const peerbus::moe::batch_columns<Codec>& columns,
                   const peerbus::moe::row_run<Codec>& block, const scenario& from,
                   std::size_t row_capacity) {
  const auto expect_column = [&](auto column, auto of_block, std::size_t row_bytes,
                                 std::string_view what) {
    expect_equal(column.size_bytes(), row_capacity * row_bytes, "bytes of column ", what);
    if (row_bytes != 0)
      expect(std::as_bytes(column).data() + block.first_row() * row_bytes ==
                 std::as_bytes(of_block).data(),
             "a block to lie in column ", what);
  };
  const std::size_t hidden = from.shape.hidden;
  expect_column(columns.rows(), block.rows(), Codec::row_bytes(hidden), "rows");
  expect_column(columns.template scales<std::byte>(), block.template scales<std::byte>(),
                Codec::scale_bytes(hidden), "scales");
  for (std::size_t a = 0; a < from.attachments.size(); ++a)
    expect_column(columns.attachment(a), block.attachment(a), from.attachments[a], "attachment");
}

template <class Codec>
void check_columns_of(const peerbus::moe::received<Codec>& got, const scenario& from,
                      const peerbus::moe::memory_map& map) {
  for (const auto& expert : got.experts()) {
    check_columns<Codec>(got.columns(), expert, from, map.row_capacity);
    if (!map.outputs_home)
      expect(got.columns().outputs().data() + expert.first_row() * map.hidden ==
                 expert.outputs().data(),
             "outputs to lie in their column");
  }
  expect_equal(got.columns().outputs().size(), map.outputs_home ? 0 : map.row_capacity * map.hidden,
               "values of column outputs");
  expect(got.columns().weights().empty() && got.columns().experts().empty(), "no slots");
}
template <class Codec>
void check_columns_of(const peerbus::moe::received_tokens<Codec>& got, const scenario& from,
                      const peerbus::moe::memory_map& map) {
  const auto columns = got.columns();
  check_columns<Codec>(columns, got, from, map.row_capacity);
  expect_equal(columns.experts().size(), map.row_capacity * from.shape.top_k, "slots' experts");
  expect_equal(columns.weights().size(), map.row_capacity * from.shape.top_k, "slots' weights");
  if (got.count() != 0)
    expect(columns.experts().data() == got.experts(0).data() &&
               columns.weights().data() == got.weights(0).data(),
           "slots to lie in their columns");
}

template <class Codec>
void check_columns_of(const peerbus::moe::received_slots<Codec>& got, const scenario& from,
                      const peerbus::moe::memory_map& map) {
  for (std::size_t e = 0; e < got.local_experts(); ++e)
    for (std::size_t r = 0; r < from.shape.ranks; ++r)
      check_columns<Codec>(got.columns(), got.rows_from(e, peerbus::rank_id{r}), from,
                           map.row_capacity);
}
template <class Codec>
void check_columns_of(const peerbus::moe::received_token_slots<Codec>& got, const scenario& from,
                      const peerbus::moe::memory_map& map) {
  const bool has_slots = map.outbox_bytes != 0;
  expect_equal(got.all().count(), has_slots ? map.row_capacity : got.rows(), "slots of all ranks");
  check_columns<Codec>(got.columns(), got.all(), from, map.row_capacity);
  for (std::size_t r = 0; r < from.shape.ranks; ++r)
    check_columns<Codec>(got.columns(), got.rows_from(peerbus::rank_id{r}), from, map.row_capacity);
}

/// Overwrites all that a caller may. Combine must not notice.
template <class Codec>
void overwrite(const peerbus::moe::batch_columns<Codec>& columns) {
  const auto fill = [](auto column) { fill_bytes(std::as_writable_bytes(column), junk); };
  fill(columns.rows());
  fill(columns.scales());
  for (std::size_t a = 0; a < peerbus::moe::max_attachments; ++a) fill(columns.attachment(a));
  fill(columns.experts());
  fill(columns.weights());
}

/// Checks all that a dispatch brought to `rank`. Returns: a hash of it.
template <class Codec>
std::uint64_t check_received(const peerbus::moe::received<Codec>& got, const scenario& from,
                             peerbus::rank_id rank, const promises& promised = {}) {
  std::uint64_t hashed = 0xcbf29ce484222325U;
  const auto blocks = oracle::blocks_of(from.shape, from.inputs, rank.index(), promised.rule);
  expect_equal(got.experts().size(), blocks.size(), "number of local experts");
  std::size_t total = 0;
  std::size_t end = 0;
  const std::size_t row_bytes = Codec::row_bytes(from.shape.hidden);
  const auto* const all = reinterpret_cast<const std::byte*>(got.all_rows().data());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto& expert = got.experts()[i];
    const oracle::expert_block& wanted = blocks[i];
    const std::string name = "expert " + std::to_string(wanted.expert);
    expect_equal(expert.id(), wanted.expert, "id of local expert ", i);
    expect_equal(expert.first_row(), wanted.first_row, name, ", first row");
    expect_equal(expert.padded_count(), wanted.padded, name, ", rows and gap");
    hashed = check_block<Codec>(expert, wanted.rows, from, promised, name, hashed);
    expect(reinterpret_cast<const std::byte*>(expert.rows().data()) ==
               all + wanted.first_row * row_bytes,
           name, " to begin at its first row of all_rows()");
    total += wanted.rows.size();
    end = wanted.first_row + wanted.padded;
  }
  expect_equal(got.rows(), total, "rows of all local experts");
  expect_equal(got.all_rows().size_bytes(), end * row_bytes, "bytes of all_rows()");
  return hashed;
}

/// The rows of `expected` that came from rank `source`, which are consecutive.
inline std::span<const oracle::placed> rows_from(std::span<const oracle::placed> expected,
                                                 std::size_t source) {
  const auto is_of = [source](const oracle::placed& row) { return row.rank == source; };
  const auto begin = std::find_if(expected.begin(), expected.end(), is_of);
  const auto end = std::find_if_not(begin, expected.end(), is_of);
  return expected.subspan(static_cast<std::size_t>(begin - expected.begin()),
                          static_cast<std::size_t>(end - begin));
}

/// The same, by expert and source rank. The hash is that of the other layouts by expert.
template <class Codec>
std::uint64_t check_received(const peerbus::moe::received_slots<Codec>& got, const scenario& from,
                             peerbus::rank_id rank, const promises& promised = {}) {
  std::uint64_t hashed = 0xcbf29ce484222325U;
  const auto blocks = oracle::blocks_of(from.shape, from.inputs, rank.index(), promised.rule);
  expect_equal(got.local_experts(), blocks.size(), "number of local experts");
  expect_equal(got.ranks(), from.shape.ranks, "number of ranks");
  std::size_t total = 0;
  for (std::size_t e = 0; e < blocks.size(); ++e) {
    const oracle::expert_block& wanted = blocks[e];
    expect_equal(got.expert_id(e), wanted.expert, "id of local expert ", e);
    std::size_t next = wanted.first_row;
    for (std::size_t r = 0; r < from.shape.ranks; ++r) {
      const auto rows = got.rows_from(e, peerbus::rank_id{r});
      const auto expected = rows_from(wanted.rows, r);
      const std::string name =
          "expert " + std::to_string(wanted.expert) + ", from rank " + std::to_string(r);
      const std::size_t pair = e * from.shape.ranks + r;
      expect_equal(rows.first_row(), promised.slots == 0 ? next : pair * promised.slots, name,
                   ", first row");
      next += expected.size();
      expect_equal(got.counts()[pair], expected.size(), name, ", count");
      hashed = check_run<Codec>(rows, expected, from, promised, name, hashed);
    }
    total += wanted.rows.size();
  }
  expect_equal(got.rows(), total, "rows of all local experts");
  return hashed;
}

/// Checks what travels beside the rows at a rank, in layouts by rank. `numbers` has the number of
/// each row of `wanted` among all rows of the rank.
template <class Codec>
void check_token_index(const peerbus::moe::token_index<Codec>& got, const scenario& from,
                       peerbus::rank_id rank, const std::vector<oracle::token_at_rank>& wanted,
                       const std::vector<std::size_t>& numbers) {
  const auto owners = oracle::owners(from.shape);
  const auto local =
      static_cast<std::size_t>(std::count(owners.begin(), owners.end(), rank.index()));
  expect_equal(got.local_experts(), local, "number of local experts");
  if (local != 0)
    expect_equal(got.expert_id(0),
                 static_cast<std::size_t>(std::find(owners.begin(), owners.end(), rank.index()) -
                                          owners.begin()),
                 "number of local expert 0");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    expect(std::ranges::equal(got.experts(numbers[i]), wanted[i].experts), "expert ids of row ", i);
    expect(std::ranges::equal(got.weights(numbers[i]), wanted[i].weights), "weights of row ", i);
  }
  for (std::size_t e = 0; e < local; ++e) {
    std::vector<peerbus::moe::row_use> uses;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      for (std::uint32_t k = 0; k < from.shape.top_k; ++k)
        if (wanted[i].experts[k] == static_cast<std::int32_t>(e))
          uses.push_back({static_cast<std::uint32_t>(numbers[i]), k});
    expect(std::ranges::equal(got.uses_of(e), uses), "uses of local expert ", e);
  }
}

/// The same, by rank, from each source rank. The hash is that of the rank-major layout.
template <class Codec>
std::uint64_t check_received(const peerbus::moe::received_token_slots<Codec>& got,
                             const scenario& from, peerbus::rank_id rank,
                             const promises& promised = {}) {
  const auto wanted = oracle::tokens_at(from.shape, from.inputs, rank.index());
  std::vector<oracle::placed> all;
  for (const auto& row : wanted) all.push_back(row.from);
  std::uint64_t hashed = 0xcbf29ce484222325U;
  std::vector<std::size_t> numbers;
  std::size_t next = 0;
  for (std::size_t r = 0; r < from.shape.ranks; ++r) {
    const auto rows = got.rows_from(peerbus::rank_id{r});
    const auto expected = rows_from(all, r);
    const std::string name = "tokens of rank " + std::to_string(r);
    const std::size_t first = promised.slots == 0 ? next : r * promised.slots;
    expect_equal(rows.first_row(), first, name, ", first row");
    next += expected.size();
    expect_equal(got.counts()[r], expected.size(), name, ", count");
    hashed = check_run<Codec>(rows, expected, from, promised, name, hashed);
    for (std::size_t i = 0; i < expected.size(); ++i) numbers.push_back(first + i);
  }
  expect_equal(got.rows(), all.size(), "rows");
  check_token_index<Codec>(got, from, rank, wanted, numbers);
  return hashed;
}

/// The same, rank-major.
template <class Codec>
std::uint64_t check_received(const peerbus::moe::received_tokens<Codec>& got, const scenario& from,
                             peerbus::rank_id rank, const promises& promised = {}) {
  const auto wanted = oracle::tokens_at(from.shape, from.inputs, rank.index());
  std::vector<oracle::placed> rows;
  for (const auto& row : wanted) rows.push_back(row.from);
  const std::uint64_t hashed =
      check_block<Codec>(got, rows, from, promised, "tokens of this rank", 0xcbf29ce484222325U);
  expect_equal(got.first_row(), 0U, "first row");
  expect_equal(got.padded_count(), rows.size(), "rows and gap");
  std::vector<std::size_t> numbers(rows.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  check_token_index<Codec>(got, from, rank, wanted, numbers);
  return hashed;
}

template <class Codec>
void run_expert(std::size_t expert, const peerbus::moe::row_run<Codec>& rows) {
  std::vector<float> values(rows.hidden());
  for (std::size_t row = 0; row < rows.count(); ++row) {
    rows.decode(row, values);
    oracle::apply(expert, values, rows.output(row));
  }
}

/// What each expert makes of its rows.
template <class Codec>
void run_experts(const peerbus::moe::received<Codec>& got) {
  for (const auto& expert : got.experts()) run_expert<Codec>(expert.id(), expert);
}
template <class Codec>
void run_experts(const peerbus::moe::received_slots<Codec>& got) {
  for (std::size_t e = 0; e < got.local_experts(); ++e)
    for (std::size_t r = 0; r < got.ranks(); ++r)
      run_expert<Codec>(got.expert_id(e), got.rows_from(e, peerbus::rank_id{r}));
}

/// What this rank's experts make of consecutive rows together, weighted, in order of slots.
template <class Codec>
void run_together(const peerbus::moe::row_run<Codec>& rows,
                  const peerbus::moe::token_index<Codec>& index) {
  std::vector<float> values(rows.hidden());
  for (std::size_t row = 0; row < rows.count(); ++row) {
    rows.decode(row, values);
    const auto experts = index.experts(rows.first_row() + row);
    const auto weights = index.weights(rows.first_row() + row);
    std::vector<float> sums(rows.hidden());
    for (std::size_t k = 0; k < experts.size(); ++k)
      if (experts[k] != -1)
        oracle::add_outputs(index.expert_id(static_cast<std::size_t>(experts[k])), weights[k],
                            values, sums);
    oracle::round(sums, rows.output(row));
  }
}
template <class Codec>
void run_experts(const peerbus::moe::received_tokens<Codec>& got) {
  run_together<Codec>(got, got);
}
template <class Codec>
void run_experts(const peerbus::moe::received_token_slots<Codec>& got) {
  for (std::size_t r = 0; r < got.ranks(); ++r)
    run_together<Codec>(got.rows_from(peerbus::rank_id{r}), got);
}

/// Whether a rank lets output attachments go home.
bool attaches(const scenario& from, std::size_t rank);
/// What goes home beside the output of a token's slot.
std::vector<std::byte> output_attachment_of(const scenario& from, std::size_t home,
                                            std::size_t token, std::size_t slot);

template <class Codec>
void attach_outputs(const peerbus::moe::row_run<Codec>& rows, const scenario& from) {
  for (std::size_t row = 0; row < rows.count(); ++row) {
    const auto [home, token, slot] = rows.origin(row);
    const auto place = rows.output_attachment(row);
    expect_equal(place.size(), from.output_attachment, "bytes of an output attachment");
    std::ranges::copy(output_attachment_of(from, home.index(), token, slot), place.begin());
  }
}
template <class Codec>
void attach_outputs(const peerbus::moe::received<Codec>& got, const scenario& from) {
  for (const auto& expert : got.experts()) attach_outputs<Codec>(expert, from);
}
template <class Codec>
void attach_outputs(const peerbus::moe::received_slots<Codec>& got, const scenario& from) {
  for (std::size_t e = 0; e < got.local_experts(); ++e)
    for (std::size_t r = 0; r < got.ranks(); ++r)
      attach_outputs<Codec>(got.rows_from(e, peerbus::rank_id{r}), from);
}
template <class Codec>
void attach_outputs(const peerbus::moe::received_token_slots<Codec>& got, const scenario& from) {
  for (std::size_t r = 0; r < got.ranks(); ++r)
    attach_outputs<Codec>(got.rows_from(peerbus::rank_id{r}), from);
}

/// The rank that each copy of a token goes to, in order; none for slots of -1.
std::vector<std::size_t> ranks_of_copies(const scenario& from, const oracle::input& mine,
                                         std::size_t token, bool by_rank);

/// Checks what came home beside the outputs of `rank`'s tokens.
template <class Exchange>
void check_returned(Exchange& moe, peerbus::moe::ticket combined, const scenario& from,
                    std::size_t rank, bool by_rank) {
  for (std::size_t r = 0; r < from.shape.ranks; ++r)
    expect_equal(moe.attached_by(combined, peerbus::rank_id{r}), attaches(from, r), "whether rank ",
                 r, " attaches");
  const oracle::input& mine = from.inputs[rank];
  for (std::size_t t = 0; t < mine.count; ++t) {
    const auto copies = ranks_of_copies(from, mine, t, by_rank);
    for (std::size_t copy = 0; copy < copies.size(); ++copy)
      if (copies[copy] < from.shape.ranks && attaches(from, copies[copy]))
        expect_same_bytes(moe.returned_attachment(combined, t, copy),
                          output_attachment_of(from, rank, t, copy), "attachment of token ", t,
                          ", copy ", copy);
  }
}

std::uint64_t check_combined(std::span<const peerbus::bf16> out,
                             std::span<const peerbus::bf16> expected, std::size_t hidden,
                             std::uint64_t hashed);

/// The rank's attachments, as a caller would hold them: [tokens, bytes] each.
std::array<std::vector<std::byte>, peerbus::moe::max_attachments> attached_by(const scenario& from,
                                                                              std::size_t rank);
/// The rank's note; some ranks give none.
std::vector<std::byte> note_of(const scenario& from, std::size_t rank);

template <peerbus::transport Transport, peerbus::token_codec Codec, peerbus::moe::row_layout Layout>
auto dispatch(peerbus::moe::exchange<Transport, Codec, Layout>& moe, const scenario& from,
              peerbus::rank_id rank) {
  const oracle::input& mine = from.inputs[rank.index()];
  const auto attached = attached_by(from, rank.index());
  peerbus::moe::dispatch_options with;
  std::copy(attached.begin(), attached.end(), with.attachments.begin());
  const auto note = note_of(from, rank.index());
  with.note = note;
  if (!from.narrow_ids) return moe.dispatch(mine.tokens, {mine.experts, mine.weights}, with);
  // Gone on return: the routing is read during dispatch only.
  const std::vector<std::int32_t> narrow(mine.experts.begin(), mine.experts.end());
  return moe.dispatch(mine.tokens, {narrow, mine.weights}, with);
}

/// What combine must give to the rank that put `mine` in.
template <class Codec, class Layout>
std::vector<peerbus::bf16> expected_of(const oracle::shape& of, const oracle::input& mine) {
  if constexpr (peerbus::moe::layout_by_rank<Layout>)
    return oracle::combined_by_rank<Codec>(of, mine);
  else
    return oracle::combined<Codec>(of, mine);
}

/// Dispatch, experts, combine, everything checked; `layout` is that of the exchange.
/// Returns: a hash of all that came.
template <peerbus::transport Transport, peerbus::token_codec Codec, peerbus::moe::row_layout Layout>
std::uint64_t check_round(peerbus::moe::exchange<Transport, Codec, Layout>& moe,
                          const scenario& from, peerbus::rank_id rank, const Layout& layout = {}) {
  promises promised = promises_of(layout, from.shape, moe.config().max_tokens);
  const bool in_slots = moe.config().protocol == peerbus::moe::dispatch_protocol::one_phase;
  promised.slots = in_slots ? moe.config().max_tokens : 0;
  promised.outputs_together = peerbus::reach_of(moe.memory().bus()) != peerbus::peer_reach::all ||
                              moe.config().outputs == peerbus::moe::outputs_at::expert;
  // Peers write there only once this rank has come to dispatch.
  if (promised.zero_gaps || promised.untouched_gaps) {
    const auto& map = moe.map();
    for (std::size_t set = 0; set < map.in_flight; ++set)
      fill_bytes(
          moe.memory().local().subspan(set * map.set_bytes + map.rows, map.origins - map.rows),
          junk);
  }
  const auto got = dispatch(moe, from, rank);
  check_columns_of(got, from, moe.map());
  expect(moe.columns(got.ticket()).rows().data() == got.columns().rows().data(),
         "the ticket to give the same columns");
  for (std::size_t r = 0; r < from.shape.ranks; ++r)
    expect_same_bytes(moe.note(got.ticket(), peerbus::rank_id{r}), note_of(from, r),
                      "note of rank ", r);
  const std::uint64_t hashed = check_received(got, from, rank, promised);
  run_experts(got);
  overwrite(got.columns());
  const bool attached = attaches(from, rank.index());
  if (attached) attach_outputs(got, from);
  const oracle::input& mine = from.inputs[rank.index()];
  std::vector<peerbus::bf16> out(mine.tokens.size(), peerbus::bf16::from_bits(0xdead));
  moe.combine(got, out, {.attached = attached});
  check_returned(moe, got.ticket(), from, rank.index(), peerbus::moe::layout_by_rank<Layout>);
  return check_combined(out, expected_of<Codec, Layout>(from.shape, mine), from.shape.hidden,
                        hashed);
}

}  // namespace test
