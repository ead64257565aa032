// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/elastic_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fp8.hpp>

#include "support/ranks.hpp"

/// What an elastic buffer has beside dispatch and combine, for any group of ranks.
namespace elastic {

using peerbus::errc;
using peerbus::fp8_e4m3;
namespace deep_ep = peerbus::deep_ep;
using deep_ep::dtype;
using deep_ep::view;

/// The code of a bad argument of `culprit`, on this rank.
inline errc code_at(std::size_t rank, std::size_t culprit) {
  return rank == culprit ? errc::invalid_argument : errc::refused;
}

// --- engram
// ----------------------------------------------------------------------------------------

/// Value `channel` of entry `number` of the group, of write `seed`.
inline std::int32_t entry_value(std::size_t seed, std::size_t number, std::size_t channel) {
  return static_cast<std::int32_t>(seed * 1'000'000 + number * 100 + channel);
}
inline std::vector<std::int32_t> entries_of(std::size_t rank, std::size_t entries,
                                            std::size_t hidden, std::size_t seed) {
  std::vector<std::int32_t> all;
  for (std::size_t i = 0; i < entries; ++i)
    for (std::size_t c = 0; c < hidden; ++c)
      all.push_back(entry_value(seed, rank * entries + i, c));
  return all;
}
/// `tokens` x `columns` numbers of entries, other ones on each rank.
inline std::vector<std::int32_t> numbers_of(std::size_t rank, std::size_t count, std::size_t total,
                                            std::size_t seed) {
  std::vector<std::int32_t> all(count);
  for (std::size_t i = 0; i < count; ++i)
    all[i] = static_cast<std::int32_t>((i * 7919 + rank * 31 + seed * 17) % total);
  return all;
}

template <class Transport>
void check_fetch(deep_ep::elastic_buffer<Transport>& buffer, std::size_t rank, std::size_t ranks,
                 std::size_t entries, std::size_t hidden, std::size_t seed) {
  for (const std::size_t tokens : {rank == 1 ? std::size_t{0} : std::size_t{6}, std::size_t{1}}) {
    const auto numbers = numbers_of(rank, tokens * 3, ranks * entries, seed);
    const auto got = buffer.engram_fetch(view(numbers, {tokens, 3}));
    test::expect_equal(got.rows.size(0), tokens, "tokens");
    test::expect_equal(got.rows.size(1), 3 * hidden, "values of a token");
    test::expect(!got.scales, "no scales");
    for (std::size_t i = 0; i < numbers.size(); ++i)
      for (std::size_t c = 0; c < hidden; ++c)
        test::expect_equal(got.rows.template at<std::int32_t>(i / 3, i % 3 * hidden + c),
                           entry_value(seed, static_cast<std::size_t>(numbers[i]), c), "entry ",
                           numbers[i]);
  }
}

template <class Transport>
void check_scaled_entries(deep_ep::elastic_buffer<Transport>& buffer, std::size_t rank,
                          std::size_t ranks) {
  constexpr std::size_t entries = 4;
  std::vector<fp8_e4m3> codes(entries * 32);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i].bits = static_cast<std::uint8_t>((rank * 3 + i) % 251);
  std::vector<float> scales(ranks * entries * 2);
  std::iota(scales.begin(), scales.end(), 1.0F);
  buffer.engram_write(view(codes, {entries, 32}), view(scales, {ranks * entries, 2}));
  const auto numbers = numbers_of(rank, 5 * 2, ranks * entries, 0);
  for (const bool by_column : {false, true}) {
    const auto got = buffer.engram_fetch(view(numbers, {5, 2}), by_column);
    test::expect_equal(got.scales.stride(0), by_column ? 1U : 4U, "stride of scales");
    test::expect_equal(got.scales.stride(1), by_column ? 8U : 1U, "stride of columns");
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = static_cast<std::size_t>(numbers[i]);
      for (std::size_t c = 0; c < 32; ++c)
        test::expect_equal(int{got.rows.template at<fp8_e4m3>(i / 2, i % 2 * 32 + c).bits},
                           int((number / entries * 3 + number % entries * 32 + c) % 251), "code");
      for (std::size_t s = 0; s < 2; ++s)
        test::expect_equal(got.scales.template at<float>(i / 2, i % 2 * 2 + s),
                           scales[number * 2 + s], "scale of entry ", number);
    }
  }
  scales.resize(scales.size() - 2);
  test::expect_error(code_at(rank, ranks - 1), {"sf is float32"}, [&] {
    buffer.engram_write(
        view(codes, {entries, 32}),
        rank == ranks - 1
            ? deep_ep::const_tensor{view(scales, {ranks * entries - 1, 2})}
            : deep_ep::const_tensor{scales.data(), dtype::float32, {ranks * entries, 2}});
  });
}

