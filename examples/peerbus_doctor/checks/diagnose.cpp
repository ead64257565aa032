// SPDX-License-Identifier: MIT
#include "diagnose.hpp"

#include <algorithm>
#include <cstdint>

#include <peerbus/core/text.hpp>

#include "describe.hpp"
#include "findings_about.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::concat;

/// Windows of a serving stack are some hundred MiB. Verbs lock all of it.
constexpr std::uint64_t enough_locked_memory = std::uint64_t{1} << 30U;
constexpr std::uint64_t least_memory = std::uint64_t{1} << 30U;

void judge_launcher(const launcher_facts& launcher, findings_about found) {
  if (!launcher.trouble.empty())
    found.problem(launcher.trouble,
                  "set RANK and WORLD_SIZE for every rank, or unset both to start the ranks on "
                  "this host with --ranks");
  else if (launcher.rank_variable.empty())
    found.ok("no launcher; the ranks are started here");
  else if (launcher.other_hosts.empty())
    found.ok(concat("the rank is read from ", launcher.rank_variable));
  else
    found.ok(concat("the rank is read from ", launcher.rank_variable,
                    "; there are other hosts, as ", launcher.other_hosts));
}

void judge_processor(const processor_facts& processor, findings_about found) {
  const std::size_t usable = processor.usable_cores.size();
  if (processor.quota && *processor.quota < static_cast<double>(usable))
    found.warning(
        concat("the cgroup allows the time of ", describe_decimal(*processor.quota), " cores on ",
               usable, " cores, so that ranks are stopped in the middle of calls"),
        concat("give whole cores in place of a quota: docker run --cpuset-cpus, or the "
               "static CPU manager policy of Kubernetes"));
  std::vector<std::size_t> nodes;
  for (const numa_node& node : processor.nodes)
    if (!node.cores.empty()) nodes.push_back(node.number);
  if (nodes.size() > 1)
    found.note(concat("the ", usable, " usable cores lie on NUMA nodes ", describe_numbers(nodes),
                      ", so that a rank may run far from its window"),
               "pin ranks by topology::placement (docs/topology.md), or start each by numactl "
               "--cpunodebind=N --membind=N");
  const bool has_sets = processor.architecture == "x86_64" || processor.architecture == "aarch64";
  if (has_sets && processor.kernels.size() < 2)
    found.warning(
        "row arithmetic runs without vector instructions, as the processor reports none "
        "that peerbus knows",
        "in a virtual machine, pass the host's processor on: qemu -cpu host, libvirt "
        "<cpu mode='host-passthrough'/>");
  else if (!processor.kernels.empty())
    found.ok(concat("row arithmetic runs with ", processor.kernels.back()));
}

