// SPDX-License-Identifier: MIT
#include "show_facts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/text.hpp>

#include "describe.hpp"

namespace peerbus_doctor {
namespace {

using json = nlohmann::ordered_json;
using peerbus::concat;

constexpr std::size_t most_gids = 8;  // As lines.

/// Things of one kind: as an array, and one behind the other on a line.
struct item_list {
  json values = json::array();
  std::string text;

  void add(const json& value, const std::string& words) {
    values.push_back(value);
    text += (text.empty() ? "" : ", ") + words;
  }
  [[nodiscard]] std::string text_or(std::string_view none) const {
    return text.empty() ? std::string{none} : text;
  }
};

item_list list_of(const std::vector<std::string>& words) {
  item_list list;
  for (const std::string& each : words) list.add(each, each);
  return list;
}

template <class T>
json value_of(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

/// Returns null for a limit that the system does not set.
json limit_of(std::uint64_t value) { return value == unlimited ? json(nullptr) : json(value); }

json limit_of(const soft_and_hard& limit) {
  return {{"soft", limit_of(limit.soft)}, {"hard", limit_of(limit.hard)}};
}

void show(shown_facts& shown, const build_facts& build) {
  const item_list parts = list_of(build.parts);
  shown.values["build"] = {
      {"library", build.library}, {"compiler", build.compiler}, {"parts", parts.values}};
  shown.text += concat("peerbus_doctor: ", build.library, "; ", build.compiler,
                       "; parts: ", parts.text_or("none"), "\n\nwhat rank 0 sees\n");
}

void show(shown_facts& shown, const launcher_facts& launcher) {
  shown.text += report_line(
      "launcher", launcher.rank_variable.empty() ? "none" : "found by " + launcher.rank_variable);
  json variables = json::object();
  for (const variable& each : launcher.variables) {
    variables[each.name] = each.value;
    shown.text += report_line("", each.name + "=" + each.value);
  }
  shown.values["launcher"] = {{"rank_variable", launcher.rank_variable},
                              {"rank", value_of(launcher.rank)},
                              {"variables", variables},
                              {"trouble", launcher.trouble},
                              {"other_hosts", launcher.other_hosts}};
}

void show(shown_facts& shown, const host_facts& host) {
  shown.values["host"] = {
      {"name", host.name}, {"kernel", host.kernel}, {"container", host.container}};
  shown.text +=
      report_line("host", concat(host.name, ", ", host.kernel)) +
      report_line("container", host.container.empty() ? "no sign of one" : host.container);
}

void show(shown_facts& shown, const processor_facts& processor) {
  item_list nodes;
  for (const numa_node& node : processor.nodes)
    nodes.add({{"number", node.number}, {"usable_cores", node.cores}},
              concat("node ", node.number, ": usable cores ", describe_cores(node.cores)));
  item_list caches;
  for (const cache& each : processor.caches)
    caches.add(
        {{"level", each.level}, {"type", each.type}, {"size", each.size}, {"cores", each.cores}},
        concat("L", each.level, " ", each.type, " ", each.size, " for ", each.cores,
               each.cores == 1 ? " core" : " cores"));
  const item_list kernels = list_of(processor.kernels);
  shown.values["processor"] = {{"model", processor.model},
                               {"architecture", processor.architecture},
                               {"cores", processor.cores},
                               {"usable_cores", processor.usable_cores},
                               {"quota", value_of(processor.quota)},
                               {"numa_nodes", nodes.values},
                               {"caches", caches.values},
                               {"kernels", kernels.values}};
  const std::string quota =
      processor.quota ? concat(" for the time of ", describe_fixed(*processor.quota, 2)) : "";
  shown.text +=
      report_line("processor",
                  concat(processor.model.empty() ? processor.architecture : processor.model, ", ",
                         processor.cores,
                         " cores, usable: ", describe_cores(processor.usable_cores), quota)) +
      report_line("NUMA", nodes.text_or("not known")) +
      report_line("caches", caches.text_or("not known")) +
      report_line("kernels", kernels.text_or("none"));
}

void show(shown_facts& shown, const memory_facts& memory) {
  shown.values["memory"] = {{"total", memory.total},
                            {"available", memory.available},
                            {"cgroup_limit", limit_of(memory.cgroup_limit)},
                            {"huge_pages_of_windows", memory.huge_pages_of_windows},
                            {"huge_pages_of_process", memory.huge_pages_of_process},
                            {"reserved_huge_pages", memory.reserved_huge_pages},
                            {"free_huge_pages", memory.free_huge_pages},
                            {"dev_shm", value_of(memory.dev_shm)}};
  shown.text +=
      report_line("memory", concat(describe_bytes(memory.total), ", available ",
                                   describe_bytes(memory.available),
                                   ", cgroup: ", describe_bytes(memory.cgroup_limit))) +
      report_line("huge pages", concat("of windows: ", memory.huge_pages_of_windows,
                                       ", of the process: ", memory.huge_pages_of_process,
                                       ", reserved: ", memory.reserved_huge_pages, " (",
                                       memory.free_huge_pages, " free; peerbus needs none)")) +
      report_line("/dev/shm", (memory.dev_shm ? describe_bytes(*memory.dev_shm) : "none") +
                                  " (peerbus needs none)");
}

void show(shown_facts& shown, const limit_facts& limits) {
  shown.values["limits"] = {{"locked_memory", limit_of(limits.locked_memory)},
                            {"may_exceed_locked_memory", limits.may_exceed_locked_memory},
                            {"open_files", limit_of(limits.open_files)},
                            {"file_size", limit_of(limits.file_size)},
                            {"memory_file_trouble", limits.memory_file_trouble},
                            {"pidfd_trouble", limits.pidfd_trouble},
                            {"private_memory_trouble", limits.private_memory_trouble}};
  const auto number = [](std::uint64_t value) {
    return value == unlimited ? std::string{"no limit"} : std::to_string(value);
  };
  const auto works_unless = [](const std::string& trouble) {
    return trouble.empty() ? "works" : trouble;
  };
  shown.text +=
      report_line("limits",
                  concat("locked memory ", describe_bytes(limits.locked_memory.soft), " (hard ",
                         describe_bytes(limits.locked_memory.hard), "), open files ",
                         number(limits.open_files.soft), " (hard ", number(limits.open_files.hard),
                         "), file size ", describe_bytes(limits.file_size.soft))) +
      report_line("memfd", works_unless(limits.memory_file_trouble)) +
      report_line("pidfd", works_unless(limits.pidfd_trouble)) +
      report_line("vm_readv", works_unless(limits.private_memory_trouble));
}

/// Shows a port: its lines are added to `text`. Returns the values.
json show(std::string& text, const port& each) {
  const std::string_view link = each.is_ethernet ? "Ethernet" : "InfiniBand";
  text += report_line(
      "", concat("port ", each.number, ": ", each.state, ", ", link, ", MTU ", each.mtu));
  json gids = json::array();
  for (const gid& own : each.gids) {
    if (gids.size() < most_gids)
      text += report_line("", concat("  GID ", own.index, ": ", own.address, " (", own.type, ")"));
    gids.push_back({{"index", own.index}, {"address", own.address}, {"type", own.type}});
  }
  if (gids.size() > most_gids)
    text += report_line("", concat("  and ", gids.size() - most_gids, " more GIDs"));
  return {{"number", each.number},
          {"state", each.state},
          {"link_layer", link},
          {"mtu", each.mtu},
          {"gids", gids}};
}

/// Shows a device, likewise.
json show(std::string& text, const device& card) {
  text +=
      report_line("RDMA", concat(card.name, ": ",
                                 card.trouble.empty()
                                     ? concat("regions up to ", describe_bytes(card.largest_region),
                                              ", ", card.has_atomics ? "atomics" : "no atomics")
                                     : card.trouble));
  json ports = json::array();
  for (const port& each : card.ports) ports.push_back(show(text, each));
  return {{"name", card.name},
          {"trouble", card.trouble},
          {"largest_region", card.largest_region},
          {"atomics", card.has_atomics},
          {"ports", ports}};
}

void show(shown_facts& shown, const rdma_facts& rdma) {
  const item_list listed = list_of(rdma.listed);
  json devices = json::array();
  std::string text;
  for (const device& each : rdma.devices) devices.push_back(show(text, each));
  if (!rdma.is_built)
    text = report_line("RDMA", concat("not looked at, as this program was built without "
                                      "libibverbs; in /sys/class/infiniband: ",
                                      listed.text_or("nothing")));
  else if (devices.empty())
    text = report_line("RDMA", "no device");
  shown.text += text;
  shown.values["rdma"] = {
      {"built", rdma.is_built}, {"listed", listed.values}, {"devices", devices}};
}

}  // namespace

shown_facts show(const facts& own) {
  shown_facts shown;
  shown.values["process"] = own.process;
  show(shown, own.build);
  show(shown, own.launcher);
  show(shown, own.host);
  show(shown, own.processor);
  show(shown, own.memory);
  show(shown, own.limits);
  show(shown, own.rdma);
  return shown;
}

}  // namespace peerbus_doctor
