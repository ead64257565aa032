// SPDX-License-Identifier: MIT
#include "examples/support/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <system_error>

#include <CLI/CLI.hpp>

namespace programs {
namespace {

/// Returns whether all of `text` is a number.
template <class Number>
bool read(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && stop == end;
}

std::string complaint(const std::string& given, const std::string& expected) {
  return "'" + given + "' given, expected " + expected;
}

std::string text_of(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

bool has_default(const std::string& value) { return !value.empty(); }
bool has_default(const std::optional<std::size_t>& value) { return value.has_value(); }
template <class Element>
bool has_default(const std::vector<Element>& values) {
  return !values.empty();
}
template <class Number>
bool has_default(const Number& value) {
  return value != Number{};
}

template <class Value>
CLI::Option& add_to(CLI::App& app, const char* names, Value& value, const char* help) {
  CLI::Option& added = *app.add_option(names, value, help);
  if (has_default(value)) added.capture_default_str();
  return added;
}

}  // namespace

void refuse(const std::string& option, const std::string& text) {
  throw CLI::ValidationError{option, text};
}

// Numbers are transformed to their plain form, because CLI11 would read 010 as octal.
option& option::whole_number(std::int64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  const auto plain = [=](std::string& given) {
    std::int64_t negative = 0;
    std::uint64_t value = 0;
    if (read(given, value) && value <= most && (least < 0 || value >= std::uint64_t(least)))
      given = std::to_string(value);
    else if (!read(given, negative) || negative >= 0 || negative < least)
      return complaint(given, "a whole number from " + range);
    return std::string{};
  };
  declared_->transform(CLI::Validator{plain, range, "whole number"});
  return *this;
}

option& option::number(double least, double most) {
  const std::string range = text_of(least) + " to " + text_of(most);
  const auto in_range = [=](std::string& given) {
    double value = 0;
    const bool fits = read(given, value) && value >= least && value <= most;
    return fits ? std::string{} : complaint(given, "a number from " + range);
  };
  declared_->check(CLI::Validator{in_range, range, "number"});
  return *this;
}

option& option::bytes() {
  declared_->transform(CLI::AsSizeValue{false});
  return *this;
}

option& option::one_of(const std::vector<std::string>& choices) {
  std::string in_words;
  std::string in_help;
  for (const std::string& choice : choices) {
    if (!in_words.empty()) in_words += &choice == &choices.back() ? " or " : ", ";
    in_words += choice;
    in_help += (in_help.empty() ? "" : "|") + choice;
  }
  const auto is_choice = [=](std::string& given) {
    return std::ranges::count(choices, given) != 0 ? std::string{} : complaint(given, in_words);
  };
  declared_->check(CLI::Validator{is_choice, in_help, "choice"});
  return *this;
}

option& option::check(const char* expected, std::string (*complaint)(const std::string& given)) {
  declared_->check(CLI::Validator{[=](std::string& given) { return complaint(given); }, expected});
  return *this;
}

option& option::by_commas() {
  declared_->delimiter(',');
  return *this;
}

option& option::required() {
  declared_->required();
  return *this;
}

bool option::given() const { return declared_->count() != 0; }

command_line::command_line(const char* program, const char* description)
    : app_{std::make_unique<CLI::App>(description, program)} {
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

command_line::~command_line() = default;

option command_line::add(const char* names, bool& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, int& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, std::uint32_t& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, std::size_t& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, double& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, std::string& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, std::optional<std::size_t>& value, const char* help) {
  return option{add_to(*app_, names, value, help)};
}
option command_line::add(const char* names, std::vector<std::size_t>& values, const char* help) {
  CLI::Option& added = add_to(*app_, names, values, help);
  added.multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->delimiter(',');
  return option{added};
}
option command_line::add(const char* names, std::vector<std::string>& values, const char* help) {
  CLI::Option& added = add_to(*app_, names, values, help);
  added.multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return option{added};
}
option command_line::flag(const char* names, bool& value, const char* help) {
  return option{*app_->add_flag(names, value, help)};
}

void command_line::group(const char* title) { app_->option_defaults()->group(title); }

std::optional<int> command_line::parse(int argc, char** argv, const std::function<void()>& check,
                                       bool is_printing) {
  try {
    app_->parse(argc, argv);
    if (check) check();
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    if (is_printing) std::cout << app_->help();
    return 0;
  } catch (const CLI::ParseError& found) {
    const std::string program = app_->get_name();
    if (is_printing)
      std::cerr << program << ": " << found.what() << "\n"
                << program << " --help lists the options.\n";
    return bad_command_line;
  }
}

std::vector<command_line::given_option> command_line::given() const {
  std::vector<given_option> all;
  for (const CLI::Option* each : app_->get_options())
    if (each->count() != 0) all.push_back({each->get_name(), each->get_group()});
  return all;
}

}  // namespace programs
