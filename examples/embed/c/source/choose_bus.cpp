// SPDX-License-Identifier: MIT
#include "choose_bus.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "module.hpp"

namespace peerbus::c_library {

namespace {

std::atomic<std::uint64_t> forks{0};

/// Makes children by fork notice that they are.
void watch_forks() {
  // order: relaxed; a child by fork has one thread.
  static const int failure =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (failure != 0) throw error{errc::system, "pthread_atfork failed"};
}

/// In the order of PEERBUS_AUTOMATIC_TRANSPORT and so on.
constexpr std::array names{"automatic", "unified_bus", "planes", "planes_verbs", "fabric", "verbs"};

std::string_view text_or_empty(const char* text) noexcept {
  return text == nullptr ? std::string_view{} : std::string_view{text};
}

/// Returns the folder that PEERBUS_TRACE names, or nothing.
/// Throws: `error` invalid_argument if no file can be made there.
std::string trace_folder_of_environment() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): as the variables of launchers.
  const char* const value = std::getenv("PEERBUS_TRACE");
  if (value == nullptr) return {};
  if (*value != 0 && ::access(value, W_OK | X_OK) != 0)
    throw error{errc::invalid_argument, concat("PEERBUS_TRACE is '", value,
                                               "', expected a folder in which this process "
                                               "can write: ",
                                               describe_errno(errno))};
  return value;
}

/// Sets the log, the trace and the metrics to those of the environment, unless metrics are there.
/// Throws: `error` invalid_argument for wrong values.
void read_environment(const bootstrap& boot, bus_choice& chosen) {
  chosen.log = stderr_log::from_environment(boot.rank());
  chosen.trace_folder = trace_folder_of_environment();
  if (!chosen.counts) chosen.counts = metrics::from_environment(boot, chosen.first_view);
}

/// Returns the transport that all ranks are to have, and reads the environment. Collective.
std::int32_t agreed_transport(bootstrap& boot, const peerbus_comm_options& options, deadline until,
                              bus_choice& chosen) {
  const auto asked = static_cast<std::size_t>(options.transport);
  const auto objection = objection_of("a transport", [&] {
    if (options.transport < 0 || asked >= names.size())
      throw error{errc::invalid_argument, concat("options.transport is ", options.transport,
                                                 ", expected 0 to ", names.size() - 1)};
    read_environment(boot, chosen);
  });
  const std::array values{
      declared{"transport", objection ? std::string_view{} : std::string_view{names[asked]}},
      declared{"provider", text_or_empty(options.provider)},
      declared{"PEERBUS_TRACE", chosen.trace_folder.empty() ? "not set" : "set"}};
  agree(boot, "the transport of a communicator", values, until, objection);
  if (options.transport != PEERBUS_AUTOMATIC_TRANSPORT) return options.transport;
  return boot.near_ranks().size() == boot.size() ? PEERBUS_UNIFIED_BUS : PEERBUS_PLANES;
}

/// Describes the transport `name` and why it was chosen.
std::string describe_choice(const bootstrap& boot, std::string_view name, bool is_automatic) {
  if (boot.addresses() == address_space::shared)
    return concat("transport: ", name, ", as the ranks are threads of one process");
  if (!is_automatic) return concat("transport: ", name, ", as option transport asks");
  return concat("transport: ", name, ", as ", boot.near_ranks().size(), " of ", boot.size(),
                " ranks share memory with this one; option transport fixes it");
}

/// Describes the device by which ranks reach far ones, and why it was chosen.
std::string describe_device(const network_place& place, std::string_view device) {
  const bool is_asked = !place.device.empty();
  const bool is_provider_asked = !place.provider.empty();
  return concat("device: ", device, ", by ",
                is_asked || is_provider_asked ? "options " : "the defaults of options ",
                "provider and device");
}

/// Returns how long calls that need a peer's calls wait for them: the limit of calls, if that is
/// more than the transports' own, so that a rank which computes for longer does not break its
/// links.
std::chrono::milliseconds stall_timeout_of(const peerbus_comm_options& options) {
  return std::clamp<std::chrono::milliseconds>(
      options_of(options).timeout, std::chrono::seconds{30}, std::chrono::hours{24 * 365});
}

