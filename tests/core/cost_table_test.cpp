// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/this_machine.hpp>

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
  // Costs of a rank are no part of it.
  one = other;
  one.set("local.a", 1);
  CHECK(one.hash() == other.hash());
  CHECK(one.text() != other.text());
  CHECK(cost_table::parse("peerbus costs 1\nlocal.a 1\n").hash() == 0);
  one.set("locala", 1);
  CHECK(one.hash() != other.hash());
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

TEST_CASE("cost_table: the text of a file says the machine and the number of costs") {
  cost_table costs = cost_table::parse("peerbus costs 1\na 12\nb 0.25\n");
  CHECK(costs.machine().empty());
  CHECK(costs.file_text() == "# number of costs: 2\npeerbus costs 1\na 12\nb 0.25\n");
  const std::uint64_t hash = costs.hash();
  costs.set_machine("A processor, 3 cores");
  const std::string text = costs.file_text();
  CHECK(text ==
        "# measured on: A processor, 3 cores\n# number of costs: 2\npeerbus costs 1\na 12\n"
        "b 0.25\n");
  CHECK(costs.hash() == hash);
  const cost_table read = cost_table::parse(text);
  CHECK(read.machine() == "A processor, 3 cores");
  CHECK(read.file_text() == text);
  CHECK(read.hash() == hash);
  // Other line ends make no difference, and a log gets no control characters.
  CHECK(cost_table::parse("# measured on: a\x1b[2Jb\r\n# number of costs: 0\r\npeerbus costs 1\r\n")
            .machine() == "a?[2Jb");
  // Behind the title both are comments as any other.
  const cost_table by_hand =
      cost_table::parse("peerbus costs 1\n# measured on: B\n# number of costs: 7\na 1");
  CHECK(by_hand.machine().empty());
  CHECK(by_hand.find("a") == 1.0);
}

TEST_CASE("cost_table: the text of a file is refused wherever it is cut") {
  cost_table costs = cost_table::parse("peerbus costs 1\na 12\nb 0.25\n");
  for (const char* const machine : {"", "A processor, 3 cores"}) {
    costs.set_machine(machine);
    const std::string text = costs.file_text();
    for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
      CAPTURE(bytes);
      error_of(errc::invalid_argument,
               [&] { return cost_table::parse(std::string_view{text}.substr(0, bytes)); });
    }
  }
  const auto refused = [](std::string_view text) {
    return error_of(errc::invalid_argument, [&] { return cost_table::parse(text, "table"); });
  };
  const std::string head = "# number of costs: 2\npeerbus costs 1\n";
  CHECK(refused(head + "a 12\n") ==
        "table, line 3: \"a 12\" ends the text, whose number of costs is 1, expected 2 as line 1 "
        "says, or no such "
        "line");
  CHECK(
      refused(head + "a 12\nb 0.2") ==
      "table, line 4: \"b 0.2\" has no end of line, where the text is cut off after 2 of 2 costs");
  CHECK(refused(head + "a 12\nb") ==
        "table, line 4: \"b\" is no cost, expected a name, a space and a number, where the text is "
        "cut off after 1 of 2 costs");
  CHECK(refused(head + "a 12\nb 1\nc 1\n\n") ==
        "table, line 6: \"\" ends the text, whose number of costs is 3, expected 2 as line 1 says, "
        "or no such "
        "line");
  for (const char* number : {"", "two", "-1", "2 ", "1e1", "99999999999999999999"}) {
    CAPTURE(number);
    const std::string line = std::string{"# number of costs: "} + number;
    CHECK(refused(line + "\npeerbus costs 1\na 1\nb 2\n") ==
          "table, line 1: \"" + line + "\" gives no number of costs, expected a whole number");
  }
  CHECK(refused("# number of costs: 2\n" + head + "a 1\nb 1\n") ==
        "table, line 2: \"# number of costs: 2\" gives the number of costs a second time");
}

TEST_CASE("cost_table: a table that has costs of two machines names both") {
  const auto on = [](std::string_view machine, std::string_view costs) {
    cost_table made = cost_table::parse(std::string{"peerbus costs 1\n"} + std::string{costs});
    made.set_machine(machine);
    return made;
  };
  const auto merged = [](cost_table costs, const cost_table& other) {
    costs.merge(other);
    return std::string{costs.machine()};
  };
  CHECK(merged({}, on("A", "a 1")) == "A");
  CHECK(merged(on("A", "a 1\nb 1"), on("A", "b 2")) == "A");
  CHECK(merged(on("A", "a 1\nb 1"), on("B", "b 2")) == "A and B");
  CHECK(merged(on("A and B", "a 1\nb 1"), on("B", "b 2")) == "A and B");
  CHECK(merged(on("A", "a 1\nb 1"), on("A and B", "b 2")) == "A and B");
  CHECK(merged(on("A", "a 1\nb 1"), on("B", "a 1\nb 2\nc 3")) == "B");  // None of A is left.
  CHECK(merged(on("", "a 1\nb 1"), on("B", "b 2")) == "an unnamed machine and B");
  CHECK(merged(on("A", "a 1\nb 1"), on("", "b 2")) == "A and an unnamed machine");
  CHECK(merged(on("", "a 1\nb 1"), on("", "b 2")).empty());
  CHECK(merged(on("A", "a 1"), {}) == "A");
}

TEST_CASE("cost_table: where costs were measured, for logs") {
  cost_table costs;
  CHECK(describe_origin(costs, "A").empty());
  costs.set_machine("A");
  CHECK(describe_origin(costs, "A") == "costs measured on A");
  CHECK(describe_origin(costs, "B") == "costs measured on another machine: A, this is B");
}

TEST_CASE("cost_table: this machine is its processor and its cores") {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("peerbus_machine_" + std::to_string(getpid()));
  std::filesystem::create_directories(root / "proc");
  const auto model_of = [&](std::string_view info) {
    std::ofstream{root / "proc" / "cpuinfo"} << info;
    return peerbus::cpu_model(root);
  };
  CHECK(model_of("processor\t: 0\nmodel\t\t: 85\nmodel name\t: A processor\nflags\t: " +
                 std::string(1000, 'x') + "\n") == "A processor");
  CHECK(model_of("processor\t: 0\nCPU part\t: 0xd40\n") == "0xd40");
  CHECK(model_of("processor\t: 0\n") == "unknown");
  std::filesystem::remove_all(root);
  CHECK(peerbus::cpu_model(root) == "unknown");
  CHECK(peerbus::this_machine().starts_with(peerbus::cpu_model() + ", "));
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
  std::ofstream{path} << "# number of costs: 2\npeerbus costs 1\na 1\n";
  CHECK(error_of(errc::invalid_argument, [&] { return cost_table::load(path); }) ==
        path +
            ", line 3: \"a 1\" ends the text, whose number of costs is 1, expected 2 as line 1 "
            "says, or no such "
            "line");
  std::filesystem::remove(path);
  CHECK(error_of(errc::system, [&] { return cost_table::load(path); }) ==
        "costs cannot be read from " + path);
  error_of(errc::system, [&] { return cost_table::load(folder); });
}

}  // namespace cost_table_test
