// SPDX-License-Identifier: MIT
#include "ep_bench/options.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

namespace ep_bench {
namespace {

template <class Number>
bool read_whole(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && stop == end;
}

/// Leaves the number in its plain form: CLI11 would read 010 as octal.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return {[=](std::string& given) {
            std::uint64_t value = 0;
            const bool fits = read_whole(given, value) && value >= least && value <= most;
            if (!fits) return "'" + given + "' given, expected a whole number from " + range;
            given = std::to_string(value);
            return std::string{};
          },
          range, "whole number"};
}

CLI::Validator one_of(const std::string& first, const std::string& second) {
  return {[=](std::string& given) {
            return given == first || given == second
                       ? std::string{}
                       : "'" + given + "' given, expected " + first + " or " + second;
          },
          first + "|" + second, "choice"};
}

std::optional<double> zipf_exponent(const std::string& routing) {
  if (routing == "uniform") return 0.0;
  constexpr std::string_view prefix = "zipf:";
  double exponent = 0;
  if (routing.rfind(prefix, 0) != 0 || !read_whole(routing.substr(prefix.size()), exponent) ||
      !std::isfinite(exponent) || exponent < 0 || exponent > 100)
    return std::nullopt;
  return exponent;
}

CLI::Validator a_routing() {
  return {[](std::string& given) {
            return zipf_exponent(given)
                       ? std::string{}
                       : "'" + given +
                             "' given, expected uniform, or zipf:S with a number S from 0 to 100 "
                             "such as zipf:1.2";
          },
          "uniform|zipf:S", "routing"};
}

/// Tries to open it before the run, so that an hour of measuring is not lost to a wrong path.
CLI::Validator writable_file() {
  return {[](std::string& given) {
            std::error_code ignored;
            const bool existed = std::filesystem::exists(given, ignored);
            errno = 0;
            const bool opened = std::ofstream{given, std::ios::app}.is_open();
            const std::string reason = std::strerror(errno);
            if (opened && !existed) std::filesystem::remove(given, ignored);
            return opened ? std::string{}
                          : "'" + given + "' cannot be written (" + reason +
                                "), expected the path of a file to create or replace";
          },
          "FILE", "writable file"};
}

void check_together(const options& chosen) {
  if (chosen.top_k > chosen.experts)
    throw CLI::ValidationError{"--top-k", std::to_string(chosen.top_k) +
                                              " given, expected at most the number of experts, " +
                                              std::to_string(chosen.experts)};
  if (chosen.hidden % 16 != 0)
    throw CLI::ValidationError{"--hidden",
                               std::to_string(chosen.hidden) + " given, expected a multiple of 16"};
}

}  // namespace

void complain(const std::string& option, const std::string& text) {
  std::cerr << "ep_bench: " << option << ": " << text << '\n';
}

std::variant<options, int> parse(int argc, char** argv) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  options chosen;
  CLI::App app{
      "Measures MoE dispatch and combine, beside the time that plainly copying and reading the\n"
      "same bytes takes. Starts the ranks itself, or joins those of torchrun, mpirun or srun.",
      "ep_bench"};
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--transport", chosen.transport, "ub: processes; loopback: threads")
      ->check(one_of("ub", "loopback"));
  auto* const ranks = app.add_option("--ranks", chosen.ranks, "size of the group")
                          ->transform(whole_number(1, 4096));
  app.add_option("--tokens", chosen.tokens, "tokens of each rank")
      ->transform(whole_number(1, most));
  app.add_option("--hidden", chosen.hidden, "channels of a token, a multiple of 16")
      ->transform(whole_number(16, most));
  app.add_option("--top-k", chosen.top_k, "experts of each token")->transform(whole_number(1, 32));
  app.add_option("--experts", chosen.experts, "experts of the group")
      ->transform(whole_number(1, 1 << 20));
  app.add_option("--codec", chosen.codec, "how rows look on the wire")
      ->check(one_of("bf16", "int8"));
  app.add_option("--routing", chosen.routing,
                 "all experts alike, or their popularity falling as rank^-S")
      ->check(a_routing());
  app.add_option("--iters", chosen.iterations, "timed iterations")
      ->transform(whole_number(1, 10'000'000));
  app.add_option("--warmup", chosen.warmup, "iterations before them")
      ->transform(whole_number(0, 10'000'000));
  app.add_option("--seed", chosen.seed, "of tokens, weights and routing")
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  app.add_option("--json", chosen.json, "also write the results there")->check(writable_file());
  bool pin = false;
  auto* const pinning =
      app.add_flag("--pin,!--no-pin", pin,
                   "rank i stays on the i-th usable core [as long as every rank can have its own]");

  try {
    app.parse(argc, argv);
    check_together(chosen);
  } catch (const CLI::ParseError& found) {
    if (found.get_exit_code() == 0) return app.exit(found);
    std::cerr << "ep_bench: " << found.what() << "\nep_bench --help lists the options.\n";
    return bad_command_line;
  }
  chosen.ranks_given = ranks->count() != 0;
  if (pinning->count() != 0) chosen.pin = pin;
  chosen.zipf = *zipf_exponent(chosen.routing);
  return chosen;
}

}  // namespace ep_bench
