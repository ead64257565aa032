// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/version.hpp>

/// What libpeerbus.so loads when it is first needed, so that it needs no library itself. Each
/// module is a shared library of the same build that exports one function, `peerbus_module`.
namespace peerbus::c_library {

/// Where a network transport is to be made.
struct network_place {
  std::string provider;  ///< of libfabric; empty: the default
  std::string device;    ///< a domain of libfabric or a device of verbs; empty: the default
  std::chrono::milliseconds stall_timeout;  ///< how long calls wait for a peer that takes nothing
  deadline until;
};

/// The functions of a module. Those that a module does not have are null.
struct module {
  /// That of the library and of the module must be equal. It changes with these structures.
  static constexpr std::uint64_t expected_build = std::uint64_t{PEERBUS_VERSION_MAJOR} << 40 |
                                                  std::uint64_t{PEERBUS_VERSION_MINOR} << 32 |
                                                  std::uint64_t{PEERBUS_VERSION_PATCH} << 24 | 4;
  std::uint64_t build = expected_build;

  std::unique_ptr<bootstrap> (*meet)(const tcp_settings& settings, deadline until) = nullptr;
  std::unique_ptr<bootstrap> (*meet_by_environment)(deadline until) = nullptr;
  /// Does as `join_running`, for objects of any type.
  std::shared_ptr<void> (*join)(
      const tcp_settings& settings,
      const std::function<std::shared_ptr<void>(std::unique_ptr<bootstrap>)>& make,
      deadline until) = nullptr;
  ///@{
  /// Makes a transport, and sets `device` to a description of its device; of planes whose ranks are
  /// all near, to nothing.
  any_transport (*make)(bootstrap& boot, const network_place& place, std::string& device) = nullptr;
  any_transport (*make_planes)(bootstrap& boot, const network_place& place,
                               std::string& device) = nullptr;
  ///@}
  /// Does what `make` would take long for the first time in a process.
  void (*prepare)(const network_place& place) = nullptr;
};

/// A module that this process can load.
struct module_file {
  std::string_view name;     ///< as in libpeerbus_NAME.so
  std::string_view package;  ///< that has the library which it needs, in Debian
};
inline constexpr module_file tcp_module{"tcp", "libssl3"};
inline constexpr module_file fabric_module{"fabric", "libfabric1"};
inline constexpr module_file verbs_module{"verbs", "libibverbs1"};

/// Loads a module, from the folder of libpeerbus.so or else from where the loader looks. It stays
/// loaded until the process ends.
/// Throws: `error` unsupported, with what the loader says.
const module& load(const module_file& file);

}  // namespace peerbus::c_library

/// Exports the functions of a module.
#define PEERBUS_MODULE(...)                                                           \
  extern "C" __attribute__((visibility("default"))) const peerbus::c_library::module* \
  peerbus_module() noexcept {                                                         \
    static const peerbus::c_library::module own{__VA_ARGS__};                         \
    return &own;                                                                      \
  }
