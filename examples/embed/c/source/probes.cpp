// SPDX-License-Identifier: MIT
#include "probes.hpp"

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/log.hpp>

#ifdef PEERBUS_USDT
#include <sys/sdt.h>
#endif

namespace peerbus::c_library {

#ifdef PEERBUS_USDT
namespace {

/// Fires a probe for each begin and end. Arguments of both: name, operation, sequence number, lane.
/// Further ones of an end: nanoseconds, bytes, peer or -1, and the fault as a `peerbus_code`.
class probes final : public event_listener {
 public:
  void on_begin(const operation_event& event) noexcept override {
    DTRACE_PROBE4(peerbus, begin, event.name, name_of(event.what.operation), event.what.number,
                  event.lane);
  }
  void on_end(const operation_event& event) noexcept override {
    const auto peer = event.peer ? static_cast<std::int64_t>(event.peer->index()) : -1;
    DTRACE_PROBE8(peerbus, end, event.name, name_of(event.what.operation), event.what.number,
                  event.lane, event.ended - event.begun, event.bytes, peer,
                  static_cast<std::uint32_t>(event.fault));
  }
};

}  // namespace

void add_probes(event_listeners& listeners, rank_id /*rank*/) {
  static probes of_this_process;
  listeners.add(of_this_process);
}
#else
void add_probes(event_listeners& /*listeners*/, rank_id rank) {
  // Whoever asks for probes waits for them in vain, so this does not need PEERBUS_LOG.
  [[maybe_unused]] static const bool is_said = [rank] {
    stderr_log{rank, log_level::info}(
        log_level::info,
        "probes: none, as this libpeerbus was built without <sys/sdt.h> (Debian: "
        "systemtap-sdt-dev); PEERBUS_PROBES asks for them");
    return true;
  }();
}
#endif

}  // namespace peerbus::c_library
