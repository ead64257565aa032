// SPDX-License-Identifier: MIT
#include "collect.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/build_version.hpp>
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/huge_pages.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "read_system.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::concat;

build_facts collect_build() {
  build_facts build;
  build.library = concat(peerbus::build_version{});
#if defined(__clang__)
  build.compiler = "clang " __clang_version__;
#else
  build.compiler = "g++ " __VERSION__;
#endif
#ifdef PEERBUS_DOCTOR_TCP
  build.parts.emplace_back("tcp");
#endif
#ifdef PEERBUS_DOCTOR_VERBS
  build.parts.emplace_back("verbs");
#endif
#ifdef PEERBUS_DOCTOR_FABRIC
  build.parts.emplace_back("fabric");
#endif
  return build;
}

/// Returns what follows the colon of the line that begins with `key`, in files such as
/// /proc/meminfo. Empty if there is no such line.
std::string value_of(const std::vector<std::string>& lines, std::string_view key) {
  for (const std::string& line : lines) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const auto start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? std::string{} : line.substr(start);
  }
  return {};
}

/// Returns the cores' worth of processor time that the cgroup of this process may use.
std::optional<double> cgroup_quota(const std::string& root) {
  std::optional<double> quota;
  const auto limit = [&](const std::string& allowed, const std::string& period) {
    const auto microseconds = leading_number(allowed);  // "max" and -1 are no limits.
    const auto of = leading_number(period);
    if (!microseconds || !of || *of == 0) return;
    const double cores = static_cast<double>(*microseconds) / static_cast<double>(*of);
    quota = std::min(quota.value_or(cores), cores);
  };
  for (const std::string& directory : peerbus::cgroup_directories(root, "cpu")) {
    const std::string both = read_text(directory + "/cpu.max");
    if (const auto space = both.find(' '); space != std::string::npos)
      limit(both.substr(0, space), both.substr(space));
    limit(read_text(directory + "/cpu.cfs_quota_us"), read_text(directory + "/cpu.cfs_period_us"));
  }
  return quota;
}