/// A table for each of several layers.
template <class Comm>
void check_layers(Comm& comm) {
  const std::size_t rank = comm.rank().index();
  deep_ep::engram_buffer buffer{comm};
  const std::array<std::size_t, 2> sizes{11, 30};
  const auto first = entries_of(rank, sizes[0], 4, 1);
  const auto second = entries_of(rank, sizes[1], 4, 2);
  const std::array<deep_ep::const_tensor, 2> storages{view(first, {sizes[0], 4}),
                                                      view(second, {sizes[1], 4})};
  buffer.write(storages);
  for (const std::size_t layer : {std::size_t{1}, std::size_t{0}}) {
    const auto numbers = numbers_of(rank, 8, comm.size() * sizes[layer], layer);
    const auto got = buffer.fetch(view(numbers, {8, 1}), layer);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      for (std::size_t c = 0; c < 4; ++c)
        test::expect_equal(got.rows.template at<std::int32_t>(i, c),
                           entry_value(layer + 1, static_cast<std::size_t>(numbers[i]), c),
                           "layer ", layer);
  }
  test::expect_error(errc::invalid_argument, {"indices are of table 2 of 2"},
                     [&] { static_cast<void>(buffer.fetch(view(first, {sizes[0], 4}), 2)); });
}

template <class Group>
void check_engram(std::size_t ranks) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [](auto& comm) {
    const std::size_t rank = comm.rank().index();
    const std::size_t size = comm.size();
    deep_ep::elastic_buffer<transport> buffer{comm};
    const std::vector<std::int32_t> zeros(4);
    test::expect_error(errc::invalid_argument, {"expected one that engram_write has written"},
                       [&] { static_cast<void>(buffer.engram_fetch(view(zeros, {1, 4}))); });
    // Small and large tables, which need more memory, and entries of more than 64 KiB.
    const std::array<std::pair<std::size_t, std::size_t>, 4> shapes{
        {{5, 8}, {37, 24}, {5, 8}, {2, 20'000}}};
    for (std::size_t seed = 0; seed < 2 * shapes.size(); ++seed) {
      const auto [entries, hidden] = shapes[seed % shapes.size()];
      const auto own = entries_of(rank, entries, hidden, seed);
      buffer.engram_write(view(own, {entries, hidden}));
      check_fetch(buffer, rank, size, entries, hidden, seed);
    }
    const auto entries = entries_of(rank, 5, 8, 99);
    buffer.engram_write(view(entries, {5, 8}));
    // What one rank may not write, or writes unlike the others, none does.
    const std::size_t culprit = size - 1;
    test::expect_error(code_at(rank, culprit), {"storage is int32 [40]"}, [&] {
      rank == culprit ? buffer.engram_write(view(entries, {40}))
                      : buffer.engram_write(view(entries, {5, 8}));
    });
    test::expect_error(code_at(rank, culprit), {"storage is none"}, [&] {
      buffer.engram_write(rank == culprit ? deep_ep::const_tensor{}
                                          : deep_ep::const_tensor{view(entries, {5, 8})});
    });
    if (size > 1)
      test::expect_error(errc::mismatch, {"int32 [5, 8]", "int32 [8, 5]", "rank 1"}, [&] {
        rank == 1 ? buffer.engram_write(view(entries, {8, 5}))
                  : buffer.engram_write(view(entries, {5, 8}));
      });
    check_fetch(buffer, rank, size, 5, 8, 99);
    const auto refused = [&](std::string_view text, const deep_ep::const_tensor& indices) {
      test::expect_error(errc::invalid_argument, {text},
                         [&] { static_cast<void>(buffer.engram_fetch(indices)); });
    };
    std::vector<std::int32_t> bad{0, -1};
    refused("indices has -1, expected 0 to ", view(bad, {1, 2}));
    bad = {static_cast<std::int32_t>(size * 5)};
    refused("indices has " + std::to_string(size * 5), view(bad, {1, 1}));
    refused("indices is int32 [4]", view(zeros, {4}));
    const std::vector<std::int64_t> wide(4);
    refused("indices is int64", view(wide, {2, 2}));
    check_scaled_entries(buffer, rank, size);
    check_layers(comm);
  });
  CHECK(status == 0);
}

// --- neighbours
// ------------------------------------------------------------------------------------

template <class Group>
void check_neighbours(std::size_t ranks) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [](auto& comm) {
    const std::size_t rank = comm.rank().index();
    const std::size_t size = comm.size();
    const std::size_t next = (rank + 1) % size;
    const std::size_t previous = (rank + size - 1) % size;
    deep_ep::elastic_buffer<transport> buffer{comm};
    std::vector<std::int32_t> some(10);
    test::expect_error(errc::invalid_argument, {"pp_send: pp_set_config was not called"},
                       [&] { buffer.pp_send(view(some, {10}), next); });
    test::expect_error(code_at(rank, 0), {"num_max_inflight_tensors is 0"}, [&] {
      buffer.pp_set_config(
          {.num_max_tensor_bytes = 1000, .num_max_inflight_tensors = rank == 0 ? 0U : 3U});
    });
    if (size > 1)
      test::expect_error(
          errc::mismatch, {"3 tensors of 1000 bytes", "3 tensors of 999 bytes"}, [&] {
            buffer.pp_set_config(
                {.num_max_tensor_bytes = rank == 1 ? 999U : 1000U, .num_max_inflight_tensors = 3});
          });
    buffer.pp_set_config({.num_max_tensor_bytes = 1000, .num_max_inflight_tensors = 3});
    const auto value = [](std::size_t sender, std::size_t way, std::size_t turn, std::size_t i) {
      return static_cast<std::int32_t>(sender * 100'000 + way * 10'000 + turn * 100 + i);
    };
    const auto send = [&](std::size_t peer, std::size_t way, std::size_t turn) {
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = value(rank, way, turn, i);
      buffer.pp_send(view(some, {2, 5}), peer);
    };
    const auto receive = [&](std::size_t peer, std::size_t way, std::size_t turn) {
      std::vector<std::int32_t> came(10);
      buffer.pp_recv(view(came, {10}), peer);
      for (std::size_t i = 0; i < came.size(); ++i)
        test::expect_equal(came[i], value(peer, way, turn, i), "turn ", turn, ", value ", i);
    };
    // More turns than there are places, in both directions.
    const std::size_t most = size > 2 ? 3 : 1;
    for (std::size_t turn = 0; turn < 9; ++turn) {
      for (std::size_t i = 0; i < most; ++i) send(next, 1, turn * 10 + i);
      for (std::size_t i = 0; i < most; ++i) send(previous, 0, turn * 10 + i);
      for (std::size_t i = 0; i < most; ++i) receive(previous, 1, turn * 10 + i);
      for (std::size_t i = 0; i < most; ++i) receive(next, 0, turn * 10 + i);
    }
    // A rank that sends eight before the next one receives the first has to wait.
    if (size > 1) {
      for (std::size_t turn = 0; rank == 0 && turn < 8; ++turn) send(1, 1, turn);
      for (std::size_t turn = 0; rank == 1 && turn < 8; ++turn) receive(0, 1, turn);
    }
    // Nothing comes: the call may be repeated.
    test::expect_error(errc::timed_out, {"pp_recv: timed out, with rank "}, [&] {
      buffer.pp_recv(view(some, {10}), previous,
                     peerbus::deadline::after(std::chrono::milliseconds{1}));
    });
    comm.barrier();
    // An empty tensor, one of another size than is received, and one that is refused.
    std::vector<std::int32_t> none;
    buffer.pp_send(view(none, {0}), next);
    buffer.pp_recv(view(none, {0}), previous);
    buffer.pp_send(view(some, {10}), next);
    std::vector<std::int32_t> eleven(11);
    test::expect_error(errc::mismatch, {"sent 40 bytes, the tensor has 44"},
                       [&] { buffer.pp_recv(view(eleven, {11}), previous); });
    buffer.pp_recv(view(some, {10}), previous);
    std::vector<std::int32_t> large(251);
    test::expect_error(errc::invalid_argument, {"t has 1004 bytes, expected at most the 1000"},
                       [&] { buffer.pp_send(view(large, {251}), next); });
    send(next, 1, 77);
    test::expect_error(errc::refused, {"sent nothing: pp_send: t has 1004 bytes"},
                       [&] { buffer.pp_recv(view(some, {10}), previous); });
    receive(previous, 1, 77);
    if (size > 3)
      test::expect_error(errc::invalid_argument, {"dst_rank_idx is ", "expected the previous"},
                         [&] { buffer.pp_send(view(some, {10}), (rank + 2) % size); });
  });
  CHECK(status == 0);
}

