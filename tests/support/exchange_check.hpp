// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace test {

/// What all ranks put into one dispatch; every rank knows all of it.
struct scenario {
  oracle::shape shape;
  std::vector<oracle::input> inputs;
  bool narrow_ids = false;
};

inline std::uint64_t hash(std::uint64_t before, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes)
    before = (before ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  return before;
}

inline std::string place(std::size_t expert, std::size_t row) {
  return "expert " + std::to_string(expert) + ", row " + std::to_string(row);
}

/// Compares bit by bit and names the first element that differs.
template <class T>
void expect_same_bytes(std::span<const T> given, std::span<const std::byte> expected,
                       const std::string& what) {
  const auto bytes = std::as_bytes(given);
  expect_equal(bytes.size(), expected.size(), what, ", number of bytes");
  for (std::size_t i = 0; i < bytes.size(); ++i)
    expect_equal(static_cast<int>(bytes[i]), static_cast<int>(expected[i]), what, ", byte ", i,
                 " of ", bytes.size());
}

/// Checks all that a dispatch brought to `rank`. Returns: a hash of it.
template <class Codec>
std::uint64_t check_received(const peerbus::moe::received<Codec>& got, const scenario& from,
                             peerbus::rank_id rank) {
  std::uint64_t hashed = 0xcbf29ce484222325U;
  std::vector<std::size_t> local;
  const auto owners = oracle::owners(from.shape);
  for (std::size_t e = 0; e < owners.size(); ++e)
    if (owners[e] == rank.index()) local.push_back(e);

  expect_equal(got.experts().size(), local.size(), "number of local experts");
  std::size_t total = 0;
  for (std::size_t i = 0; i < local.size(); ++i) {
    const auto& expert = got.experts()[i];
    expect_equal(expert.id(), local[i], "id of local expert ", i);
    expect_equal(expert.hidden(), from.shape.hidden, "hidden of expert ", local[i]);
    const auto expected = oracle::rows_of(from.shape, from.inputs, local[i]);
    expect_equal(expert.count(), expected.size(), "rows of expert ", local[i]);
    total += expected.size();
    std::vector<std::size_t> by_source(from.shape.ranks);
    const std::size_t scale_bytes = Codec::scale_bytes(from.shape.hidden);
    std::vector<float> values(from.shape.hidden);
    for (std::size_t row = 0; row < expected.size(); ++row) {
      const auto [source, token] = expected[row];
      ++by_source[source];
      const std::string here = place(local[i], row);
      expect_equal(expert.origin(row).rank.index(), source, here, ", source rank");
      expect_equal(expert.origin(row).token, token, here, ", token");
      const auto wanted =
          oracle::codec_of<Codec>::encode(oracle::token_of(from.shape, from.inputs[source], token));
      expect_same_bytes(expert.row(row), wanted.bytes, here + ", payload");
      expect_same_bytes(expert.template scales<std::byte>().subspan(row * scale_bytes, scale_bytes),
                        wanted.scales, here + ", scales");
      expert.decode(row, values);
      for (std::size_t h = 0; h < values.size(); ++h)
        expect(oracle::round(values[h]) == oracle::round(wanted.values[h]) &&
                   (values[h] == wanted.values[h] || values[h] != values[h]),
               here, ", channel ", h, " to decode to ", wanted.values[h], ", not ", values[h]);
      hashed = hash(hash(hashed, std::as_bytes(expert.row(row))), wanted.scales);
    }
    for (std::size_t r = 0; r < by_source.size(); ++r)
      expect_equal(expert.count_from(peerbus::rank_id{r}), by_source[r], "rows of expert ",
                   local[i], " from rank ", r);
    expect_equal(expert.outputs().size(), expected.size() * from.shape.hidden, "outputs of expert ",
                 local[i]);
  }
  expect_equal(got.rows(), total, "rows of all local experts");
  return hashed;
}

/// What each expert makes of its rows.
template <class Codec>
void run_experts(const peerbus::moe::received<Codec>& got) {
  std::vector<float> values;
  for (const auto& expert : got.experts()) {
    values.resize(expert.hidden());
    for (std::size_t row = 0; row < expert.count(); ++row) {
      expert.decode(row, values);
      const auto out = expert.output(row);
      for (std::size_t h = 0; h < out.size(); ++h)
        out[h] = oracle::apply(expert.id(), h, values[h]);
    }
  }
}

inline std::uint64_t check_combined(std::span<const peerbus::bf16> out,
                                    std::span<const peerbus::bf16> expected, std::size_t hidden,
                                    std::uint64_t hashed) {
  expect_equal(out.size(), expected.size(), "values that combine gave");
  for (std::size_t i = 0; i < out.size(); ++i)
    expect_equal(out[i].bits, expected[i].bits, "combined token ", i / hidden, ", channel ",
                 i % hidden);
  return hash(hashed, std::as_bytes(out));
}

template <peerbus::transport Transport, peerbus::token_codec Codec>
peerbus::moe::received<Codec> dispatch(peerbus::moe::exchange<Transport, Codec>& moe,
                                       const scenario& from, peerbus::rank_id rank) {
  const oracle::input& mine = from.inputs[rank.index()];
  if (!from.narrow_ids) return moe.dispatch(mine.tokens, {mine.experts, mine.weights});
  // Gone on return: the routing is read during dispatch only.
  const std::vector<std::int32_t> narrow(mine.experts.begin(), mine.experts.end());
  return moe.dispatch(mine.tokens, {narrow, mine.weights});
}

/// Dispatch, experts, combine, everything checked. Returns: a hash of all that came.
template <peerbus::transport Transport, peerbus::token_codec Codec>
std::uint64_t check_round(peerbus::moe::exchange<Transport, Codec>& moe, const scenario& from,
                          peerbus::rank_id rank) {
  const auto got = dispatch(moe, from, rank);
  const std::uint64_t hashed = check_received(got, from, rank);
  run_experts(got);
  const oracle::input& mine = from.inputs[rank.index()];
  std::vector<peerbus::bf16> out(mine.tokens.size(), peerbus::bf16::from_bits(0xdead));
  moe.combine(got, out);
  return check_combined(out, oracle::combined<Codec>(from.shape, mine), from.shape.hidden, hashed);
}

}  // namespace test
