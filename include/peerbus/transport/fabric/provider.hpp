// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/descriptors.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/handle.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// Returns an IPv4 or IPv6 address as text, without its port. Empty for other addresses.
inline std::string describe_host(std::span<const std::byte> address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  sa_family_t family = AF_UNSPEC;
  if (address.size() >= sizeof(sockaddr_in))
    std::memcpy(&family, address.data() + offsetof(sockaddr, sa_family), sizeof family);
  const std::size_t place =
      family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  if (family == AF_INET || (family == AF_INET6 && address.size() >= sizeof(sockaddr_in6)))
    (void)::inet_ntop(family, address.data() + place, text.data(), text.size());
  return text.data();
}
/// Returns the IPv4 or IPv6 address of `info` as text, without its port. Empty for other addresses.
inline std::string describe_address(const fi_info& info) {
  const bool is_socket = info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6;
  return is_socket ? describe_host({static_cast<const std::byte*>(info.src_addr), info.src_addrlen})
                   : std::string{};
}

/// A search of libfabric's providers for the one that `fabric_options` name.
class provider_search {
 public:
  /// Prepares a search by `options`. `on_one_host` says that all ranks can reach each other over
  /// the loopback interface. `rendezvous_address` is the address of this host over which the ranks
  /// met, or empty.
  provider_search(fabric_options options, bool on_one_host,
                  traffic_class traffic = traffic_class::latency,
                  std::string rendezvous_address = {})
      : options_{std::move(options)},
        on_one_host_{on_one_host},
        traffic_{traffic},
        rendezvous_address_{std::move(rendezvous_address)} {
    // The text of a link-local address ends with its interface, which a provider does not name.
    rendezvous_address_ = rendezvous_address_.substr(0, rendezvous_address_.find('%'));
  }

  /// Returns the domain to use.
  /// Throws: `error` unsupported (no such provider; the text lists the available ones),
  /// invalid_argument (no such domain), system; std::bad_alloc.
  [[nodiscard]] provider_info find() const {
    provider_info found;
    // Connections of tcp alone: no other provider's were tried.
    if (options_.provider == "tcp") found = list(options_.provider, FI_EP_MSG);
    if (!found) found = list(options_.provider, FI_EP_RDM);
    if (!found) require_descriptors("listing providers", few);
    if (!found)
      throw error{errc::unsupported,
                  concat("fabric: libfabric has no provider '", options_.provider,
                         "' with reliable datagrams and remote writes here; it has: ",
                         names(list({}, FI_EP_RDM).get(), provider_name), describe_filter())};
    std::string_view met_over;
    for (const fi_info* next = found.get(); next != nullptr; next = next->next)
      if (!on_one_host_ && met_over.empty() && is_rendezvous_address(*next))
        met_over = domain_name(*next);
    const fi_info* best = nullptr;
    const auto total = [&](const fi_info& info) {
      constexpr int of_rendezvous = 16;
      return worth(info) + (!met_over.empty() && domain_name(info) == met_over ? of_rendezvous : 0);
    };
    for (const fi_info* next = found.get(); next != nullptr; next = next->next)
      if (fits(*next) && (best == nullptr || total(*next) > total(*best))) best = next;
    if (best == nullptr)
      throw error{
          errc::invalid_argument,
          concat("fabric: provider ", options_.provider, " has no domain '", options_.domain,
                 "', expected one of: ", names(found.get(), domain_name), describe_filter())};
    provider_info chosen{fi_dupinfo(best)};
    if (!chosen) throw std::bad_alloc{};
    return chosen;
  }

 private:
  static constexpr std::uint32_t api_version = FI_VERSION(1, 14);

  static std::string_view provider_name(const fi_info& info) { return info.fabric_attr->prov_name; }
  static std::string_view domain_name(const fi_info& info) { return info.domain_attr->name; }

