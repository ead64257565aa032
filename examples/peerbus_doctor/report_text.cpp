// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/text.hpp>

#include "checks/describe.hpp"
#include "report.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::detail::concat;

/// The most ranks whose pairs are printed one by one.
constexpr std::size_t most_ranks_of_table = 16;
constexpr std::size_t most_lines_of_group = 64;
constexpr std::size_t most_gids = 8;

std::string line(std::string_view name, std::string_view text) {
  std::string padded{name};
  padded.resize(std::max<std::size_t>(padded.size(), 11), ' ');
  return concat("  ", padded, " ", text, "\n");
}

template <class Range, class Convert>
std::string list(const Range& range, Convert&& convert, std::string_view none) {
  std::string text;
  for (const auto& each : range) text += (text.empty() ? "" : ", ") + convert(each);
  return text.empty() ? std::string{none} : text;
}

std::string same(const std::string& text) { return text; }

std::string describe_cores(const std::vector<std::uint32_t>& cores) {
  return cores.empty() ? "none" : describe_numbers({cores.begin(), cores.end()});
}

std::string fixed(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string processor_text(const processor_facts& processor) {
  std::string text =
      line("processor",
           concat(processor.model.empty() ? processor.architecture : processor.model, ", ",
                  processor.cores, " cores, usable: ", describe_cores(processor.usable_cores),
                  processor.quota ? concat(" for the time of ", fixed(*processor.quota, 2))
                                  : std::string{}));
  text += line("NUMA", list(
                           processor.nodes,
                           [](const numa_node& n) {
                             return concat("node ", n.number, ": usable cores ",
                                           describe_cores(n.cores));
                           },
                           "not known"));
  text += line("caches", list(
                             processor.caches,
                             [](const cache& c) {
                               return concat("L", c.level, " ", c.type, " ", c.size, " for ",
                                             c.cores, c.cores == 1 ? " core" : " cores");
                             },
                             "not known"));
  return text + line("kernels", list(processor.kernels, same, "none"));
}

std::string memory_text(const memory_facts& memory) {
  return line("memory",
              concat(describe_bytes(memory.total), ", available ", describe_bytes(memory.available),
                     ", cgroup: ", describe_bytes(memory.cgroup_limit))) +
         line("huge pages", concat("of windows: ", memory.huge_pages_of_windows,
                                   ", of the process: ", memory.huge_pages_of_process,
                                   ", reserved: ", memory.reserved_huge_pages, " (",
                                   memory.free_huge_pages, " free; peerbus needs none)")) +
         line("/dev/shm", memory.dev_shm ? describe_bytes(*memory.dev_shm) + " (peerbus needs none)"
                                         : "none (peerbus needs none)");
}

std::string limits_text(const limit_facts& limits) {
  const auto number = [](std::uint64_t value) {
    return value == unlimited ? std::string{"no limit"} : std::to_string(value);
  };
  return line("limits",
              concat("locked memory ", describe_bytes(limits.locked_memory.soft), " (hard ",
                     describe_bytes(limits.locked_memory.hard), "), open files ",
                     number(limits.open_files.soft), " (hard ", number(limits.open_files.hard),
                     "), file size ", describe_bytes(limits.file_size.soft))) +
         line("memfd", limits.memory_file_trouble.empty() ? "works" : limits.memory_file_trouble) +
         line("pidfd", limits.pidfd_trouble.empty() ? "works" : limits.pidfd_trouble);
}

std::string device_text(const device& card) {
  if (!card.trouble.empty()) return line("RDMA", concat(card.name, ": ", card.trouble));
  std::string text =
      line("RDMA", concat(card.name, ": regions up to ", describe_bytes(card.largest_region), ", ",
                          card.has_atomics ? "atomics" : "no atomics"));
  for (const port& each : card.ports) {
    text += line("", concat("port ", each.number, ": ", each.state, ", ",
                            each.is_ethernet ? "Ethernet" : "InfiniBand", ", MTU ", each.mtu));
    for (std::size_t i = 0; i < std::min(each.gids.size(), most_gids); ++i)
      text += line("", concat("  GID ", each.gids[i].index, ": ", each.gids[i].address, " (",
                              each.gids[i].type, ")"));
    if (each.gids.size() > most_gids)
      text += line("", concat("  and ", each.gids.size() - most_gids, " more GIDs"));
  }
  return text;
}

std::string rdma_text(const rdma_facts& rdma) {
  if (!rdma.is_built)
    return line("RDMA", concat("not looked at, as this program was built without libibverbs; in "
                               "/sys/class/infiniband: ",
                               list(rdma.listed, same, "nothing")));
  std::string text;
  for (const device& each : rdma.devices) text += device_text(each);
  return text.empty() ? line("RDMA", "no device") : text;
}

/// Returns the pairs that were measured, by what `better` puts first.
template <class Better>
std::vector<std::pair<std::size_t, std::size_t>> sorted_pairs(const pair_matrix& pairs,
                                                              Better&& better) {
  std::vector<std::pair<std::size_t, std::size_t>> good;
  for (std::size_t from = 0; from < pairs.ranks; ++from)
    for (std::size_t to = 0; to < pairs.ranks; ++to)
      if (pairs.at(from, to).is_tried && pairs.at(from, to).error.empty())
        good.emplace_back(from, to);
  std::ranges::stable_sort(good, [&](const auto& a, const auto& b) {
    return better(pairs.at(a.first, a.second), pairs.at(b.first, b.second));
  });
  return good;
}

/// Returns the least, the median and the greatest value, and the pairs that are worst.
template <class Value, class Better>
std::string summary(const pair_matrix& pairs, Value&& value, Better&& better) {
  const auto sorted = sorted_pairs(pairs, better);
  if (sorted.empty()) return "  no pair was measured\n";
  const auto text_of = [&](std::size_t i) {
    return value(pairs.at(sorted[i].first, sorted[i].second));
  };
  std::string text = concat("  best ", text_of(0), ", median ", text_of(sorted.size() / 2),
                            ", worst ", text_of(sorted.size() - 1), "; worst pairs:");
  constexpr std::size_t named = 5;
  for (std::size_t i = 0; i < std::min(named, sorted.size()); ++i) {
    const auto& [from, to] = sorted[sorted.size() - 1 - i];
    text += concat(i == 0 ? " " : ", ", from, " to ", to, " (", value(pairs.at(from, to)), ")");
  }
  return text + "\n";
}

template <class Value>
std::string table(const pair_matrix& pairs, Value&& value) {
  constexpr std::size_t width = 8;
  std::string text = "  from \\ to";
  for (std::size_t to = 0; to < pairs.ranks; ++to) text += right(std::to_string(to), width);
  text += "\n";
  for (std::size_t from = 0; from < pairs.ranks; ++from) {
    text += right(std::to_string(from), 11);
    for (std::size_t to = 0; to < pairs.ranks; ++to) {
      const pair_result& pair = pairs.at(from, to);
      text += right(from == to            ? "-"
                    : !pair.is_tried      ? "?"
                    : !pair.error.empty() ? "failed"
                                          : value(pair),
                    width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

level report::worst() const {
  level worst = level::ok;
  for (const finding& each : findings) worst = std::max(worst, each.grade);
  return worst;
}

std::string facts_text(const facts& own) {
  std::string text =
      concat("peerbus_doctor: ", own.build.library, "; ", own.build.compiler,
             "; parts: ", list(own.build.parts, same, "none"), "\n\nwhat rank 0 sees\n");
  const launcher_facts& launcher = own.launcher;
  text += line("launcher",
               launcher.rank_variable.empty() ? "none" : "found by " + launcher.rank_variable);
  for (const variable& each : launcher.variables) text += line("", each.name + "=" + each.value);
  text += line("host", concat(own.host.name, ", ", own.host.kernel));
  text += line("container", own.host.container.empty() ? "no sign of one" : own.host.container);
  return text + processor_text(own.processor) + memory_text(own.memory) + limits_text(own.limits) +
         rdma_text(own.rdma);
}

std::string group_text(const report& known) {
  std::string text = concat("\ngroup: ", known.ranks.size(), " ranks over ", known.chosen.transport,
                            ", which met in ", fixed(known.meeting_ms, 1), " ms\n");
  const std::size_t lines = std::min(known.ranks.size(), most_lines_of_group);
  for (std::size_t rank = 0; rank < lines; ++rank) {
    const member& self = known.ranks[rank].self;
    text += concat("  rank ", rank, ": host ", self.host, ", process ", self.process, ", cores ",
                   describe_cores(self.cores), "\n");
  }
  if (lines < known.ranks.size())
    text += concat("  and ", known.ranks.size() - lines, " more; --json has all\n");
  return text;
}

std::string begin_text(std::size_t ranks) {
  if (ranks < 2) return {};
  return concat("\ntrying ", ranks * (ranks - 1), " pairs, one at a time\n");
}

std::string pairs_text(const pair_matrix& pairs, const try_options& tries) {
  if (pairs.ranks < 2) return "\npairs: none, as there is one rank\n";
  const auto microseconds = [](const pair_result& pair) { return fixed(pair.latency_us, 2); };
  const auto gigabytes = [](const pair_result& pair) {
    return fixed(pair.put_bytes_per_second / 1e9, 2);
  };
  const auto is_sooner = [](const pair_result& a, const pair_result& b) {
    return a.latency_us < b.latency_us;
  };
  const auto is_faster = [](const pair_result& a, const pair_result& b) {
    return a.put_bytes_per_second > b.put_bytes_per_second;
  };
  const bool is_small = pairs.ranks <= most_ranks_of_table;
  return concat("\nsignal, us: half of the median of ", tries.rounds, " round trips\n",
                is_small ? table(pairs, microseconds) : summary(pairs, microseconds, is_sooner),
                "\nput of ", describe_bytes(tries.put_bytes),
                ", GB/s: from the call until the receiver's signal is back\n",
                is_small ? table(pairs, gigabytes) : summary(pairs, gigabytes, is_faster));
}

std::string findings_text(const report& known) {
  std::string text = "\nfindings\n";
  std::array<std::size_t, 4> counts{};
  for (const level grade : {level::ok, level::note, level::warning, level::problem})
    for (const finding& each : known.findings) {
      if (each.grade != grade) continue;
      ++counts[static_cast<std::size_t>(grade)];
      const bool is_of_some = !each.ranks.empty() && each.ranks.size() < known.ranks.size();
      text += line(to_string(grade),
                   concat(each.topic, ": ", each.text,
                          is_of_some ? concat(each.ranks.size() == 1 ? " (rank " : " (ranks ",
                                              describe_numbers(each.ranks), ")")
                                     : std::string{}));
      if (!each.remedy.empty()) text += line("", "mend: " + each.remedy);
    }
  const auto count = [&](level grade, std::string_view name) {
    const std::size_t number = counts[static_cast<std::size_t>(grade)];
    return concat(number, " ", name, number == 1 ? "" : "s");
  };
  return text + concat("\n", known.worst() == level::problem ? "not healthy: " : "healthy: ",
                       count(level::problem, "problem"), ", ", count(level::warning, "warning"),
                       ", ", count(level::note, "note"), "\n");
}

}  // namespace peerbus_doctor
