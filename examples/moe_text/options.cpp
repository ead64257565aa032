// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace moe_text {

namespace {

constexpr std::string_view usage =
    "usage: moe_text [FILE] [--ranks N] [--experts E] [--top-k K] [--hidden H] [--codec C]\n"
    "                [--transport T] [--balance N]\n"
    "\n"
    "Sends the words of FILE (the README by default) through a small mixture of experts on N\n"
    "processes and compares what comes back with a plain computation in one process. If torchrun,\n"
    "mpirun or srun has started it, its ranks are those processes; over verbs also on many hosts.\n"
    "\n"
    "  --ranks N      processes, 1 to 256 (8)\n"
    "  --experts E    experts of the whole group, 1 to 1024 (64)\n"
    "  --top-k K      experts per word, 1 to 32 (8)\n"
    "  --hidden H     channels of a word's vector, a multiple of 16 up to 16384 (256)\n"
    "  --codec C      how vectors travel: int8 or bf16 (int8)\n"
    "  --balance N    places for replicas at each rank, 1 to 64: in the middle of the text the\n"
    "                 busiest experts get several, at different ranks (off)\n"
    "  --transport T  by what: ub, memory of this host, or verbs, an RDMA device (ub)\n"
    "\n"
    "Exit status: 0 all right, 1 wrong result or failure, 2 bad command line or file.\n";

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument{text}; }

struct number_option {
  std::string_view name;
  std::size_t options::* value;
  std::size_t most;
};
constexpr std::array number_options{number_option{"--balance", &options::balance, 64},
                                    number_option{"--ranks", &options::ranks, 256},
                                    number_option{"--experts", &options::experts, 1024},
                                    number_option{"--top-k", &options::top_k, 32},
                                    number_option{"--hidden", &options::hidden, 16384}};

std::size_t parse_number(const number_option& option, const std::string& text) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop != end || value == 0 || value > option.most)
    refuse(std::string{option.name} + " was given '" + text +
           "', expected a whole number from 1 to " + std::to_string(option.most));
  return value;
}

wire_codec parse_codec(std::string_view text) {
  if (text == "int8") return wire_codec::int8;
  if (text == "bf16") return wire_codec::bf16;
  refuse("--codec was given '" + std::string{text} + "', expected int8 or bf16");
}

transport parse_transport(std::string_view text) {
  if (text == "ub") return transport::ub;
  if (text == "verbs") return transport::verbs;
  refuse("--transport was given '" + std::string{text} + "', expected ub or verbs");
}

void check_together(const options& given) {
  if (given.top_k > given.experts)
    refuse("--top-k was given " + std::to_string(given.top_k) + ", expected at most --experts, " +
           std::to_string(given.experts));
  if (given.hidden % 16 != 0)
    refuse("--hidden was given " + std::to_string(given.hidden) + ", expected a multiple of 16");
  const std::size_t places = given.places_per_rank();
  if (given.balance != 0 && places > given.experts)
    refuse("--balance was given " + std::to_string(given.balance) + ", so that each rank has " +
           std::to_string(places) + " places, expected at most --experts, " +
           std::to_string(given.experts));
  constexpr std::size_t most = std::size_t{1} << 21;  // 512 MiB of weights.
  if (given.experts * given.hidden > most)
    refuse("--experts x --hidden is " + std::to_string(given.experts * given.hidden) +
           ", expected at most " + std::to_string(most));
}

/// Returns the README beside the sources of this build. A user who runs the program elsewhere names
/// a file.
std::string readme_of_the_project() {
  const auto here = std::filesystem::path{__FILE__}.parent_path();
  return (here / ".." / ".." / "README.md").lexically_normal().string();
}

}  // namespace

std::optional<options> parse(int argc, const char* const* argv) {
  options given;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help" || word == "-h") {
      std::fwrite(usage.data(), 1, usage.size(), stdout);
      return std::nullopt;
    }
    if (!word.starts_with("-")) {
      if (!given.file.empty())
        refuse("two files were given, '" + given.file + "' and '" + std::string{word} +
               "', expected one");
      if (word.empty()) refuse("the file's name is empty");
      given.file = word;
      continue;
    }
    const number_option* number = nullptr;
    for (const auto& option : number_options)
      if (option.name == word) number = &option;
    if (number == nullptr && word != "--codec" && word != "--transport")
      refuse("unknown option '" + std::string{word} +
             "', expected --ranks, --experts, --top-k, --hidden, --codec, --balance, --transport "
             "or --help");
    if (++i == argc) refuse(std::string{word} + " was given no value");
    if (number != nullptr)
      given.*(number->value) = parse_number(*number, argv[i]);
    else if (word == "--codec")
      given.codec = parse_codec(argv[i]);
    else
      given.bus = parse_transport(argv[i]);
  }
  check_together(given);
  if (given.file.empty()) given.file = readme_of_the_project();
  return given;
}

}  // namespace moe_text
