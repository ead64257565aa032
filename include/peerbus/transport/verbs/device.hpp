// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/nearest_first.hpp>
#include <peerbus/transport/verbs/options.hpp>

namespace peerbus::detail::rdma {

/// A port of an open device, and this rank's address there.
struct open_port {
  context device;
  ibv_device_attr limits{};
  std::uint8_t number = 0;
  ibv_port_attr attributes{};
  std::uint8_t gid_index = 0;
  ibv_gid gid{};

  [[nodiscard]] bool is_ethernet() const noexcept {
    return attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  }
  [[nodiscard]] std::string_view device_name() const noexcept {
    return ibv_get_device_name(device->device);
  }
  /// Asks the device whether the port can send now.
  [[nodiscard]] bool is_active() const noexcept {
    ibv_port_attr now{};
    return ibv_query_port(device.get(), number, &now) == 0 && now.state == IBV_PORT_ACTIVE;
  }
  /// Returns a text such as "rxe0 port 1 GID 1", for errors.
  [[nodiscard]] std::string describe() const {
    return concat(device_name(), " port ", unsigned{number}, " GID ", unsigned{gid_index});
  }
};

/// A search for the port that `verbs_options` ask for.
class port_search {
 public:
  explicit port_search(const verbs_options& wanted) : wanted_{wanted} {}

  /// Finds and opens the port of each device that the options name, or of one device if they name
  /// none.
  /// Throws: as `find`, and `error` invalid_argument if a device is named twice.
  static std::vector<open_port> find_all(const verbs_options& wanted) {
    std::vector<open_port> found;
    if (wanted.devices.empty()) {
      found.push_back(port_search{wanted}.find());
      return found;
    }
    for (const std::string& name : wanted.devices) {
      if (std::ranges::count(wanted.devices, name) > 1)
        throw error{errc::invalid_argument,
                    concat("verbs: device '", name, "' is named twice, expected each once")};
      verbs_options one = wanted;
      one.device = name;
      found.push_back(port_search{one}.find());
    }
    return found;
  }

  /// Finds and opens the first usable port, on the nearest devices first.
  /// Throws: `error` unsupported if this host has no device, invalid_argument if no port fits the
  /// options, system. The text lists the devices.
  open_port find() {
    int count = 0;
    const device_list list{ibv_get_device_list(&count)};
    if (!list || count == 0) {
      const int reason = errno;
      throw error{errc::unsupported,
                  concat("verbs: this host has no RDMA device", asked(),
                         !list ? concat(" (", describe_errno(reason), ")") : "",
                         "; `rdma link` lists them, and unified_bus needs none")};
    }
    std::vector<int> nodes;
    nodes.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
      nodes.push_back(numa_node_of(static_cast<const char*>(list.get()[i]->ibdev_path)));
    for (const std::size_t i : nearest_first(nodes, own_numa_node())) {
      const std::string_view name = ibv_get_device_name(list.get()[i]);
      seen_ += concat(seen_.empty() ? "" : ", ", name);
      if (!wanted_.device.empty() && name != wanted_.device) continue;
      if (auto found = open(list.get()[i])) return std::move(*found);
    }
    throw error{errc::invalid_argument,
                concat("verbs: no usable port", asked(), "; there are: ", seen_)};
  }

 private:
  [[nodiscard]] std::string asked() const {
    std::string text;
    if (!wanted_.device.empty()) text += concat(", expected device '", wanted_.device, "'");
    if (wanted_.port != 0) text += concat(", expected port ", unsigned{wanted_.port});
    if (wanted_.gid_index >= 0) text += concat(", expected GID index ", wanted_.gid_index);
    return text;
  }

  /// Opens the first usable port of `device`, if there is one. Records why each other port was
  /// rejected, for the error message.
  std::optional<open_port> open(ibv_device* device) {
    open_port found;
    found.device.reset(ibv_open_device(device));
    if (!found.device) {
      seen_ += concat(" (cannot be opened: ", describe_errno(errno), ")");
      return std::nullopt;
    }
    if (const int failed = ibv_query_device(found.device.get(), &found.limits); failed != 0) {
      seen_ += concat(" (cannot be asked: ", describe_errno(failed), ")");
      return std::nullopt;
    }
    if (device->transport_type != IBV_TRANSPORT_IB) {
      seen_ += " (neither InfiniBand nor RoCE)";
      return std::nullopt;
    }
    for (unsigned port = 1; port <= found.limits.phys_port_cnt; ++port) {
      if (wanted_.port != 0 && port != wanted_.port) continue;
      found.number = static_cast<std::uint8_t>(port);
      if (ibv_query_port(found.device.get(), found.number, &found.attributes) != 0) continue;
      if (found.attributes.state != IBV_PORT_ACTIVE) {
        seen_ += concat(" (port ", port, " is ", ibv_port_state_str(found.attributes.state), ")");
        continue;
      }
      if (choose_gid(found)) return found;
    }
    if (wanted_.port > found.limits.phys_port_cnt)
      seen_ += concat(" (has ", unsigned{found.limits.phys_port_cnt}, " port)");
    return std::nullopt;
  }

  bool choose_gid(open_port& found) {
    // The table has the addresses of all ports of the device.
    std::vector<ibv_gid_entry> table(
        static_cast<std::size_t>(std::max(found.attributes.gid_tbl_len, 1)) *
        found.limits.phys_port_cnt);
    const ssize_t entries = ibv_query_gid_table(found.device.get(), table.data(), table.size(), 0);
    table.resize(entries > 0 ? static_cast<std::size_t>(entries) : 0);
    const ibv_gid_entry* best = nullptr;
    for (const ibv_gid_entry& entry : table) {
      if (entry.port_num != found.number || entry.gid_index > 255) continue;
      const bool is_asked = static_cast<int>(entry.gid_index) == wanted_.gid_index;
      if (wanted_.gid_index >= 0 ? is_asked : best == nullptr || rank(entry) > rank(*best))
        best = &entry;
    }
    if (best == nullptr) {
      seen_ += concat(" (port ", unsigned{found.number},
                      wanted_.gid_index < 0 ? " has no address" : " has no such address; it has ",
                      wanted_.gid_index < 0 ? "" : concat(table.size(), " in all"), ")");
      return false;
    }
    found.gid_index = static_cast<std::uint8_t>(best->gid_index);
    found.gid = best->gid;
    return true;
  }

  /// Returns the rank of an address; the highest is used. RoCE v2 comes first, because it is routed
  /// and switches expect it. Then come IPv4 addresses, which name a network, before link-local
  /// addresses.
  static int rank(const ibv_gid_entry& entry) noexcept {
    const std::uint8_t* const raw = entry.gid.raw;
    bool mapped_ipv4 = raw[10] == 0xff && raw[11] == 0xff;
    for (int i = 0; i < 10; ++i) mapped_ipv4 = mapped_ipv4 && raw[i] == 0;
    const bool link_local = raw[0] == 0xfe && (raw[1] & 0xc0U) == 0x80;
    return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0) + (mapped_ipv4 ? 2 : 0) +
           (link_local ? 0 : 1);
  }

  const verbs_options& wanted_;
  std::string seen_;
};

}  // namespace peerbus::detail::rdma