// --- gathers
// ---------------------------------------------------------------------------------------

template <class Transport>
void check_session(deep_ep::elastic_buffer<Transport>& buffer, std::size_t rank, std::size_t ranks,
                   std::size_t session) {
  buffer.create_agrs_session();
  const auto value = [&](std::size_t from, std::size_t i) {
    return static_cast<std::int32_t>(session * 10'000 + from * 1000 + i);
  };
  std::vector<std::int32_t> own(12);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = value(rank, i);
  const auto first = buffer.all_gather(view(own, {3, 4}));
  const std::array<deep_ep::const_tensor, 2> pair{view(std::span{own}.first(5), {5}),
                                                  view(std::span{own}.subspan(5), {7})};
  const auto second = buffer.all_gather(pair);
  // In place, which is not copied.
  const auto place = buffer.agrs_get_inplace_tensor({12}, dtype::int32);
  std::copy(own.begin(), own.end(), place.template as<std::int32_t>());
  const auto third = buffer.all_gather(place);
  const auto place_of_5 = buffer.agrs_get_inplace_tensor({5}, dtype::int32);
  const std::array<deep_ep::const_tensor, 1> before{place_of_5};
  const auto place_of_7 = buffer.agrs_get_inplace_tensor({7}, dtype::int32, before);
  std::copy_n(own.begin(), 5, place_of_5.template as<std::int32_t>());
  std::copy_n(own.begin() + 5, 7, place_of_7.template as<std::int32_t>());
  const std::array<deep_ep::const_tensor, 2> both{place_of_5, place_of_7};
  const auto fifth = buffer.all_gather(both);
  std::fill(own.begin(), own.end(), -1);
  const auto fourth = buffer.all_gather(view(std::span{own}.first(0), {0}));
  fifth.handle.current_stream_wait();
  third.handle.current_stream_wait();
  fourth.handle.current_stream_wait();
  second.handle.current_stream_wait();
  first.handle.current_stream_wait();
  first.handle.current_stream_wait();
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t i = 0; i < 12; ++i) {
      test::expect_equal(first.gathered[0].template at<std::int32_t>(from, i / 4, i % 4),
                         value(from, i), "first gather");
      test::expect_equal(i < 5 ? second.gathered[0].template at<std::int32_t>(from, i)
                               : second.gathered[1].template at<std::int32_t>(from, i - 5),
                         value(from, i), "second gather");
      test::expect_equal(i < 5 ? fifth.gathered[0].template at<std::int32_t>(from, i)
                               : fifth.gathered[1].template at<std::int32_t>(from, i - 5),
                         value(from, i), "fifth gather");
      test::expect_equal(third.gathered[0].template at<std::int32_t>(from, i), value(from, i),
                         "third gather");
    }
  test::expect_error(errc::invalid_argument, {"session has had 5 gathers"},
                     [&] { static_cast<void>(buffer.all_gather(view(own, {12}))); });
  buffer.destroy_agrs_session();
  test::expect_error(errc::invalid_argument, {"which is over"},
                     [&] { first.handle.current_stream_wait(); });
}

