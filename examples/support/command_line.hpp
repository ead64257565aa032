// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Command lines of examples and benchmarks. CLI11 reads them, but only command_line.cpp includes
/// it: to compile CLI11 takes longer than to compile most of our programs.
namespace programs {

/// The exit status of a program whose command line is wrong.
inline constexpr int bad_command_line = 2;

/// Refuses what was given for an option.
/// Throws: what `command_line::parse` prints as "option: text".
[[noreturn]] void refuse(const std::string& option, const std::string& text);

/// An option that a `command_line` has. Each function but `given` returns the option itself.
class option {
 public:
  explicit option(CLI::Option& declared) noexcept : declared_{&declared} {}

  /// Accepts only decimal whole numbers from `least` to `most`.
  option& whole_number(std::int64_t least, std::uint64_t most);
  /// Accepts only numbers from `least` to `most`.
  option& number(double least, double most);
  /// Accepts only numbers of bytes, with or without a unit of 1024, such as 8 or 64K.
  option& bytes();
  /// Accepts only one of these texts.
  option& one_of(const std::vector<std::string>& choices);
  /// Accepts only texts about which `complaint` returns an empty string. `--help` shows `expected`.
  option& check(const char* expected, std::string (*complaint)(const std::string& given));
  /// Splits each value at commas.
  option& by_commas();
  /// Refuses command lines without this option.
  option& required();
  /// Returns whether the parsed command line has this option.
  [[nodiscard]] bool given() const;

 private:
  CLI::Option* declared_;
};

/// A program's options. They are declared first, then `parse` sets the variables behind them.
class command_line {
 public:
  struct given_option {
    std::string name;
    std::string group;
  };

  command_line(const char* program, const char* description);
  command_line(const command_line&) = delete;
  command_line& operator=(const command_line&) = delete;
  ~command_line();

  ///@{ Declares an option with a value, or a positional argument if `names` has no dashes. Of
  /// several values, the last counts. A list takes all of them; one of numbers splits them at
  /// commas too. `--help` shows the variable's present value, unless it is zero or empty.
  option add(const char* names, bool& value, const char* help = "");
  option add(const char* names, int& value, const char* help = "");
  option add(const char* names, std::uint32_t& value, const char* help = "");
  option add(const char* names, std::size_t& value, const char* help = "");
  option add(const char* names, double& value, const char* help = "");
  option add(const char* names, std::string& value, const char* help = "");
  option add(const char* names, std::optional<std::size_t>& value, const char* help = "");
  option add(const char* names, std::vector<std::size_t>& values, const char* help = "");
  option add(const char* names, std::vector<std::string>& values, const char* help = "");
  ///@}
  /// Declares an option without a value. A name after `!` sets `value` to false.
  option flag(const char* names, bool& value, const char* help = "");

  /// Puts the options that are declared from now on under this title in `--help`, such as "Results
  /// (--json FILE)": the example is part of it.
  void group(const char* title);

  /// Sets the variables as the command line says, then calls `check`, which may `refuse`. Returns
  /// nothing, or the exit status: 0 after `--help`, `bad_command_line` after an error. Prints the
  /// help or the error only if `is_printing`, for ranks that all have the same command line.
  [[nodiscard]] std::optional<int> parse(int argc, char** argv,
                                         const std::function<void()>& check = {},
                                         bool is_printing = true);

  /// Returns the options that the parsed command line has.
  [[nodiscard]] std::vector<given_option> given() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace programs
