// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/trace/job_trace.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/window.hpp>

#include "choose_bus.hpp"
#include "failure.hpp"
#include "interruptible.hpp"
#include "metrics.hpp"
#include "stage.hpp"

/// The objects behind the handles.
namespace peerbus::c_library {

/// The communicator that the objects of a group share, with what it stands on.
class group {
 public:
  /// Collective: makes the communicator of `boot`, which it keeps. If it is a subgroup of `whole`,
  /// it counts in the metrics of that group. Its own metrics give its first view the number
  /// `first_view`.
  group(std::unique_ptr<bootstrap> boot, const peerbus_comm_options& options,
        const group* whole = nullptr, std::uint64_t first_view = 0);
  /// Collective: makes the communicator of `boot`, which outlives the group, or is its own.
  group(bootstrap& boot, const peerbus_comm_options& options,
        std::unique_ptr<bootstrap> own = nullptr, const group* whole = nullptr,
        std::uint64_t first_view = 0);
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  /// Writes the metrics and the trace that the environment asks for.
  ~group();

 private:
  // These precede `comm`, which uses them until its end.
  std::unique_ptr<bootstrap> own_;
  std::shared_ptr<interruption> stop_ = std::make_shared<interruption>();
  std::string provider_, device_;
  peerbus_comm_options options_;  ///< points to these two
  bus_choice chosen_;

 public:
  communicator<bus> comm;
  /// Returns the bootstrap on which the communicator stands.
  [[nodiscard]] bootstrap& boot() noexcept { return comm.bus().boot(); }
  /// Returns whether loads and stores reach the memory of `rank`.
  [[nodiscard]] bool is_near(rank_id rank) noexcept {
    const peer_reach reach = comm.bus().reach();
    return reach == peer_reach::all || rank == comm.rank() ||
           (reach == peer_reach::near && comm.bus().boot().is_near(rank));
  }
  /// Returns the name of the transport.
  [[nodiscard]] const char* transport_name() const noexcept { return chosen_.name; }
  /// Returns the log that the environment asked for when the group was made.
  [[nodiscard]] const stderr_log& log() const noexcept { return chosen_.log; }
  /// Returns the number that metrics give the present view.
  [[nodiscard]] std::uint64_t view_number() const noexcept {
    return chosen_.first_view + comm.view().number();
  }
  /// Writes the metrics in which the group counts, if it does and the file is a second old.
  void write_metrics_if_due() noexcept {
    if (!counting_) return;
    if (has_own_metrics_) chosen_.counts->set_view(view_number());
    chosen_.counts->write_if_due();
  }
  /// Counts no more events, and writes no more metrics: another group takes the file. No operation
  /// runs.
  void stop_counting() noexcept;
  /// Returns the options that the group was made with.
  [[nodiscard]] const peerbus_comm_options& options() const noexcept { return options_; }
  /// Collective: makes the stage that windows of this group need, unless it is there. Returns it,
  /// or null if none is needed.
  stage* make_stage(deadline until) {
    if (!stage_ && !comm.bus().capabilities().any_local_memory) stage_.emplace(comm, until);
    return stage_ ? &*stage_ : nullptr;
  }
  /// Returns what takes in processes that wait at `place`.
  admission& admission_at(const launch_settings& place) {
    const bool is_there = admission_ && place_.address == place.address &&
                          place_.port == place.port && place_.job == place.job;
    if (!is_there) admission_.emplace(comm, place);
    place_ = place;
    return *admission_;
  }
  /// Returns why the latest admission took in nobody who waited, or an empty text.
  [[nodiscard]] const char* refusal() const noexcept {
    return admission_ ? admission_->refusal().c_str() : "";
  }
  /// Collective: starts to record the latest `events` events of each thread, before anything else
  /// is made.
  /// Throws: `error` invalid_argument if it has started before; as `job_trace`.
  void start_trace(std::size_t events, deadline until);
  /// Collective: writes what was recorded.
  /// Throws: as `job_trace::write`; `error` invalid_argument if nothing is recorded.
  void write_trace(const std::string& path, deadline until);
  /// Returns what may end the waits of the group. Not to be changed while a call waits.
  [[nodiscard]] interruption& stop() noexcept { return *stop_; }

 private:
  /// Begins to count in the metrics that were chosen, as ranks of `whole` unless that is null.
  void start_counting(const bootstrap& boot, const group* whole);