std::vector<numa_node> numa_nodes(const std::string& root,
                                  const std::vector<std::uint32_t>& usable) {
  const std::string directory = root + "/sys/devices/system/node/";
  std::vector<numa_node> nodes;
  for (const std::uint32_t number : parse_list(read_text(directory + "online"))) {
    const auto cores = parse_list(read_text(concat(directory, "node", number, "/cpulist")));
    numa_node node{number, {}};
    std::ranges::set_intersection(cores, usable, std::back_inserter(node.cores));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<cache> caches(const std::string& root, std::uint32_t core) {
  std::vector<cache> found;
  for (unsigned index = 0;; ++index) {
    const std::string directory =
        concat(root, "/sys/devices/system/cpu/cpu", core, "/cache/index", index, "/");
    const auto level = leading_number(read_text(directory + "level"));
    if (!level) return found;
    found.push_back({*level, read_text(directory + "type"), read_text(directory + "size"),
                     parse_list(read_text(directory + "shared_cpu_list")).size()});
  }
}

soft_and_hard limit_of(__rlimit_resource resource) {
  rlimit found{};
  if (::getrlimit(resource, &found) != 0) return {};
  const auto value = [](rlim_t bytes) { return bytes == RLIM_INFINITY ? unlimited : bytes; };
  return {value(found.rlim_cur), value(found.rlim_max)};
}

std::string try_memory_file() {
  try {
    static_cast<void>(peerbus::make_memory_file("peerbus_doctor", 1));
    return {};
  } catch (const peerbus::error& failure) {
    return std::string{failure.text()};
  }
}

std::string try_pidfd() {
#ifdef SYS_pidfd_open
  // The library uses pidfds where it can: a container's filter may forbid them.
  const peerbus::unique_fd handle{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  return handle ? std::string{} : peerbus::describe_errno(errno);
#else
  return peerbus::describe_errno(ENOSYS);  // The headers of the system do not know the call.
#endif
}

std::string try_private_memory() {
  // A child stands for a peer: where Yama restricts the call, it may read no memory of its parent.
  char word = 0;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return peerbus::describe_errno(errno);
  if (child == 0) {
    char read = 0;
    const iovec local{&read, 1};
    const iovec remote{&word, 1};
    ::_exit(::process_vm_readv(parent, &local, 1, &remote, 1, 0) == 1 ? 0 : errno);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return peerbus::describe_errno(errno);
  if (!WIFEXITED(status)) return "the process that tried it was killed";
  return WEXITSTATUS(status) == 0 ? std::string{} : peerbus::describe_errno(WEXITSTATUS(status));
}

}  // namespace

host_facts collect_host(const std::string& root) {
  host_facts host;
  host.name = read_text(root + "/proc/sys/kernel/hostname");
  host.kernel = read_text(root + "/proc/sys/kernel/ostype") + " " +
                read_text(root + "/proc/sys/kernel/osrelease");
  for (const char* const sign : {"/.dockerenv", "/run/.containerenv"})
    if (::access((root + sign).c_str(), F_OK) == 0) host.container = sign;
  const std::string groups = read_text(root + "/proc/1/cgroup");
  for (const char* const sign : {"kubepods", "docker", "containerd", "libpod", "lxc"})
    if (host.container.empty() && groups.find(sign) != std::string::npos)
      host.container = concat(sign, " in /proc/1/cgroup");
  return host;
}

processor_facts collect_processor(const std::string& root) {
  processor_facts processor;
  const auto lines = read_lines(root + "/proc/cpuinfo");
  processor.model = value_of(lines, "model name");
  if (processor.model.empty()) processor.model = value_of(lines, "CPU part");  // AArch64.
  if (utsname system{}; ::uname(&system) == 0) processor.architecture = system.machine;
  processor.cores = parse_list(read_text(root + "/sys/devices/system/cpu/online")).size();
  processor.usable_cores = peerbus::usable_core_numbers();
  processor.quota = cgroup_quota(root);
  processor.nodes = numa_nodes(root, processor.usable_cores);
  if (!processor.usable_cores.empty())
    processor.caches = caches(root, processor.usable_cores.front());
  for (const auto* const set : peerbus::kernel::available()) processor.kernels.push_back(set->name);
  return processor;
}

memory_facts collect_memory(const std::string& root) {
  memory_facts memory;
  const auto lines = read_lines(root + "/proc/meminfo");
  const auto number = [&](std::string_view key) {
    return leading_number(value_of(lines, key)).value_or(0);
  };
  memory.total = number("MemTotal") << 10U;
  memory.available = number("MemAvailable") << 10U;
  memory.cgroup_limit = peerbus::cgroup_memory_limit(root);
  memory.huge_pages_of_windows = peerbus::huge_pages_of_files(root);
  memory.huge_pages_of_process = peerbus::huge_pages_of_process(root);
  memory.reserved_huge_pages = number("HugePages_Total");
  memory.free_huge_pages = number("HugePages_Free");
  struct statvfs shm{};
  if (::statvfs((root + "/dev/shm").c_str(), &shm) == 0)
    memory.dev_shm = shm.f_blocks * shm.f_frsize;
  return memory;
}

limit_facts collect_limits(const std::string& root) {
  limit_facts limits;
  limits.locked_memory = limit_of(RLIMIT_MEMLOCK);
  limits.open_files = limit_of(RLIMIT_NOFILE);
  limits.file_size = limit_of(RLIMIT_FSIZE);
  constexpr unsigned cap_ipc_lock = 14;
  const std::string granted = value_of(read_lines(root + "/proc/self/status"), "CapEff");
  limits.may_exceed_locked_memory =
      (std::strtoull(granted.c_str(), nullptr, 16) >> cap_ipc_lock & 1U) != 0;
  limits.memory_file_trouble = try_memory_file();
  limits.pidfd_trouble = try_pidfd();
  limits.private_memory_trouble = try_private_memory();
  return limits;
}

facts collect() {
  return {.build = collect_build(),
          .launcher = collect_launcher(),
          .host = collect_host(""),
          .processor = collect_processor(""),
          .memory = collect_memory(""),
          .limits = collect_limits(""),
          .rdma = collect_rdma(""),
          .process = ::getpid()};
}

}  // namespace peerbus_doctor
