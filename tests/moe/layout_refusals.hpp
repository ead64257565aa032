// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "moe/refusals.hpp"
#include "support/ranks.hpp"

/// Bad layouts and attachments, for any group of ranks.
namespace refusals {

/// Layouts that cannot be, or not on this machine: refused on all ranks, with the numbers.
template <class Group>
void check_bad_layouts(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    using peerbus::moe::compact;
    const auto expect_refused = [&](errc code, std::initializer_list<std::string_view> says,
                                    const exchange_config& bad, const auto& layout) {
      test::expect_error(code, says, [&] {
        peerbus::moe::exchange moe{comm, bad, peerbus::codec::bf16{}, layout};
      });
    };
    for (const std::size_t alignment :
         {std::size_t{0}, (std::size_t{1} << 24) + 1, ~std::size_t{0}}) {
      const std::string says =
          "alignment is " + std::to_string(alignment) + " rows, expected 1 to 16777216";
      expect_refused(errc::invalid_argument, {says}, config, compact{.alignment = alignment});
      // On the last rank only.
      const bool bad = comm.rank().index() == comm.size() - 1;
      expect_refused(errc::invalid_argument, {says}, config,
                     compact{.alignment = bad ? alignment : 1});
    }
    const std::size_t most = std::size_t{1} << 24;
    expect_refused(errc::invalid_argument,
                   {"layout compact may need", "rows on one rank, expected less than 2^32"},
                   {.experts = 2048, .hidden = 16, .top_k = 1, .max_tokens = 1},
                   compact{.alignment = most});
    expect_refused(errc::out_of_memory, {"too large", "need ", "have ", "MiB"},
                   {.experts = 64, .hidden = 1U << 20, .top_k = 1, .max_tokens = 1},
                   compact{.alignment = most});
    expect_refused(errc::invalid_argument,
                   {"layout padded may need", "rows on one rank, expected less than 2^32"},
                   {.experts = most, .hidden = 16, .top_k = 1, .max_tokens = 1024},
                   peerbus::moe::padded{});
    const exchange_config large{
        .experts = 4096, .hidden = 7168, .top_k = 1, .max_tokens = 1U << 16};
    expect_refused(errc::out_of_memory, {"too large", "need ", "have ", "MiB"}, large,
                   peerbus::moe::padded{});
    expect_refused(errc::out_of_memory, {"too large", "need ", "have ", "MiB"},
                   {.experts = 64, .hidden = 1U << 20, .top_k = 1, .max_tokens = 1U << 22},
                   peerbus::moe::rank_major{});
    expect_refused(errc::out_of_memory, {"too large", "need ", "have ", "MiB"},
                   {.experts = 64,
                    .hidden = 16,
                    .top_k = 1,
                    .max_tokens = 1U << 20,
                    .attachments = {0, 0, 0, most}},
                   compact{});
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    check_works(moe, comm.size(), comm.rank(), 5);
  });
  CHECK(worst_status == 0);
}