void judge_huge_pages(const std::string& mode, findings_about found) {
  if (mode.empty() || mode == "never" || mode == "deny")
    found.note(concat("windows of unified_bus have pages of 4 KiB, as shmem_enabled is '",
                      mode.empty() ? "not known" : mode, "'; large ones take more time to map"),
               "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  else
    found.ok(concat("windows may have huge pages (shmem_enabled is '", mode, "')"));
}

void judge_memory(const memory_facts& memory, findings_about found) {
  const std::uint64_t most = std::min(memory.total, memory.cgroup_limit);
  if (most < least_memory)
    found.warning(concat("this process may have ", describe_bytes(most),
                         ", which is less than the exchanges of most models take"),
                  "raise the limit of the container (docker run --memory), or lower max_tokens");
  else if (memory.available < least_memory)
    found.warning(concat("only ", describe_bytes(memory.available), " are available of ",
                         describe_bytes(memory.total)),
                  "end other programs; ps -e -o rss,comm --sort -rss shows the largest");
  else
    found.ok(concat(describe_bytes(memory.available), " available, limit ", describe_bytes(most)));
  judge_huge_pages(memory.huge_pages_of_windows, found);
}

void judge_locked_memory(const limit_facts& limits, bool uses_verbs, findings_about found) {
  if (limits.may_exceed_locked_memory || limits.locked_memory.soft >= enough_locked_memory) {
    found.ok(concat("memory that may be locked: ",
                    limits.may_exceed_locked_memory ? "no limit (CAP_IPC_LOCK)"
                                                    : describe_bytes(limits.locked_memory.soft)));
    return;
  }
  const std::string text =
      concat("only ", describe_bytes(limits.locked_memory.soft),
             " may be locked; verbs locks all windows, which are larger for most models");
  const std::string remedy =
      "ulimit -l unlimited; * - memlock unlimited in /etc/security/limits.conf; "
      "LimitMEMLOCK=infinity of a systemd service; docker run --ulimit memlock=-1";
  uses_verbs ? found.problem(text, remedy) : found.note(text, remedy);
}

void judge_limits(const limit_facts& limits, const purpose& wanted, findings_about found) {
  judge_locked_memory(limits, wanted.transport == "verbs", found);
  // What `run_local` asks for. It raises the soft limit itself.
  const std::uint64_t files = 4 * wanted.ranks + 256;
  const std::uint64_t allowed =
      wanted.is_launched ? limits.open_files.soft : limits.open_files.hard;
  if (allowed < files)
    found.warning(
        concat(allowed, " files may be open, expected ", files, " for ", wanted.ranks, " ranks"),
        concat("ulimit -n ", files));
  if (limits.file_size.soft != unlimited)
    found.warning(concat("files, and so windows of unified_bus, may have at most ",
                         describe_bytes(limits.file_size.soft)),
                  "ulimit -f unlimited");
  if (limits.memory_file_trouble.empty())
    found.ok("memory files can be made (memfd_create)");
  else
    found.problem(concat("no memory files, which unified_bus needs: ", limits.memory_file_trouble),
                  "allow memfd_create in the seccomp filter of the container (docker run "
                  "--security-opt seccomp=FILE)");
  if (limits.pidfd_trouble.empty())
    found.ok("processes can be watched (pidfd_open)");
  else
    found.warning(concat("processes cannot be watched: ", limits.pidfd_trouble,
                         "; ranks that a launcher started notice a killed one only at the "
                         "deadline"),
                  "use Linux 5.3 or later, and allow pidfd_open in the seccomp filter of the "
                  "container (docker run --security-opt seccomp=FILE)");
  if (limits.private_memory_trouble.empty())
    found.ok("ranks can read each other's private memory (process_vm_readv)");
  else
    found.note(
        concat("ranks cannot read each other's private memory: ", limits.private_memory_trouble,
               "; large operands of collectives are copied twice"),
        "call peerbus::permit_private_reads() in each rank, or set "
        "kernel.yama.ptrace_scope=0; allow process_vm_readv in the seccomp filter of the "
        "container");
}

/// Returns whether the device has a port that `verbs` can use.
bool judge_device(const device& card, findings_about found) {
  if (!card.trouble.empty()) {
    found.warning(concat(card.name, " cannot be opened: ", card.trouble),
                  "make /dev/infiniband usable for this user; in a container: docker run "
                  "--device=/dev/infiniband --ulimit memlock=-1");
    return false;
  }
  bool is_usable = false;
  for (const port& each : card.ports) {
    const std::string name = concat(card.name, " port ", each.number);
    if (!each.is_active)
      found.note(concat(name, " is down: its state is ", each.state),
                 each.is_ethernet ? "ip link set DEVICE up, and check the cable; rdma link names "
                                    "the network device"
                                  : "check the cable and the subnet manager (ibstat; opensm)");
    else if (each.gids.empty())
      found.warning(concat(name, " is active but has no GID"),
                    "give its network device an address: ip addr add ADDRESS/24 dev DEVICE");
    else
      is_usable = true;
    if (each.is_active && each.is_ethernet &&
        std::ranges::none_of(each.gids, [](const gid& g) { return g.type == "RoCE v2"; }))
      found.note(concat(name, " has no RoCE v2 address, which routers and switches expect"),
                 "give its network device an IPv4 address: ip addr add ADDRESS/24 dev DEVICE");
    if (each.is_active && each.mtu < 4096)
      found.note(concat(name, " sends at most ", each.mtu, " bytes in a packet"),
                 each.is_ethernet ? "ip link set DEVICE mtu 4200, on hosts and switches"
                                  : "set the MTU of the subnet manager to 4096");
  }
  if (!card.has_atomics)
    found.note(concat(card.name, " has no atomics, so that fetch_add is unsupported"),
               "none is needed: exchanges use no fetch_add");
  return is_usable;
}

void judge_rdma(const rdma_facts& rdma, const purpose& wanted, findings_about found) {
  if (!rdma.is_built) {
    if (!rdma.listed.empty())
      found.note(concat("this host has the RDMA device ", rdma.listed.front(),
                        ", but this program was built without libibverbs"),
                 "apt-get install libibverbs-dev, then configure and build again");
    return;
  }
  bool is_usable = false;
  for (const device& each : rdma.devices) is_usable = judge_device(each, found) || is_usable;
  if (wanted.transport != "verbs") return;
  if (rdma.devices.empty())
    found.problem(rdma.listed.empty() ? std::string{"this host has no RDMA device"}
                                      : concat("the kernel has ", rdma.listed.front(),
                                               ", but libibverbs finds no device"),
                  rdma.listed.empty()
                      ? "for a try without a card: modprobe rdma_rxe; rdma link add rxe0 type rxe "
                        "netdev DEVICE"
                      : "apt-get install ibverbs-providers; in a container: docker run "
                        "--device=/dev/infiniband");
  else if (!is_usable)
    found.problem("no RDMA device has a usable port", "see what is said of each port; rdma link");
  else
    found.ok("an RDMA device has a usable port");
}

}  // namespace

std::vector<finding> diagnose(const facts& found, const purpose& wanted) {
  std::vector<finding> all;
  judge_launcher(found.launcher, {all, "launcher"});
  judge_processor(found.processor, {all, "processor"});
  judge_memory(found.memory, {all, "memory"});
  judge_limits(found.limits, wanted, {all, "limits"});
  judge_rdma(found.rdma, wanted, {all, "rdma"});
  return all;
}

}  // namespace peerbus_doctor