/// Returns the ranks that share memory with this one, as a text.
std::string near_text(const bootstrap& boot) {
  std::string text;
  for (const rank_id rank : boot.near_ranks())
    text += concat(text.empty() ? "" : ", ", rank.index());
  return text;
}

/// Returns the module of a transport between hosts.
const module_file& file_of(std::int32_t transport) {
  const bool by_verbs = transport == PEERBUS_PLANES_VERBS || transport == PEERBUS_VERBS;
  return by_verbs ? verbs_module : fabric_module;
}

network_place place_of(const peerbus_comm_options& options, deadline until) {
  return {std::string{text_or_empty(options.provider)}, std::string{text_or_empty(options.device)},
          stall_timeout_of(options), until};
}

}  // namespace

std::uint64_t fork_count() noexcept {
  return forks.load(std::memory_order_relaxed);  // order: relaxed; as in `watch_forks`.
}

communicator_options options_of(const peerbus_comm_options& given) {
  communicator_options options;
  if (given.timeout_ns < 0) options.timeout = std::chrono::milliseconds::max();
  if (given.timeout_ns > 0)  // Rounded up, so that a short limit does not become none.
    options.timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds{given.timeout_ns});
  return options;
}

void prepare_bus(const peerbus_comm_options& options, deadline until) {
  if (options.transport == PEERBUS_UNIFIED_BUS) return;
  // What fails here fails again in `choose_bus`, which tells all ranks.
  static_cast<void>(objection_of("a transport", [&] {
    const module& loaded = load(file_of(options.transport));
    if (loaded.prepare != nullptr) loaded.prepare(place_of(options, until));
  }));
}

bus choose_bus(bootstrap& boot, const peerbus_comm_options& options,
               const std::shared_ptr<interruption>& stop, deadline until, bus_choice& chosen) {
  watch_forks();
  const auto log_transport = [&] {
    chosen.log(log_level::info, describe_choice(boot, chosen.name,
                                                options.transport == PEERBUS_AUTOMATIC_TRANSPORT));
  };
  if (boot.addresses() == address_space::shared) {
    chosen.name = "loopback";
    agree(boot, "the environment of a communicator", {}, until,
          objection_of("a communicator", [&] { read_environment(boot, chosen); }));
    log_transport();
    return bus{interruptible<loopback>{loopback{boot}, stop}};
  }
  const std::int32_t wanted = agreed_transport(boot, options, until, chosen);
  chosen.name = names[static_cast<std::size_t>(wanted)];
  log_transport();
  if (wanted == PEERBUS_UNIFIED_BUS) {
    if (boot.near_ranks().size() != boot.size())  // The same on all ranks.
      throw agreed_error{
          errc::unsupported,
          concat("unified_bus needs all ranks on one host, in one network namespace "
                 "and of one user; rank ",
                 boot.rank().index(), " shares memory with ranks ", near_text(boot), " of ",
                 boot.size(), ", expected all of them, or the transport planes")};
    if (!boot.passes_descriptors()) {
      std::vector<rank_id> every;
      for (const rank_id rank : all_ranks{boot.size()}) every.push_back(rank);
      chosen.of_host = boot.subgroup(every, until);
    }
    return bus{
        interruptible<unified_bus>{unified_bus{chosen.of_host ? *chosen.of_host : boot}, stop}};
  }
  const bool has_planes = wanted == PEERBUS_PLANES || wanted == PEERBUS_PLANES_VERBS;
  const module* const loaded = on_all_ranks(boot, concat("the transport ", chosen.name), until,
                                            [&] { return &load(file_of(wanted)); });
  const network_place place = place_of(options, until);
  std::string device;
  any_transport made =
      has_planes ? loaded->make_planes(boot, place, device) : loaded->make(boot, place, device);
  // Planes whose ranks are all near have none.
  if (!device.empty()) chosen.log(log_level::info, describe_device(place, device));
  return bus{interruptible<bus>{std::move(made), stop}};
}

}  // namespace peerbus::c_library
