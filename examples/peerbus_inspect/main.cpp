// SPDX-License-Identifier: MIT
// Prints what the ranks of a running job do, and which of them keep the others waiting.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <peerbus/bootstrap/observed_group.hpp>
#include <peerbus/core/error.hpp>

#include "examples/support/command_line.hpp"
#include "report.hpp"

namespace peerbus_inspect {
namespace {

constexpr int found_a_culprit = 1;
constexpr int cannot_look = 2;

struct options {
  std::vector<std::size_t> processes;
  double watch = 0;  ///< seconds between two reports; 0 for one report
  double patience = 0.1;
  bool json = false;
};

void add(std::vector<peerbus::observed_group>& all, pid_t process) {
  for (peerbus::observed_group& group : peerbus::observed_group::attach(process))
    if (std::ranges::find(all, group) == all.end()) all.push_back(std::move(group));
}

/// The groups of some processes and of all ranks that are in one of them.
struct attached {
  std::vector<peerbus::observed_group> groups{};
  std::vector<std::size_t> gone{};  ///< of the processes, those that have ended
};

/// Returns the groups of `processes`, of which it names on stderr those that have ended.
/// Throws: `error` as `observed_group::attach`; invalid_argument if all have ended.
attached attach_all(const std::vector<std::size_t>& processes) {
  attached found;
  auto& all = found.groups;
  std::set<pid_t> known;
  std::optional<peerbus::error> ended;
  for (const std::size_t each : processes) {
    known.insert(static_cast<pid_t>(each));
    try {
      add(all, static_cast<pid_t>(each));
    } catch (const peerbus::error& caught) {
      if (caught.code() != peerbus::errc::invalid_argument) throw;
      if (processes.size() > 1)
        std::fprintf(stderr, "peerbus_inspect: process %zu is gone\n", each);
      found.gone.push_back(each);
      ended = caught;
    }
  }
  if (all.empty() && ended) throw peerbus::error{*ended};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const peerbus::observed_rank& rank : all[i].read()) {
      // The number of a process that is gone may be another's by now.
      if (rank.process == 0 || rank.is == peerbus::process_state::gone ||
          !known.insert(rank.process).second)
        continue;
      try {
        add(all, rank.process);
      } catch (const peerbus::error&) {  // It has ended, or is another user's.
        continue;
      }
    }
  return found;
}

int run(const options& chosen) {
  const auto patience =
      std::chrono::ceil<std::chrono::nanoseconds>(std::chrono::duration<double>{chosen.patience});
  for (std::optional<int> status;;) {
    std::vector<group_view> groups;
    attached found;
    try {
      found = attach_all(chosen.processes);
      groups = look_at(found.groups, patience);
    } catch (const peerbus::error&) {
      if (!status) throw;
      return *status;  // The job has ended.
    }
    const std::string text =
        chosen.json ? report_json(groups, found.gone) : report_text(groups) + "\n";
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return cannot_look;
    status = groups.front().answer.found > finding::moving ? found_a_culprit : 0;
    if (chosen.watch == 0) return *status;
    std::this_thread::sleep_for(std::chrono::duration<double>{chosen.watch});
  }
}

}  // namespace
}  // namespace peerbus_inspect

int main(int argc, char** argv) {
  peerbus_inspect::options chosen;
  programs::command_line line{
      "peerbus_inspect",
      "Prints what the ranks of a running job do, and which of them keep the others waiting. Exit "
      "status: 0 if no rank has waited for long, 1 if one has, 2 if nothing can be seen. With "
      "--watch it is that of the last report."};
  line.add("PID", chosen.processes, "A process of the job. Several for a job that met over TCP")
      .required()
      .whole_number(1, INT32_MAX);
  line.add("--watch", chosen.watch, "Prints a report every so many seconds until the job ends")
      .number(0.01, 86400);
  line.add("--patience", chosen.patience, "Seconds for which a rank may wait in a job that works")
      .number(0, 86400);
  line.flag("--json", chosen.json, "Prints JSON instead of text");
  if (const auto status = line.parse(argc, argv)) return *status;
  try {
    return peerbus_inspect::run(chosen);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peerbus_inspect: %s\n", failure.what());
    return peerbus_inspect::cannot_look;
  }
}
