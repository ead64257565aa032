// SPDX-License-Identifier: MIT
#include <dirent.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "collect.hpp"

#ifdef PEERBUS_DOCTOR_VERBS
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <peerbus/core/system_error.hpp>
#endif

namespace peerbus_doctor {
namespace {

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open{::opendir(directory.c_str()),
                                                 [](DIR* owned) { return ::closedir(owned); }};
  if (!open) return names;
  while (const dirent* const entry = ::readdir(open.get()))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

#ifdef PEERBUS_DOCTOR_VERBS

struct releaser {
  void operator()(ibv_device** list) const noexcept { ibv_free_device_list(list); }
  void operator()(ibv_context* device) const noexcept { ibv_close_device(device); }
};
using device_list = std::unique_ptr<ibv_device*, releaser>;
using open_device = std::unique_ptr<ibv_context, releaser>;

std::string gid_type(const ibv_gid_entry& entry) {
  switch (entry.gid_type) {
    case IBV_GID_TYPE_IB: return "IB";
    case IBV_GID_TYPE_ROCE_V1: return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2: return "RoCE v2";
    default: return "unknown";
  }
}

void add_gids(ibv_context& context, device& found) {
  constexpr std::size_t most_gids = 1024;
  std::vector<ibv_gid_entry> table(most_gids);
  const ssize_t count = ibv_query_gid_table(&context, table.data(), table.size(), 0);
  table.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  for (const ibv_gid_entry& entry : table)
    for (port& owner : found.ports) {
      if (owner.number != entry.port_num) continue;
      std::array<char, INET6_ADDRSTRLEN> address{};
      ::inet_ntop(AF_INET6, entry.gid.raw, address.data(), address.size());
      owner.gids.push_back({entry.gid_index, address.data(), gid_type(entry)});
    }
}

device collect_device(ibv_device* listed) {
  device found;
  found.name = ibv_get_device_name(listed);
  const open_device context{ibv_open_device(listed)};
  ibv_device_attr limits{};
  const int failure = !context ? errno : ibv_query_device(context.get(), &limits);
  if (!context || failure != 0) {
    found.trouble = peerbus::describe_errno(failure);
    return found;
  }
  found.largest_region = limits.max_mr_size;
  found.has_atomics = limits.atomic_cap != IBV_ATOMIC_NONE;
  for (unsigned number = 1; number <= limits.phys_port_cnt; ++number) {
    ibv_port_attr attributes{};
    if (ibv_query_port(context.get(), static_cast<std::uint8_t>(number), &attributes) != 0)
      continue;
    found.ports.push_back({.number = number,
                           .state = ibv_port_state_str(attributes.state),
                           .is_active = attributes.state == IBV_PORT_ACTIVE,
                           .is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
                           .mtu = std::size_t{128} << attributes.active_mtu,
                           .gids = {}});
  }
  add_gids(*context, found);
  return found;
}

#endif

}  // namespace

rdma_facts collect_rdma(const std::string& root) {
  rdma_facts found;
  found.listed = names_in(root + "/sys/class/infiniband");
#ifdef PEERBUS_DOCTOR_VERBS
  found.is_built = true;
  int count = 0;
  const device_list list{ibv_get_device_list(&count)};
  for (int i = 0; list && i < count; ++i) found.devices.push_back(collect_device(list.get()[i]));
#endif
  return found;
}

}  // namespace peerbus_doctor
