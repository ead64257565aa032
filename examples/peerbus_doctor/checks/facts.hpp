// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace peerbus_doctor {

/// The value of a limit that the system does not set.
inline constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

struct build_facts {
  std::string library;   ///< the version and protocol that ranks compare when they meet
  std::string compiler;  ///< of this program
  std::vector<std::string>
      parts;  ///< those of tcp, verbs and fabric that this program was built with
};

struct variable {
  std::string name;
  std::string value;  ///< a secret is replaced by its length
};

struct launcher_facts {
  std::string rank_variable;        ///< names the launcher; empty if none has started this process
  std::optional<std::size_t> rank;  ///< empty without a launcher, or if it cannot be read
  std::vector<variable> variables;  ///< all that the library reads, if they are set
  std::string trouble;              ///< which variable is missing or wrong; empty if none is
  std::string other_hosts;          ///< the variable by which the launcher reports other hosts
};

struct host_facts {
  std::string name;
  std::string kernel;
  std::string container;  ///< the sign of a container; empty if there is none
};

struct numa_node {
  std::size_t number = 0;
  std::vector<std::uint32_t> cores;  ///< that this process may use
};

struct cache {
  std::size_t level = 0;
  std::string type;
  std::string size;  ///< as the kernel writes it, such as 32768K
  std::size_t cores = 0;
};

struct processor_facts {
  std::string model;
  std::string architecture;
  std::size_t cores = 0;                    ///< of the host
  std::vector<std::uint32_t> usable_cores;  ///< the affinity mask
  std::optional<double> quota;              ///< cores' worth of time that the cgroup allows
  std::vector<numa_node> nodes;
  std::vector<cache> caches;         ///< of the first usable core
  std::vector<std::string> kernels;  ///< instruction sets of the row arithmetic, slowest first
};

struct soft_and_hard {
  std::uint64_t soft = unlimited;
  std::uint64_t hard = unlimited;
};

struct memory_facts {
  std::uint64_t total = 0;      ///< bytes, as all sizes here
  std::uint64_t available = 0;  ///< without swapping
  std::uint64_t cgroup_limit = unlimited;
  std::string huge_pages_of_windows;  ///< the chosen word of transparent_hugepage/shmem_enabled
  std::string huge_pages_of_process;  ///< the same of transparent_hugepage/enabled
  std::uint64_t reserved_huge_pages = 0;
  std::uint64_t free_huge_pages = 0;
  std::optional<std::uint64_t> dev_shm;  ///< capacity of /dev/shm
};

/// What the system grants this process. `collect_limits` tries each call once.
struct limit_facts {
  soft_and_hard locked_memory;
  bool may_exceed_locked_memory = false;  ///< CAP_IPC_LOCK
  soft_and_hard open_files;
  soft_and_hard file_size;
  std::string memory_file_trouble;  ///< why there are no memory files; empty if there are
  std::string pidfd_trouble;        ///< why there are no pidfds; empty if there are
  /// Why processes may not read each other's private memory; empty if they may.
  std::string private_memory_trouble;
};

struct gid {
  std::size_t index = 0;
  std::string address;
  std::string type;  ///< IB, RoCE v1 or RoCE v2
};

struct port {
  std::size_t number = 0;
  std::string state;
  bool is_active = false;
  bool is_ethernet = false;
  std::size_t mtu = 0;
  std::vector<gid> gids;
};

struct device {
  std::string name;
  std::string trouble;  ///< why it cannot be opened; empty if it can
  std::uint64_t largest_region = 0;
  bool has_atomics = false;
  std::vector<port> ports;
};

struct rdma_facts {
  bool is_built = false;            ///< the program was built with libibverbs
  std::vector<std::string> listed;  ///< devices in /sys/class/infiniband
  std::vector<device> devices;      ///< that libibverbs finds
};

/// What one rank sees before it meets the others.
struct facts {
  build_facts build;
  launcher_facts launcher;
  host_facts host;
  processor_facts processor;
  memory_facts memory;
  limit_facts limits;
  rdma_facts rdma;
  int process = 0;
};

}  // namespace peerbus_doctor
