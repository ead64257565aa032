// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>

#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/log.hpp>

#include "examples/support/command_line.hpp"

namespace peerbus_doctor {
namespace {

constexpr std::array transports{"unified_bus", "loopback", "verbs", "fabric", "planes"};

#ifdef PEERBUS_DOCTOR_VERBS
constexpr bool has_verbs = true;
#else
constexpr bool has_verbs = false;
#endif
#ifdef PEERBUS_DOCTOR_FABRIC
constexpr bool has_fabric = true;
#else
constexpr bool has_fabric = false;
#endif

void check_together(const options& chosen, bool is_launched, bool has_ranks) {
  if (std::ranges::find(transports, chosen.transport) == transports.end())
    programs::refuse("--transport",
                     "'" + chosen.transport +
                         "' given, expected unified_bus, loopback, verbs, fabric or planes");
  if ((chosen.transport == "fabric" || chosen.transport == "planes") && !has_fabric)
    programs::refuse("--transport",
                     "'" + chosen.transport +
                         "' given, but this peerbus_doctor was built without libfabric (Debian: "
                         "libfabric-dev), expected unified_bus or loopback");
  if (chosen.transport == "verbs" && !has_verbs)
    programs::refuse("--transport",
                     "'verbs' given, but this peerbus_doctor was built without libibverbs (Debian: "
                     "libibverbs-dev), expected unified_bus or loopback");
  if (is_launched && chosen.transport == "loopback")
    programs::refuse("--transport",
                     "'loopback' given, whose ranks are threads, but a launcher has started this "
                     "process; expected unified_bus, verbs, fabric or planes");
  if (is_launched && has_ranks)
    programs::refuse("--ranks",
                     "given, but a launcher has started this process and says how many; expected "
                     "no --ranks, or no RANK and WORLD_SIZE (or what the launcher sets in their "
                     "place)");
  if (chosen.tries.put_bytes % sizeof(std::uint64_t) != 0)
    programs::refuse("--put-bytes",
                     std::to_string(chosen.tries.put_bytes) + " given, expected a multiple of 8");
  try {
    static_cast<void>(peerbus::stderr_log::from_environment({}));
  } catch (const peerbus::error& wrong) {
    programs::refuse("environment", std::string{wrong.text()});
  }
}

}  // namespace

options parse(int argc, char** argv, bool is_launched) {
  options chosen;
  std::size_t seconds = 30;
  programs::command_line line{
      "peerbus_doctor",
      "Prints what each rank sees of its machine, lets all ranks meet, tries a signal and a put\n"
      "between each two, and says how to mend what is wrong. Ask for its output first in a bug\n"
      "report. Ranks are processes of this host, or those that torchrun, mpirun or srun "
      "started.\n\n"
      "Exit status: 0 if nothing is wrong (there may be notes and warnings), 1 if something is,\n"
      "2 for wrong arguments."};
  const programs::option ranks =
      line.add("--ranks", chosen.ranks,
               "Ranks to start on this host (default: a rank per usable core, 2 to 8)")
          .whole_number(1, 1024);
  line.add(
      "--transport", chosen.transport,
      "unified_bus, loopback (ranks are threads), verbs (RDMA), fabric (libfabric over TCP), or "
      "planes (unified_bus within a host and fabric between hosts)");
  line.add("--json", chosen.json, "Write JSON to this file; - writes it in place of the text");
  line.add("--timeout", seconds, "Seconds for the meeting, and for each pair of ranks")
      .whole_number(1, 3600);
  line.add("--rounds", chosen.tries.rounds, "Round trips of a signal for each pair")
      .whole_number(1, 1'000'000'000);
  line.add("--put-bytes", chosen.tries.put_bytes, "Bytes of each put, a multiple of 8")
      .whole_number(8, std::uint64_t{1} << 30U);
  const auto check = [&] { check_together(chosen, is_launched, ranks.given()); };
  if (const auto status = line.parse(argc, argv, check)) std::exit(*status);
  if (!is_launched && chosen.ranks == 0)
    chosen.ranks = std::clamp<std::size_t>(peerbus::usable_cores(), 2, 8);
  chosen.tries.timeout = std::chrono::seconds{seconds};
  chosen.arguments.assign(argv + 1, argv + argc);
  return chosen;
}

}  // namespace peerbus_doctor
