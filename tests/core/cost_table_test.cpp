// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>

namespace cost_table_test {

using peerbus::cost_table;
using peerbus::errc;

template <class Call>
std::string error_of(errc code, Call&& call) {
  try {
    call();
  } catch (const peerbus::error& problem) {
    CHECK(problem.code() == code);
    return std::string{problem.text()};
  }
  FAIL_CHECK("no error");
  return {};
}

TEST_CASE("cost_table: the text is in the order of names and is read as the same table") {
  cost_table costs;
  costs.set("unified_bus.round_us", 0.1);
  costs.set("fabric.round_us", 12);
  costs.set("fabric.byte_ns", 1.0 / 3);
  costs.set("fabric.round_us", 1e-300);
  CHECK(costs.text() ==
        "peerbus costs 1\nfabric.byte_ns 0.3333333333333333\nfabric.round_us 1e-300\n"
        "unified_bus.round_us 0.1\n");
  const cost_table read = cost_table::parse(costs.text());
  CHECK(read.text() == costs.text());
  CHECK(read.hash() == costs.hash());
  CHECK(read.find("fabric.byte_ns") == 1.0 / 3);
  CHECK_FALSE(read.find("fabric.byte"));
  CHECK_FALSE(read.find("verbs.byte_ns"));
}

TEST_CASE("cost_table: comments, empty lines and other line ends make no difference") {
  const cost_table costs = cost_table::parse(
      "# made by hand\r\n\r\npeerbus costs 1\r\n# a comment\r\n\r\na.b_1 2\r\na.c 0.50");
  CHECK(costs.text() == "peerbus costs 1\na.b_1 2\na.c 0.5\n");
}

TEST_CASE("cost_table: tables that differ have other hashes") {
  cost_table one, other;
  CHECK(one.hash() == 0);
  one.set("a", 1);
  other.set("a", 2);
  CHECK(one.hash() != other.hash());
  other.set("a", 1);
  CHECK(one.hash() == other.hash());
  one.set("zero", 0.0);
  other.set("zero", -0.0);
  CHECK(one.hash() == other.hash());
  CHECK(cost_table::parse("peerbus costs 1\n").hash() == cost_table{}.hash());
}

TEST_CASE("cost_table: merge keeps what the other table does not have") {
  cost_table costs = cost_table::parse("peerbus costs 1\na 1\nb 2\n");
  costs.merge(cost_table::parse("peerbus costs 1\nb 3\nc 4\n"));
  CHECK(costs.text() == "peerbus costs 1\na 1\nb 3\nc 4\n");
}

TEST_CASE("cost_table: text that is wrong is refused with the number of the line") {
  const auto refused = [](std::string_view text) {
    return error_of(errc::invalid_argument, [&] { return cost_table::parse(text, "table"); });
  };
  CHECK(refused("") == "table is empty, expected a line \"peerbus costs 1\" and the costs");
  CHECK(refused("peerbus costs 2\na 1\n") ==
        "table, line 1: \"peerbus costs 2\" stands before the costs, expected \"peerbus costs 1\"");
  for (const char* line : {"a", "a ", " 1", "a 1x", "a 1 2", "a  1", "a inf", "a nan", "a -1",
                           "A 1", "a/b 1", "a 1e999", "peerbus costs 1"}) {
    CAPTURE(line);
    const std::string text = refused(std::string{"peerbus costs 1\n\n"} + line + "\nb 2");
    CHECK(text.starts_with(std::string{"table, line 3: \""} + line + "\" is no cost"));
  }
  CHECK(refused("peerbus costs 1\na 1\na 1\n") ==
        "table, line 3: \"a 1\" gives this cost a second time");
}

TEST_CASE("cost_table: what its text cannot hold is not set") {
  cost_table costs;
  for (const double value :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    error_of(errc::invalid_argument, [&] { costs.set("a", value); });
  CHECK(error_of(errc::invalid_argument, [&] {
          costs.set("two words", 1);
        }).starts_with("a cost has the name \"two words\""));
  error_of(errc::invalid_argument, [&] { costs.set("", 1); });
  CHECK(costs.empty());
}

TEST_CASE("cost_table: files") {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = folder / ("peerbus_costs_" + std::to_string(getpid()));
  std::ofstream{path} << "peerbus costs 1\na 1\n" << std::string(10'000, '#') << "\nb 2\n";
  CHECK(cost_table::load(path).text() == "peerbus costs 1\na 1\nb 2\n");
  std::ofstream{path} << "peerbus costs 1\na -1\n";
  CHECK(error_of(errc::invalid_argument, [&] {
          return cost_table::load(path);
        }).starts_with(path + ", line 2: "));
  std::ofstream{path} << "peerbus costs 1\n" << std::string(1 << 16, '#');
  CHECK(error_of(errc::invalid_argument, [&] { return cost_table::load(path); }) ==
        path + " has more than 65536 bytes, expected a table of costs");
  CHECK(error_of(errc::invalid_argument, [&] {
          return cost_table::load("/dev/zero");
        }).starts_with("/dev/zero has more than "));
  std::filesystem::remove(path);
  CHECK(error_of(errc::system, [&] { return cost_table::load(path); }) ==
        "costs cannot be read from " + path);
  error_of(errc::system, [&] { return cost_table::load(folder); });
}

}  // namespace cost_table_test