template <class Group>
void check_gathers(std::size_t ranks) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [](auto& comm) {
    const std::size_t rank = comm.rank().index();
    const std::size_t size = comm.size();
    deep_ep::elastic_buffer<transport> buffer{comm};
    test::expect_error(errc::invalid_argument, {"agrs_set_config was not called"},
                       [&] { buffer.create_agrs_session(); });
    test::expect_error(code_at(rank, size - 1), {"num_max_session_bytes is 0"}, [&] {
      buffer.agrs_set_config({.num_max_session_bytes = rank == size - 1 ? 0U : 100U,
                              .num_max_all_gathers_per_session = 4});
    });
    const auto bytes_of = [&](std::size_t values) {
      return deep_ep::agrs_sessions::gathered_bytes(size, values * 4);
    };
    buffer.agrs_set_config({.num_max_session_bytes = 2 * (bytes_of(12) + bytes_of(5) + bytes_of(7)),
                            .num_max_all_gathers_per_session = 5});
    std::vector<std::int32_t> own(12, 1);
    test::expect_error(errc::invalid_argument, {"session is not open"},
                       [&] { static_cast<void>(buffer.all_gather(view(own, {12}))); });
    for (std::size_t session = 0; session < 3; ++session)
      check_session(buffer, rank, size, session);

    // A rank that gathers too much: refused on all, and the next session works.
    const std::vector<std::int32_t> large(100);
    buffer.create_agrs_session();
    if (rank == size - 1) {
      test::expect_error(errc::invalid_argument, {"session needs "},
                         [&] { static_cast<void>(buffer.all_gather(view(large, {100}))); });
    } else {
      const auto got = buffer.all_gather(view(own, {12}));
      test::expect_error(errc::refused, {"all_gather: rank ", "refused its tensors"},
                         [&] { got.handle.current_stream_wait(); });
    }
    test::expect_error(code_at(rank, size - 1), {},
                       [&] { static_cast<void>(buffer.all_gather(view(own, {12}))); });
    buffer.destroy_agrs_session();
    check_session(buffer, rank, size, 7);
    // A tensor in the session's memory, but elsewhere.
    buffer.create_agrs_session();
    const auto place = buffer.agrs_get_inplace_tensor({12}, dtype::int32);
    const deep_ep::const_tensor moved{place.template as<std::int32_t>() + 1, dtype::int32, {11}};
    if (rank == 0)
      test::expect_error(errc::invalid_argument, {"t lies in the session's memory"},
                         [&] { static_cast<void>(buffer.all_gather(moved)); });
    else
      test::expect_error(errc::refused, {"all_gather: rank 0 refused its tensors"},
                         [&] { buffer.all_gather(place).handle.current_stream_wait(); });
    buffer.destroy_agrs_session();
    if (size > 1) {
      buffer.create_agrs_session();
      // The last rank has more, so that no parts overlap, whose bytes two ranks would write at
      // once.
      const std::size_t count = rank == size - 1 ? 5 : 4;
      const auto got = buffer.all_gather(view(std::span{own}.first(count), {count}));
      test::expect_error(errc::mismatch, {"gathers tensors of other sizes"},
                         [&] { got.handle.current_stream_wait(); });
      buffer.destroy_agrs_session();
      check_session(buffer, rank, size, 8);
    }
  });
  CHECK(status == 0);
}

template <class Group>
void run_all() {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    check_engram<Group>(ranks);
    check_neighbours<Group>(ranks);
    check_gathers<Group>(ranks);
  }
}

}  // namespace elastic