/// Attachments that do not fit the tokens are refused on all ranks, and nothing is written.
template <class Group, class Layout>
void check_bad_attachments(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    exchange_config attached = config;
    attached.attachments = {8, 0, 12};
    attached.note_bytes = 16;
    peerbus::moe::exchange moe{comm, attached, peerbus::codec::bf16{}, Layout{}};
    const arguments mine;
    const std::vector<std::byte> bytes(64, std::byte{1});
    const std::span all{bytes};
    const std::span<const std::byte> nothing;
    struct wrong {
      peerbus::moe::attachments given;
      std::string_view says;
      std::span<const std::byte> note{};
    };
    const peerbus::moe::attachments good{all.first(24), nothing, all.first(36)};
    std::size_t who = 0;
    check_works(moe, comm.size(), comm.rank(), 1);
    for (const wrong& one :
         {wrong{{all.first(23), nothing, all.first(36)},
                "attachment 0 of 23 bytes, expected tokens x configured, 24"},
          {{all.first(24), nothing, all.first(48)},
           "attachment 2 of 48 bytes, expected tokens x configured, 36"},
          {{all.first(24)}, "attachment 2 of 0 bytes, expected tokens x configured, 36"},
          {{all.first(24), all.first(4), all.first(36)},
           "attachment 1 of 4 bytes, expected tokens x configured, 0"},
          {{all.first(24), nothing, all.first(36), all.first(1)},
           "attachment 3 of 1 bytes, expected tokens x configured, 0"},
          {{std::span{static_cast<const std::byte*>(nullptr), 24}, nothing, all.first(36)},
           "attachment 0 that is null but 24 bytes long"},
          {good, "a note of 8 bytes, expected none or note_bytes, 16", all.first(8)},
          {good, "a note that is null but 16 bytes long",
           std::span{static_cast<const std::byte*>(nullptr), 16}}}) {
      const auto before = rows_area(moe);
      comm.barrier();
      const bool bad = comm.rank().index() == who % comm.size();
      // Twice in a row, as refusals use two generations of messages.
      for (int i = 0; i < 2; ++i)
        test::expect_error(
            bad ? errc::invalid_argument : errc::refused, {"dispatch", one.says}, [&] {
              (void)moe.dispatch(
                  mine.token_span(), mine.route(),
                  {.attachments = bad ? one.given : good, .note = bad ? one.note : nothing});
            });
      comm.barrier();
      test::expect(rows_area(moe) == before, one.says, ": nothing to be written");
      check_works(moe, comm.size(), comm.rank(), ++who);
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace refusals

/// Defines the test cases of refusals that all kinds of groups pass, for these kinds.
#define PEERBUS_TEST_REFUSALS(...)                                                            \
  TEST_CASE_TEMPLATE("a bad dispatch is refused on all ranks, and nothing is written", Group, \
                     __VA_ARGS__) {                                                           \
    for (const std::size_t n : {1U, 2U, 3U, 5U}) refusals::check_bad_dispatch<Group>(n);      \
  }                                                                                           \
  TEST_CASE_TEMPLATE("bad input on several ranks", Group, __VA_ARGS__) {                      \
    for (const std::size_t n : {2U, 4U}) refusals::check_bad_on_several<Group>(n);            \
  }                                                                                           \
  TEST_CASE_TEMPLATE("a bad combine is refused on all ranks", Group, __VA_ARGS__) {           \
    for (const std::size_t n : {1U, 2U, 3U, 5U}) {                                            \
      refusals::check_bad_combine<Group>(n);                                                  \
      refusals::check_bad_combine<Group, peerbus::moe::rank_major>(                           \
          n, peerbus::moe::outputs_at::home);                                                 \
    }                                                                                         \
  }                                                                                           \
  TEST_CASE_TEMPLATE("rows that a rank keeps", Group, __VA_ARGS__) {                          \
    for (const std::size_t n : {1U, 3U}) {                                                    \
      refusals::check_kept_rows<Group, peerbus::moe::compact>(n);                             \
      refusals::check_kept_rows<Group, peerbus::moe::expert_slots>(n);                        \
    }                                                                                         \
  }                                                                                           \
  TEST_CASE_TEMPLATE("impossible configurations", Group, __VA_ARGS__) {                       \
    for (const std::size_t n : {1U, 2U, 3U}) refusals::check_bad_configurations<Group>(n);    \
  }                                                                                           \
  TEST_CASE_TEMPLATE("impossible layouts", Group, __VA_ARGS__) {                              \
    for (const std::size_t n : {1U, 2U, 3U}) refusals::check_bad_layouts<Group>(n);           \
  }                                                                                           \
  TEST_CASE_TEMPLATE("attachments that do not fit", Group, __VA_ARGS__) {                     \
    for (const std::size_t n : {1U, 2U, 3U}) {                                                \
      refusals::check_bad_attachments<Group, peerbus::moe::compact>(n);                       \
      refusals::check_bad_attachments<Group, peerbus::moe::rank_major>(n);                    \
    }                                                                                         \
  }                                                                                           \
  TEST_CASE_TEMPLATE("ranks that differ in their configuration", Group, __VA_ARGS__) {        \
    for (const std::size_t n : {2U, 3U}) {                                                    \
      refusals::check_mismatches<Group>(n);                                                   \
      refusals::check_different_codecs<Group>(n);                                             \
    }                                                                                         \
  }                                                                                           \
  TEST_CASE_TEMPLATE("a rank that does not come", Group, __VA_ARGS__) {                       \
    for (const std::size_t n : {2U, 3U}) {                                                    \
      refusals::check_time_out<Group>(n);                                                     \
      refusals::check_time_out_in_combine<Group>(n);                                          \
    }                                                                                         \
  }
