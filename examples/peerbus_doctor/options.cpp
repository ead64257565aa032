// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>

#include <CLI/CLI.hpp>

#include <peerbus/core/cores.hpp>

#include "support/whole_number.hpp"

namespace peerbus_doctor {
namespace {

using examples::whole_number;

constexpr std::array transports{"unified_bus", "loopback", "verbs"};

#ifdef PEERBUS_DOCTOR_VERBS
constexpr bool has_verbs = true;
#else
constexpr bool has_verbs = false;
#endif

void check_together(const CLI::App& app, const options& chosen, bool is_launched) {
  if (std::ranges::find(transports, chosen.transport) == transports.end())
    throw CLI::ValidationError{
        "--transport", "'" + chosen.transport + "' given, expected unified_bus, loopback or verbs"};
  if (chosen.transport == "verbs" && !has_verbs)
    throw CLI::ValidationError{
        "--transport",
        "'verbs' given, but this peerbus_doctor was built without libibverbs (Debian: "
        "libibverbs-dev), expected unified_bus or loopback"};
  if (is_launched && chosen.transport == "loopback")
    throw CLI::ValidationError{
        "--transport",
        "'loopback' given, whose ranks are threads, but a launcher has started this process; "
        "expected unified_bus or verbs"};
  if (is_launched && app.count("--ranks") != 0)
    throw CLI::ValidationError{
        "--ranks",
        "given, but a launcher has started this process and says how many; expected no "
        "--ranks, or no RANK and WORLD_SIZE (or what the launcher sets in their place)"};
  if (chosen.tries.put_bytes % sizeof(std::uint64_t) != 0)
    throw CLI::ValidationError{
        "--put-bytes", std::to_string(chosen.tries.put_bytes) + " given, expected a multiple of 8"};
}

}  // namespace

options parse(int argc, char** argv, bool is_launched) {
  options chosen;
  std::size_t seconds = 30;
  CLI::App app{
      "Prints what each rank sees of its machine, lets all ranks meet, tries a signal and a put\n"
      "between each two, and says how to mend what is wrong. Ask for its output first in a bug\n"
      "report. Ranks are processes of this host, or those that torchrun, mpirun or srun "
      "started.\n\n"
      "Exit status: 0 if nothing is wrong (there may be notes and warnings), 1 if something is,\n"
      "2 for wrong arguments.",
      "peerbus_doctor"};
  app.add_option("--ranks", chosen.ranks,
                 "Ranks to start on this host (default: a rank per usable core, 2 to 8)")
      ->check(whole_number(1, 1024));
  app.add_option("--transport", chosen.transport,
                 "unified_bus, loopback (ranks are threads) or verbs (RDMA)")
      ->capture_default_str();
  app.add_option("--json", chosen.json,
                 "Write JSON to this file; - writes it in place of the text");
  app.add_option("--timeout", seconds, "Seconds for the meeting, and for each pair of ranks")
      ->capture_default_str()
      ->check(whole_number(1, 3600));
  app.add_option("--rounds", chosen.tries.rounds, "Round trips of a signal for each pair")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000'000));
  app.add_option("--put-bytes", chosen.tries.put_bytes, "Bytes of each put, a multiple of 8")
      ->capture_default_str()
      ->check(whole_number(8, std::uint64_t{1} << 30U));
  try {
    app.parse(argc, argv);
    check_together(app, chosen, is_launched);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e) == 0 ? 0 : 2);
  }
  if (!is_launched && chosen.ranks == 0)
    chosen.ranks = std::clamp<std::size_t>(peerbus::usable_cores(), 2, 8);
  chosen.tries.timeout = std::chrono::seconds{seconds};
  chosen.arguments.assign(argv + 1, argv + argc);
  return chosen;
}

}  // namespace peerbus_doctor
