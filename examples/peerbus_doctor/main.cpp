// SPDX-License-Identifier: MIT
// Prints what the ranks of a group see of their machines, and tries whether they reach each other.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#ifdef PEERBUS_DOCTOR_TCP
#include <peerbus/bootstrap/tcp.hpp>
#endif

#include "checks/collect.hpp"
#include "checks/diagnose.hpp"
#include "checks/show_facts.hpp"
#include "options.hpp"
#include "report.hpp"
#include "tries.hpp"

namespace peerbus_doctor {
namespace {

using clock = std::chrono::steady_clock;

constexpr int found_problems = 1;
constexpr int wrong_arguments = 2;

/// The report is printed part by part, so that it is not lost if a later part takes long.
void print(const options& chosen, const std::string& text) {
  if (chosen.json == "-") return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Prints what is not yet printed. Returns the exit status.
int finish(const report& known) {
  print(known.chosen, findings_text(known));
  if (!known.chosen.json.empty()) {
    const bool is_stdout = known.chosen.json == "-";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{
        is_stdout ? stdout : std::fopen(known.chosen.json.c_str(), "w"),
        is_stdout ? [](std::FILE* shared) { return std::fflush(shared); } : &std::fclose};
    const std::string text = report_json(known);
    if (!file || std::fputs(text.c_str(), file.get()) < 0 || std::fflush(file.get()) != 0) {
      std::fprintf(stderr, "peerbus_doctor: --json: cannot write '%s'\n",
                   known.chosen.json.c_str());
      return wrong_arguments;
    }
  }
  return known.worst() == level::problem ? found_problems : 0;
}

std::vector<rank_message> tell_all(peerbus::bootstrap& boot, const options& chosen,
                                   const facts& own, const purpose& wanted) {
  const std::string told = encode(own, diagnose(own, wanted));
  const auto* const bytes = reinterpret_cast<const std::byte*>(told.data());
  const auto given =
      boot.allgather({{bytes, bytes + told.size()}, {}},
                     peerbus::deadline::after(chosen.tries.timeout), "facts of peerbus_doctor");
  std::vector<rank_message> messages;
  if (boot.rank() != peerbus::rank_id{0}) return messages;
  for (const auto& each : given)
    messages.push_back(
        decode({reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size()}));
  return messages;
}

/// Rank 0's part, once the ranks have met. Returns the exit status.
/// Throws: `error` timed_out after the report if a rank does not answer, so that `run_local` ends
/// it.
int lead(peerbus::bootstrap& boot, const options& chosen, const facts& own, double meeting_ms) {
  const purpose wanted{chosen.transport, boot.size(), own.launcher.rank.has_value()};
  report known{.chosen = chosen, .own = own, .meeting_ms = meeting_ms};
  const auto add = [&](const std::vector<finding>& more) {
    known.findings.insert(known.findings.end(), more.begin(), more.end());
  };
  try {
    known.ranks = tell_all(boot, chosen, own, wanted);
    print(chosen, group_text(known));
    std::vector<std::vector<finding>> of_ranks;
    std::vector<member> members;
    for (const rank_message& each : known.ranks) {
      of_ranks.push_back(each.findings);
      members.push_back(each.self);
    }
    add(merge(of_ranks));
    add(diagnose_group(members, wanted));
    known.pairs = try_pairs(boot, chosen.transport, chosen.tries,
                            [&] { print(chosen, begin_text(boot.size())); });
    print(chosen, pairs_text(*known.pairs, chosen.tries));
    add(diagnose_pairs(*known.pairs));
  } catch (const peerbus::error& failure) {
    if (known.ranks.empty()) add(diagnose(own, wanted));
    add({diagnose_failure(failure.code(), failure.text())});
  }
  const int status = finish(known);
  if (known.pairs && known.pairs->has_silent_rank)
    throw peerbus::error{peerbus::errc::timed_out, "a rank does not answer"};
  return status;
}

/// One rank's part, once the ranks have met. Returns the exit status.
int examine(peerbus::bootstrap& boot, const options& chosen, const facts& own, double meeting_ms) {
  if (boot.rank() == peerbus::rank_id{0}) return lead(boot, chosen, own, meeting_ms);
  static_cast<void>(
      tell_all(boot, chosen, own, {chosen.transport, boot.size(), own.launcher.rank.has_value()}));
  static_cast<void>(try_pairs(boot, chosen.transport, chosen.tries, [] {}));
  return 0;
}

/// Meets the ranks that a launcher started.
std::unique_ptr<peerbus::bootstrap> meet(const options& chosen, const launcher_facts& launcher) {
  const auto until = peerbus::deadline::after(chosen.tries.timeout);
#ifdef PEERBUS_DOCTOR_TCP
  const bool may_leave_host = chosen.transport != "unified_bus";  // A launcher starts no threads.
  if (may_leave_host || !launcher.other_hosts.empty()) {
    using peerbus::tcp_bootstrap;
    return std::unique_ptr<tcp_bootstrap>(
        new tcp_bootstrap(tcp_bootstrap::from_environment(until)));
  }
#else
  static_cast<void>(launcher);
#endif
  using peerbus::environment_bootstrap;
  return std::unique_ptr<environment_bootstrap>(
      new environment_bootstrap(environment_bootstrap::from_environment(until)));
}

/// Runs one of the ranks that a launcher started. If the ranks cannot meet, rank 0 reports, and so
/// does a rank that does not know its number.
int run_launched(const options& chosen) {
  const facts own = collect();
  const bool is_reporter = own.launcher.rank.value_or(0) == 0;
  if (is_reporter) print(chosen, show(own).text);
  const auto start = clock::now();
  std::unique_ptr<peerbus::bootstrap> boot;
  try {
    boot = meet(chosen, own.launcher);
  } catch (const peerbus::error& failure) {
    if (!is_reporter) throw;
    report known{.chosen = chosen, .own = own};
    known.findings = diagnose(own, {chosen.transport, 1, true});
    if (own.launcher.trouble.empty())
      known.findings.push_back(diagnose_failure(failure.code(), failure.text()));
    return finish(known);
  }
  const std::chrono::duration<double, std::milli> meeting = clock::now() - start;
  return examine(*boot, chosen, own, meeting.count());
}

/// Starts the ranks on this host.
int run_here(const options& chosen) {
  const auto start = clock::now();
  const auto body = [&](peerbus::bootstrap& boot) {
    const std::chrono::duration<double, std::milli> meeting = clock::now() - start;
    const facts own = collect();
    if (boot.rank() == peerbus::rank_id{0}) print(chosen, show(own).text);
    return examine(boot, chosen, own, meeting.count());
  };
  const int status = chosen.transport == "loopback" ? peerbus::run_threads(chosen.ranks, body)
                                                    : peerbus::run_local(chosen.ranks, body);
  return status > wrong_arguments ? found_problems : status;  // A rank may have been killed.
}

}  // namespace
}  // namespace peerbus_doctor

int main(int argc, char** argv) {
  try {
    const bool is_launched = peerbus::environment_bootstrap::launched();
    const auto chosen = peerbus_doctor::parse(argc, argv, is_launched);
    return is_launched ? peerbus_doctor::run_launched(chosen) : peerbus_doctor::run_here(chosen);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peerbus_doctor: %s\n", failure.what());
    return peerbus_doctor::found_problems;
  }
}