  std::unique_ptr<counting_listener> counting_;  ///< null if no metrics are asked for
  bool has_own_metrics_ = false;                 ///< no group that this is a part of has them
  std::optional<stage> stage_;
  std::optional<admission> admission_;
  launch_settings place_;
  std::optional<job_trace> trace_;
  std::string trace_path_;  ///< the file that the environment asks for; empty: none
};

/// The common part of all objects.
struct object : destructible {
  explicit object(std::shared_ptr<group> of) noexcept
      : made_in{fork_count()}, members{std::move(of)} {}
  object(const object&) = delete;
  object& operator=(const object&) = delete;

  /// Returns whether this process, and not a parent, has made the object.
  [[nodiscard]] bool is_ours() const noexcept { return made_in == fork_count(); }

  std::uint64_t made_in;
  std::shared_ptr<group> members;
  std::atomic_flag own_call;              ///< a call uses the object
  std::atomic_flag* in_call = &own_call;  ///< handles of one object have one flag

 protected:
  ~object() = default;
};

/// Returns what is wrong with a handle, or an empty string if it can be used. `name` is its type.
inline std::string_view problem_of(const object* handle) noexcept {
  if (handle == nullptr) return "is NULL";
  if (!handle->is_ours())
    return "was made before this process became a child by fork; expected the child to make its "
           "own";
  return {};
}

/// Returns the object of a handle, for a call that other threads may make at the same time. Throws:
/// `error` invalid_argument if it cannot be used.
template <class Object>
Object& shared(Object* handle, std::string_view name) {
  if (const std::string_view problem = problem_of(handle); !problem.empty())
    throw error{errc::invalid_argument, concat("the ", name, " ", problem)};
  return *handle;
}

/// Returns the object of a handle, which serves this call alone until the call ends, and writes the
/// metrics of its group if that is due. Throws: `error` invalid_argument if it cannot be used, or
/// if another call uses it.
template <class Object>
Object& usable(Object* handle, std::string_view name) {
  Object& found = shared(handle, name);
  if (!claims::take(*found.in_call))
    throw error{errc::invalid_argument,
                concat("the ", name,
                       " is in another call; expected one call at a time, or an object for "
                       "each thread")};
  found.members->write_metrics_if_due();
  return found;
}

/// Destroys `*handle`, unless a parent has made it, and sets it to null. If a call uses the object,
/// it is freed when that call has ended.
template <class Object>
void destroy(Object** handle) noexcept {
  if (handle == nullptr || *handle == nullptr) return;
  Object* const given = std::exchange(*handle, nullptr);
  given->end = [](destructible* self) noexcept {
    auto* const object = static_cast<Object*>(self);
    // In a child, destroying would speak to the other ranks in the parent's name.
    if (!object->is_ours()) return true;
    // order: acquire; pairs with the release at the end of the call that used the object.
    if (object->in_call->test(std::memory_order_acquire)) return false;
    delete object;
    return true;
  };
  claims::free(given);
}

/// Sets `*result` to null. Throws: `error` invalid_argument if `result` is null.
template <class Object>
void require_result(Object** result, std::string_view name) {
  if (result == nullptr) throw error{errc::invalid_argument, concat(name, " is NULL")};
  *result = nullptr;
}

/// Returns the deadline of a time limit of C's interface: empty for 0, the default.
inline std::optional<deadline> deadline_of(std::int64_t timeout_ns) noexcept {
  if (timeout_ns == 0) return std::nullopt;
  if (timeout_ns < 0) return deadline::never();
  return deadline::after(std::chrono::nanoseconds{timeout_ns});
}
/// Returns the deadline of a call of a communicator.
inline deadline deadline_of(const communicator<bus>& comm, std::int64_t timeout_ns) noexcept {
  return deadline_of(timeout_ns).value_or(comm.default_deadline());
}

}  // namespace peerbus::c_library

struct peerbus_comm final : peerbus::c_library::object {
  using object::object;
  bool is_borrowed = false;  ///< the library destroys it
};

struct peerbus_window final : peerbus::c_library::object {
  peerbus_window(std::shared_ptr<peerbus::c_library::group> of,
                 peerbus::window<peerbus::c_library::bus> made, peerbus::c_library::stage* by)
      : object{std::move(of)},
        kept{std::make_shared<peerbus::window<peerbus::c_library::bus>>(std::move(made))},
        memory{*kept},
        staged_by{by} {}
  std::shared_ptr<peerbus::window<peerbus::c_library::bus>> kept;  ///< teams share it
  peerbus::window<peerbus::c_library::bus>& memory;
  peerbus::c_library::stage* staged_by;  ///< null if the transport takes any memory
};
