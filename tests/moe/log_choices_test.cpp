// SPDX-License-Identifier: MIT
// ctest: tsan
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/log_choices.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/log_choices.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/huge_pages.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/log_choices.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/indirect.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

// What communicators and exchanges say of their choices.

namespace log_choices_test {

namespace {

using peerbus::errc;
using peerbus::log_level;
using peerbus::rank_id;
using peerbus::stderr_log;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange_config;
namespace moe = peerbus::moe;

constexpr exchange_config config{.experts = 8, .hidden = 64, .top_k = 2, .max_tokens = 16};

/// A sink that keeps lines.
struct kept_lines {
  void operator()(log_level level, std::string_view line) {
    text += peerbus::concat(describe(level), ": ", line, "\n");
  }
  /// Requires that the lines are those that begin so, in this order.
  void expect(const std::vector<std::string_view>& begins) const {
    std::string_view left = text;
    for (const std::string_view begin : begins) {
      if (!left.starts_with(begin)) test::fail("said '", left, "', expected '", begin, "'");
      left.remove_prefix(left.find('\n') + 1);
    }
    test::expect_equal(left, "", "lines that nobody expected");
  }
  std::string text;
};

template <class Layout>
kept_lines lines_of(auto& comm, const exchange_config& asked, Layout layout) {
  const moe::exchange made{comm, asked, int8_per_token{}, layout};
  kept_lines lines;
  moe::log_choices(made, lines);
  return lines;
}

/// Returns what stderr gets from `body`.
template <class Body>
std::string written_by(Body&& body) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const peerbus::unique_fd kept{::dup(STDERR_FILENO)};
  REQUIRE(::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  body();
  ::dup2(kept.get(), STDERR_FILENO);
  ::close(ends[1]);
  std::array<char, 4096> text{};
  const auto bytes = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  return {text.data(), static_cast<std::size_t>(bytes)};
}

}  // namespace

TEST_CASE("a communicator tells reach, pages and waits") {
  const auto run = []<class Transport>(std::string_view reach) {
    return test::threads_over<Transport>::run(2, [&](auto& comm) {
      kept_lines lines;
      log_choices(comm, lines);
      const std::string pages = peerbus::concat("enabled is '", peerbus::huge_pages_of_process());
      lines.expect({reach, "info: huge pages: ", "debug: waits: "});
      test::expect(lines.text.find(pages) != std::string::npos, "the rule of pages in ",
                   lines.text);
    });
  };
  CHECK(run.operator()<peerbus::loopback>(
            "info: reach: loads and stores reach the windows of all ranks, 2") == 0);
  CHECK(run.operator()<test::indirect<peerbus::loopback>>(
            "info: reach: requests reach the windows of all ranks, 2") == 0);
}

TEST_CASE("an exchange tells its protocol, stores and levels, with the reason") {
  const int worst_status = test::threads_over<peerbus::loopback>::run(2, [](auto& comm) {
    const std::string_view memory = "debug: memory: ";
    const std::string_view rows = "debug: rows: path direct, row arithmetic of ";
    const std::string_view stores = "info: stores: past the caches for batches of ";
    const std::string_view one_level = "info: relay: one level, as asked; option relay is never";
    lines_of(comm, config, moe::compact{})
        .expect({"info: protocol: counts_first, which is that of layout compact; ", stores,
                 one_level, memory, rows});

    exchange_config asked = config;
    asked.stream_from = moe::never_stream;
    asked.protocol = moe::dispatch_protocol::counts_first;
    lines_of(comm, asked, moe::automatic{})
        .expect({"info: protocol: counts_first, as option protocol asks",
                 "info: stores: through the caches, as option stream_from asks", one_level, memory,
                 rows});

    asked = config;
    asked.relay = moe::relay::automatic;
    asked.stream_from = 4096;
    lines_of(comm, asked, moe::automatic{})
        .expect({"info: protocol: one_phase, as for 32 rows of 68 bytes to 2 ranks counts_first "
                 "takes 1600 ns and one_phase 1280 ns by the costs that the library assumes; ",
                 "info: stores: past the caches for batches of 4096 bytes and more, as option",
                 "info: relay: one level, as no rank is far; option relay is automatic", memory,
                 rows});

    peerbus::cost_table costs;
    costs.set("moe.direct.slot_row_us", 1);
    asked.costs = &costs;
    lines_of(comm, asked, moe::automatic_by_rank{})
        .expect({"info: protocol: counts_first, as for 32 rows of 68 bytes to 2 ranks counts_first "
                 "takes 1600 ns and one_phase 32000 ns by option costs; ",
                 stores, "info: relay: one level", memory, rows});
    costs.set_machine("another");
    lines_of(comm, asked, moe::automatic_by_rank{})
        .expect({peerbus::concat("info: costs measured on another machine: another, this is ",
                                 peerbus::this_machine(), "\n"),
                 "info: protocol: ", stores, "info: relay: one level", memory, rows});
    costs.set_machine(peerbus::this_machine());
    costs.set("local.moe.stores.4096.plain_byte_ns", 2);
    costs.set("local.moe.stores.4096.streaming_byte_ns", 1);
    asked.stream_from = std::nullopt;
    lines_of(comm, asked, moe::automatic_by_rank{})
        .expect({peerbus::concat("info: costs measured on ", peerbus::this_machine(), "\n"),
                 "info: protocol: ", stores,
                 "info: stores: streaming for batches of 4096 to 8191 bytes, as 8192 ns plain and "
                 "4096 ns streaming were learned by option costs; option stream_from fixes it\n",
                 "info: relay: one level", memory, rows});

    // Costs of something else leave what is assumed.
    costs = {};
    costs.set("moe.staged.slot_row_us", 1);
    using exchange = moe::exchange<peerbus::loopback, int8_per_token, moe::automatic>;
    const exchange made{comm, asked};
    for (const moe::exchange_choices& found :
         {made.choices(), exchange::choices_for(comm, asked)}) {
      test::expect(found.protocol.why == moe::protocol_reason::assumed,
                   describe(found.protocol.why));
      test::expect(found.protocol.chosen == made.config().protocol, "the protocol that it has");
      test::expect(found.protocol.estimate.counts_us > 1.59, "us of counts");
      test::expect_equal(found.protocol.full.rows, 32.0, "rows");
      test::expect(found.rule.tries_both && found.rule.stream_from == made.config().stream_from,
                   "the rule for stores");
      test::expect(!found.relay.relays && found.relay.asked == asked.relay, "one level");
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("an exchange that relays tells it") {
  using hosts = test::on_hosts<peerbus::loopback, test::indirect<peerbus::loopback>>;
  test::pretended = {2, false};
  const int worst_status = test::threads_over<hosts>::run(4, [](auto& comm) {
    exchange_config asked = config;
    asked.relay = moe::relay::always;
    const auto lines = lines_of(comm, asked, moe::automatic{});
    lines.expect({"info: protocol: ", "info: stores: past the caches for batches of ",
                  "info: relay: two levels, as asked, ", "debug: relay always: two levels, ",
                  "debug: memory: ", "debug: rows: path mixed, "});
    for (const std::string_view part :
         {" bytes to 2 ranks counts_first takes ", "ns with two; option relay is always"})
      test::expect(lines.text.find(part) != std::string::npos, part, " in ", lines.text);
    test::expect(lines.text.find("measured") == std::string::npos, "no trials");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a team tells its algorithms by size, with the reason") {
  namespace collective = peerbus::collective;
  const int worst_status = test::threads_over<peerbus::loopback>::run(3, [](auto& comm) {
    const auto lines_of_team = [&](const collective::team_options& options) {
      const collective::team made{comm, options};
      kept_lines lines;
      log_choices(made, lines);
      return lines;
    };
    const std::string_view assumed = "by the costs that the library assumes";
    const kept_lines usual = lines_of_team({});
    usual.expect({"info: all_reduce: one_shot, above ", "info: all_gather: one_shot, by ",
                  "info: reduce_scatter: one_shot, by ", "info: broadcast: one_shot, by "});
    test::expect(usual.text.find(assumed) != std::string::npos, assumed, " in ", usual.text);
    lines_of_team({.one_shot_bytes = 3000})
        .expect({"info: all_reduce: one_shot, above 3000 bytes two_shots, by the costs that the "
                 "library assumes and option one_shot_bytes; option algorithm fixes it\n",
                 "info: all_gather: ", "info: reduce_scatter: ", "info: broadcast: "});
    lines_of_team({.algorithm = collective::algorithm::two_shots})
        .expect({"info: all_reduce: two_shots, as option algorithm is two_shots, wherever",
                 "info: all_gather: one_shot, as ", "info: reduce_scatter: ", "info: broadcast: "});
    peerbus::cost_table costs;
    costs.set("collective.loads.round_us", 1);
    costs.set_machine("another");
    const std::string origin =
        peerbus::concat("info: costs measured on another machine: another, this is ",
                        peerbus::this_machine(), "\n");
    lines_of_team({.costs = costs})
        .expect({origin, "info: all_reduce: ", "info: all_gather: one_shot, by option costs",
                 "info: reduce_scatter: ", "info: broadcast: "});
    // Not where those costs do not decide.
    costs = peerbus::cost_table::parse("peerbus costs 1\ncollective.puts.round_us 1\n");
    costs.set_machine("another");
    lines_of_team({.costs = costs})
        .expect({"info: all_reduce: ", "info: all_gather: one_shot, by the costs that the library",
                 "info: reduce_scatter: ", "info: broadcast: "});
  });
  CHECK(worst_status == 0);
}

TEST_CASE("the environment says what is written to stderr") {
  const auto say = [] {
    const auto log = stderr_log::from_environment(rank_id{3});
    log(log_level::info, "one");
    log(log_level::debug, "two");
  };
  // The first line is not the log's, so that there is something to read.
  const auto written = [&](const char* value) {
    ::setenv("PEERBUS_LOG", value, 1);
    return written_by([&] {
      static_cast<void>(::write(STDERR_FILENO, "-\n", 2));
      say();
    });
  };
  CHECK(written("info") == "-\npeerbus[3] info: one\n");
  CHECK(written("debug") == "-\npeerbus[3] info: one\npeerbus[3] debug: two\n");
  CHECK(written("") == "-\n");
  ::setenv("PEERBUS_LOG", "warn", 1);
  test::expect_error(errc::invalid_argument, {"PEERBUS_LOG is 'warn', expected info or debug"},
                     say);
  ::unsetenv("PEERBUS_LOG");
  CHECK(!stderr_log::from_environment(rank_id{3}));
}

}  // namespace log_choices_test
