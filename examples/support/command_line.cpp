// SPDX-License-Identifier: MIT
#include "examples/support/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

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

/// Returns how many characters must be inserted, removed or replaced to turn `a` into `b`.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

/// Returns the name of the option that `given` may be meant for, or an empty string.
std::string option_like(const CLI::App& app, const std::string& given) {
  std::string nearest;
  std::size_t least = 3;  // More differences than 2 make another word.
  for (const CLI::Option* each : app.get_options())
    for (const std::string& name : each->get_lnames()) {
      const std::size_t differences = distance(given, "--" + name);
      if (differences == 0 || differences >= least) continue;
      least = differences;
      nearest = "--" + name;
    }
  return nearest;
}

/// Refuses arguments that are no option and that no option takes, by the first that looks like an
/// option: what follows it may be its value.
void refuse_unknown(const CLI::App& app) {
  std::vector<std::string> unknown = app.remaining();
  std::erase(unknown, "--");  // It ends the options.
  if (unknown.empty()) return;
  const auto option = std::ranges::find_if(
      unknown, [](const std::string& each) { return each.size() > 1 && each[0] == '-'; });
  if (option == unknown.end())
    throw CLI::ParseError{complaint(unknown.front(), "only options and their values"),
                          CLI::ExitCodes::ExtrasError};
  const std::string like = option_like(app, option->substr(0, option->find('=')));
  throw CLI::ParseError{complaint(*option, like.empty() ? "an option of the program" : like),
                        CLI::ExitCodes::ExtrasError};
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

constexpr std::size_t columns = 100;

/// Returns the text in lines of at most `width` characters, where words allow it. A line may end
/// behind a space or one of `ends`.
std::vector<std::string> lines_of(std::string text, std::size_t width, const std::string& ends) {
  const std::string breaks = " " + ends;
  std::vector<std::string> lines;
  while (text.size() > width) {
    const std::size_t begin = text.find_first_not_of(' ');
    std::size_t at = text.find_last_of(breaks, width - 1);
    if (at == std::string::npos || at <= begin) at = text.find_first_of(breaks, width);
    if (at == std::string::npos) break;
    lines.push_back(text.substr(0, text[at] == ' ' ? at : at + 1));
    text.erase(0, at + 1);
  }
  lines.push_back(text);
  return lines;
}

/// The help in lines of at most `columns` characters.
class narrow_help final : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_description(const CLI::App* app) const override {
    std::istringstream given{CLI::Formatter::make_description(app)};
    std::string made;
    for (std::string line; std::getline(given, line);)
      for (const std::string& part : lines_of(line, columns, "")) made.append(part).append("\n");
    return made;
  }
  [[nodiscard]] std::string make_option(const CLI::Option* given,
                                        bool is_positional) const override {
    const std::size_t begin = get_column_width();
    const std::string indent(4, ' ');
    std::string made;
    for (const std::string& part :
         lines_of("  " + make_option_name(given, is_positional) + make_option_opts(given),
                  columns - indent.size(), "|")) {
      if (!made.empty()) made.append("\n").append(indent);
      made += part;
    }
    if (make_option_desc(given).empty()) return made.append("\n");
    // The text stands beside the name if that leaves room.
    std::size_t at = made.size() - (made.rfind('\n') + 1);
    if (at >= begin) {
      made += '\n';
      at = 0;
    }
    for (const std::string& part : lines_of(make_option_desc(given), columns - begin, "")) {
      made.append(begin - at, ' ').append(part).append("\n");
      at = 0;
    }
    return made;
  }
};

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
  const auto as_number = [](std::string& given) {
    std::string refusal =
        complaint(given, "bytes, as a whole number with or without a unit, such as 8 or 64K");
    std::string size = given;
    try {
      if (given.starts_with('-') || !CLI::AsSizeValue{false}(size).empty()) return refusal;
    } catch (const CLI::ValidationError&) {
      return refusal;  // The text of the error lists dozens of units.
    }
    given = size;
    return std::string{};
  };
  declared_->transform(CLI::Validator{as_number, "SIZE [b, kb(=1024b), ...]", "bytes"});
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
  app_->formatter(std::make_shared<narrow_help>());
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app_->allow_extras();  // `parse` refuses them, because CLI11 prints them in reverse order.
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
    refuse_unknown(*app_);
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