  /// Lists the domains that a provider, or every provider if `provider` is empty, offers for
  /// `kind`, and for the class of traffic if the provider knows classes. Null if there are none.
  [[nodiscard]] provider_info list(const std::string& provider, fi_ep_type kind) const {
    provider_info found;
    // A hint, for providers that have it. The class of latency traffic stays unspecified, so that
    // it is the same whether or not there are bulk windows.
    if (traffic_ == traffic_class::bulk) found = list(provider, kind, FI_TC_BULK_DATA);
    return found ? std::move(found) : list(provider, kind, FI_TC_UNSPEC);
  }
  [[nodiscard]] static provider_info list(const std::string& provider, fi_ep_type kind,
                                          std::uint32_t traffic) {
    const provider_info hints{fi_allocinfo()};
    if (!hints) throw std::bad_alloc{};
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = kind;
    if (kind == FI_EP_MSG) {
      // A signal follows its puts, and all peers share the receives. Source: fi_cq(3), "target
      // completion semantics".
      hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
      hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    }
    hints->tx_attr->tclass = traffic;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    if (kind == FI_EP_RDM) hints->domain_attr->mr_mode |= FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    if (!provider.empty()) hints->fabric_attr->prov_name = ::strdup(provider.c_str());
    fi_info* found = nullptr;
    const int failed = fi_getinfo(api_version, nullptr, nullptr, 0, hints.get(), &found);
    if (failed != 0 && failed != -FI_ENODATA) throw fabric_failure("listing providers", failed);
    return provider_info{found};
  }

  /// Returns a text that names the variables by which a user may have hidden providers or
  /// interfaces from libfabric.
  static std::string describe_filter() {
    std::string text;
    for (const char* name : {"FI_PROVIDER", "FI_TCP_IFACE"})
      if (const char* const value = std::getenv(name); value != nullptr)
        text += concat("; ", name, " is '", value, "', which hides others");
    return text;
  }

  /// Lists `name(info)` of each element, without duplicates.
  template <class Name>
  static std::string names(const fi_info* list, Name&& name) {
    std::set<std::string_view> sorted;
    for (; list != nullptr; list = list->next) sorted.insert(name(*list));
    std::string text;
    for (const std::string_view next : sorted) text += concat(text.empty() ? "" : ", ", next);
    return text.empty() ? "none" : text;
  }

  [[nodiscard]] bool fits(const fi_info& info) const {
    return options_.domain.empty() || domain_name(info) == options_.domain;
  }

  /// Returns whether the ranks met over the address of `info`.
  [[nodiscard]] bool is_rendezvous_address(const fi_info& info) const {
    return !rendezvous_address_.empty() && describe_address(info) == rendezvous_address_;
  }

  /// Returns how well a domain's address fits. The first domain of the highest worth is used.
  [[nodiscard]] int worth(const fi_info& info) const {
    constexpr int reachable = 8;
    constexpr int ipv4 = 4;
    constexpr int of_rendezvous = 2;
    constexpr int global = 1;
    const int met = is_rendezvous_address(info) ? of_rendezvous : 0;
    if (info.addr_format == FI_SOCKADDR_IN && info.src_addrlen >= sizeof(sockaddr_in)) {
      sockaddr_in address{};
      std::memcpy(&address, info.src_addr, sizeof address);
      const bool is_loopback = (ntohl(address.sin_addr.s_addr) >> 24U) == IN_LOOPBACKNET;
      return (is_loopback == on_one_host_ ? reachable : 0) + ipv4 + met + global;
    }
    if (info.addr_format == FI_SOCKADDR_IN6 && info.src_addrlen >= sizeof(sockaddr_in6)) {
      sockaddr_in6 address{};
      std::memcpy(&address, info.src_addr, sizeof address);
      const bool is_loopback = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) != 0;
      const bool is_link_local = IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr) != 0;
      return (is_loopback == on_one_host_ ? reachable : 0) + met + (is_link_local ? 0 : global);
    }
    return 0;
  }

  fabric_options options_;
  bool on_one_host_;
  traffic_class traffic_;
  std::string rendezvous_address_;
};

}  // namespace peerbus::detail::ofi
