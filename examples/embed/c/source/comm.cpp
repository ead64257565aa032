// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/launch_environment.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/rendezvous_options.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/communicator/log_choices.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/rank.hpp>

#include "choose_bus.hpp"
#include "module.hpp"
#include "objects.hpp"
#include "probes.hpp"

namespace peerbus::c_library {

namespace {

/// Returns the options of a call, with zeros for what its version of the structure does not have.
peerbus_comm_options read_comm_options(const peerbus_comm_options* given) {
  return read_options(given, "options", offsetof(peerbus_comm_options, transport));
}

/// Returns the options of a call that makes a communicator of ranks of `parent`, with those of
/// `parent` where none are given. Sets `members` to the group of `parent`.
peerbus_comm_options read_part_options(peerbus_comm* parent, const peerbus_comm_options* options,
                                       group*& members) {
  peerbus_comm_options given = read_comm_options(options);
  members = usable(parent, "parent").members.get();
  const peerbus_comm_options& of_parent = members->options();
  if (given.timeout_ns == 0) given.timeout_ns = of_parent.timeout_ns;
  if (given.meet_timeout_ns == 0) given.meet_timeout_ns = of_parent.meet_timeout_ns;
  if (given.transport == PEERBUS_AUTOMATIC_TRANSPORT) {
    given.transport = of_parent.transport;
    if (given.provider == nullptr) given.provider = of_parent.provider;
    if (given.device == nullptr) given.device = of_parent.device;
  }
  return given;
}

deadline rendezvous_deadline(const peerbus_comm_options& given) {
  return deadline_of(given.meet_timeout_ns).value_or(deadline::after(std::chrono::seconds{30}));
}

/// Calls the program of a rank. Returns its exit status.
int run_rank(bootstrap& boot, peerbus_rank_function body, void* context,
             const peerbus_comm_options& options) {
  peerbus_comm comm{std::make_shared<group>(boot, options)};
  comm.is_borrowed = true;
  int status = body(&comm, context);
  claims::settle();
  if (comm.members.use_count() > 1) {
    std::fprintf(stderr,
                 "peerbus: rank %zu: its function returned %d and left %ld windows, exchanges, "
                 "buffers or teams; expected it to destroy them\n",
                 boot.rank().index(), status, comm.members.use_count() - 1);
    if (status == 0) status = 1;
  }
  return status;
}

/// Starts ranks by `start(rank function of C++)` and sets `*status`.
template <class Start>
peerbus_code run(peerbus_rank_function body, void* context, const peerbus_comm_options* options,
                 int32_t* status, Start&& start) {
  return guarded([&] {
    require(body != nullptr, "the rank function is NULL");
    require(status != nullptr, "status is NULL");
    const auto given = read_comm_options(options);
    *status = start([&](bootstrap& boot) -> int { return run_rank(boot, body, context, given); });
  });
}

/// Returns what makes a communicator over a bootstrap, with options that outlive it, as a subgroup
/// of `whole` unless that is null, and with `first_view` as the number of its first view.
auto maker_of(const peerbus_comm_options& given, const group* whole = nullptr,
              std::uint64_t first_view = 0) {
  return [&given, whole, first_view](std::unique_ptr<bootstrap> boot) {
    return std::make_unique<peerbus_comm>(
        std::make_shared<group>(std::move(boot), given, whole, first_view));
  };
}

/// Makes a communicator with the options that `read()` returns, over the bootstrap that
/// `make(deadline)` returns. `*whole` is the group of which it is a subgroup, unless `whole` is
/// null.
template <class Read, class Make>
peerbus_code make_comm(peerbus_comm** comm, Read&& read, Make&& make,
                       group* const* whole = nullptr) {
  return guarded([&] {
    require_result(comm, "comm");
    const peerbus_comm_options given = read();
    std::unique_ptr<bootstrap> boot = make(rendezvous_deadline(given));  // Sets `*whole`.
    *comm = maker_of(given, whole == nullptr ? nullptr : *whole)(std::move(boot)).release();
  });
}

/// Returns the value of a variable of the environment, or null if it is not set or empty.
const char* value_of(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): as launched().
  return value == nullptr || *value == 0 ? nullptr : value;
}

/// Returns a file in `folder` of which no other communicator has the name.
std::string trace_file_in(const std::string& folder) {
  static std::atomic<unsigned> number{0};
  std::array<char, 64> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  return peerbus::concat(folder, "/peerbus-", host.data(), "-", ::getpid(), "-", ++number, ".json");
}

/// Returns the name of this rank's host that the caller or the environment gives, or nothing.
std::string host_of(const char* given) {
  const char* const named =
      given != nullptr
          ? given
          : std::getenv("PEERBUS_HOST");  // NOLINT(concurrency-mt-unsafe): as launched().
  return named == nullptr ? "" : named;
}

/// Returns whether ranks that a launcher started have to meet over the network.
bool may_have_other_hosts() {
  for (const char* const name : {"PEERBUS_SECRET", "PEERBUS_SECRET_FILE", "PEERBUS_HOST"})
    if (std::getenv(name) != nullptr) return true;  // NOLINT(concurrency-mt-unsafe): as launched().
  return !read_launch_environment().other_hosts.empty();
}

/// Returns what settings of one host and of several have in common, as `place` gives it.
template <class Settings>
Settings settings_of(const peerbus_place& place) {
  Settings settings;
  settings.rank = place.rank;
  settings.size = place.size;
  if (place.port != 0) settings.port = static_cast<std::uint16_t>(place.port);
  if (place.address != nullptr) settings.address = place.address;
  if (place.job != nullptr) settings.job = place.job;
  return settings;
}

/// Returns the settings of ranks of one host that `place` gives.
launch_settings settings_of_host(const peerbus_place& place) {
  auto settings = settings_of<launch_settings>(place);
  settings.local_rank = place.rank;
  return settings;
}

/// Returns the place of a call, whose members are in range.
/// Throws: `error` invalid_argument.
peerbus_place read_place(const peerbus_place* place) {
  const auto given = read_struct(place, "place", offsetof(peerbus_place, secret));
  require(given.port <= 65535, "place.port is above 65535");
  require(given.secret == nullptr || *given.secret != 0,
          "place.secret is empty, expected 16 bytes or more, or NULL for ranks of one host");
  require(given.secret != nullptr || given.host == nullptr,
          "place.host needs place.secret, by which ranks of several hosts meet");
  return given;
}

/// Returns the settings of ranks of several hosts that `place` gives, whose secret is set.
peerbus::tcp_settings settings_of_hosts(const peerbus_place& place) {
  auto settings = settings_of<peerbus::tcp_settings>(place);
  settings.host = host_of(place.host);
  settings.secret = place.secret;
  return settings;
}

/// Returns the rank of a number. One that does not exist stays one.
peerbus::rank_id rank_named(std::uint64_t number) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  return peerbus::rank_id{std::min(number, most)};
}

/// The interrupt function of Python, with a `peerbus_python` as its context.
std::int32_t let_python_handle_signals(void* context) {
  const auto& python = *static_cast<const peerbus_python*>(context);
  const std::int32_t state = python.ensure_gil();
  const bool raised = python.check_signals() != 0;
  if (raised) python.fetch(&python.raised[0], &python.raised[1], &python.raised[2]);
  python.release_gil(state);
  return raised ? 1 : 0;
}

}  // namespace

group::group(std::unique_ptr<bootstrap> boot, const peerbus_comm_options& options,
             const group* whole, std::uint64_t first_view)
    : group{*boot, options, std::move(boot), whole, first_view} {}

group::group(bootstrap& boot, const peerbus_comm_options& options, std::unique_ptr<bootstrap> own,
             const group* whole, std::uint64_t first_view)
    : own_{std::move(own)},
      provider_{options.provider == nullptr ? "" : options.provider},
      device_{options.device == nullptr ? "" : options.device},
      options_{options},
      chosen_{.of_host = nullptr,
              .log = {},
              .trace_folder = {},
              .counts = whole != nullptr && whole->counting_ ? whole->chosen_.counts : nullptr,
              .first_view = first_view},
      comm{choose_bus(boot, options, stop_, rendezvous_deadline(options), chosen_),
           options_of(options)} {
  options_.provider = provider_.c_str();
  options_.device = device_.c_str();
  if (log()) log_choices(comm, log());
  if (const char* const wanted = value_of("PEERBUS_PROBES");
      wanted != nullptr && std::string_view{wanted} != "0")
    add_probes(comm.members()->listeners(), comm.rank());
  if (!chosen_.trace_folder.empty()) {
    start_trace(0, rendezvous_deadline(options));
    trace_path_ = trace_file_in(chosen_.trace_folder);
  }
  start_counting(boot, whole);  // The last, because it leaves a listener that only ~group removes.
}

group::~group() {
  if (counting_ && has_own_metrics_) {
    chosen_.counts->set_view(view_number());
    chosen_.counts->try_write();
  }
  stop_counting();
  if (!trace_ || trace_path_.empty()) return;
  try {
    if (comm.is_poisoned())
      trace_->write_own(peerbus::concat(trace_path_, ".rank", comm.rank().index()));
    else
      trace_->write(trace_path_, deadline::after(std::chrono::seconds{10}));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "peerbus: no trace of all ranks in %s: %s\n", trace_path_.c_str(),
                 problem.what());
  }
}

void group::start_counting(const bootstrap& boot, const group* whole) {
  if (!chosen_.counts) return;
  const counting_listener* const of_whole = whole == nullptr ? nullptr : whole->counting_.get();
  has_own_metrics_ = of_whole == nullptr;
  std::vector<rank_id> numbers;
  numbers.reserve(comm.size());
  for (const rank_id rank : comm.ranks())
    numbers.push_back(of_whole == nullptr ? boot.slot(rank)
                                          : of_whole->number_of(boot.parent_rank(rank)));
  counting_ = std::make_unique<counting_listener>(chosen_.counts, std::move(numbers));
  comm.members()->listeners().add(*counting_);
}

void group::stop_counting() noexcept {
  if (!counting_) return;
  comm.members()->listeners().remove(*counting_);
  counting_.reset();
  if (has_own_metrics_) chosen_.counts->end();  // Subgroups may live on.
}

void group::start_trace(std::size_t events, deadline until) {
  if (!trace_path_.empty()) return;  // The environment has asked for it.
  require(!trace_, "the communicator records its events already");
  recorder_options options;
  if (events != 0) options.events = events;
  trace_.emplace(comm.boot(), until, options);
}

void group::write_trace(const std::string& path, deadline until) {
  require(trace_.has_value(), "the communicator records no events");
  trace_->write(path, until);
}

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

int32_t peerbus_launched() { return peerbus::environment_bootstrap::launched() ? 1 : 0; }

peerbus_code peerbus_comm_from_environment(const peerbus_comm_options* options,
                                           peerbus_comm** comm) {
  const auto read = [&] { return read_comm_options(options); };
  return make_comm(comm, read, [](peerbus::deadline until) {
    if (may_have_other_hosts()) return load(tcp_module).meet_by_environment(until);
    // The result of the call is made in place, because a bootstrap does not move.
    return std::unique_ptr<peerbus::bootstrap>{new peerbus::environment_bootstrap(
        peerbus::environment_bootstrap::from_environment(until))};
  });
}

peerbus_code peerbus_comm_at(const peerbus_place* place, const peerbus_comm_options* options,
                             peerbus_comm** comm) {
  const auto read = [&] { return read_comm_options(options); };
  return make_comm(comm, read, [&](peerbus::deadline until) {
    const auto given = read_place(place);
    if (given.secret != nullptr) return load(tcp_module).meet(settings_of_hosts(given), until);
    return std::unique_ptr<peerbus::bootstrap>{
        std::make_unique<peerbus::environment_bootstrap>(settings_of_host(given), until)};
  });
}

peerbus_code peerbus_comm_over(const peerbus_meeting* meeting, const peerbus_comm_options* options,
                               peerbus_comm** comm) {
  const auto read = [&] { return read_comm_options(options); };
  return make_comm(comm, read, [&](peerbus::deadline until) {
    const auto given = read_struct(meeting, "meeting");
    require(given.all_gather != nullptr, "meeting.all_gather is NULL");
    require(given.rank < given.size, "meeting.rank is not below meeting.size");
    peerbus::rendezvous_options where;
    if (given.address != nullptr) where.address = given.address;
    where.host = host_of(given.host);
    const auto all_gather = [&](std::span<const std::byte> own) {
      std::vector<std::byte> all(own.size() * given.size);
      if (const int32_t code = given.all_gather(given.context, own.data(), all.data(), own.size());
          code != 0)
        throw peerbus::error{peerbus::errc::system,
                             peerbus::concat("meeting.all_gather returned ", code, ", expected 0")};
      return all;
    };
    const auto over_network = [](const peerbus::tcp_settings& settings, peerbus::deadline end) {
      return load(tcp_module).meet(settings, end);
    };
    return peerbus::bootstrap_by_all_gather(given.rank, given.size, all_gather, over_network, until,
                                            where);
  });
}

peerbus_code peerbus_comm_subgroup(peerbus_comm* parent, const uint64_t* ranks, uint64_t count,
                                   const peerbus_comm_options* options, peerbus_comm** comm) {
  group* members_of_parent = nullptr;
  const auto read = [&] { return read_part_options(parent, options, members_of_parent); };
  return make_comm(
      comm, read,
      [&](peerbus::deadline until) {
        group& parents = *members_of_parent;
        std::vector<peerbus::rank_id> members;
        require(ranks != nullptr || count == 0, "ranks is NULL");
        // A list that is longer than the parent has a bad entry by then, which all ranks refuse.
        const std::uint64_t looked_at = std::min<std::uint64_t>(count, parents.comm.size() + 1);
        members.reserve(looked_at);
        for (std::uint64_t i = 0; i < looked_at; ++i) members.push_back(rank_named(ranks[i]));
        // Early ranks wait here, where a program can end the wait. A bootstrap cannot.
        parents.comm.barrier(until);
        return parents.boot().subgroup(members, until);
      },
      &members_of_parent);
}

peerbus_code peerbus_run_threads(uint64_t ranks, peerbus_rank_function body, void* context,
                                 const peerbus_comm_options* options, int32_t* status) {
  return run(body, context, options, status,
             [ranks](auto rank) { return peerbus::run_threads(ranks, rank); });
}

peerbus_code peerbus_run_processes(uint64_t ranks, peerbus_rank_function body, void* context,
                                   const peerbus_comm_options* options, int32_t* status) {
  return run(body, context, options, status,
             [ranks](auto rank) { return peerbus::run_local(ranks, rank); });
}

peerbus_code peerbus_comm_destroy(peerbus_comm** comm) {
  return guarded([&] {
    require(comm == nullptr || *comm == nullptr || !(*comm)->is_borrowed,
            "peerbus_comm_destroy: the communicator of a rank function ends with the function");
    destroy(comm);
  });
}

uint64_t peerbus_comm_rank(const peerbus_comm* comm) {
  return comm == nullptr ? 0 : comm->members->comm.rank().index();
}

uint64_t peerbus_comm_size(const peerbus_comm* comm) {
  return comm == nullptr ? 0 : comm->members->comm.size();
}

int32_t peerbus_comm_is_near(const peerbus_comm* comm, uint64_t rank) {
  if (comm == nullptr || rank >= comm->members->comm.size()) return 0;
  return comm->members->is_near(peerbus::rank_id{rank}) ? 1 : 0;
}

const char* peerbus_comm_transport(const peerbus_comm* comm) {
  return comm == nullptr ? "" : comm->members->transport_name();
}

peerbus_code peerbus_comm_barrier(peerbus_comm* comm, int64_t timeout_ns) {
  return guarded([&] {
    auto& ranks = usable(comm, "communicator").members->comm;
    ranks.barrier(deadline_of(ranks, timeout_ns));
  });
}

peerbus_code peerbus_comm_start_trace(peerbus_comm* comm, uint64_t events, int64_t timeout_ns) {
  return guarded([&] {
    group& members = *usable(comm, "communicator").members;
    members.start_trace(events, deadline_of(members.comm, timeout_ns));
  });
}

peerbus_code peerbus_comm_write_trace(peerbus_comm* comm, const char* path, int64_t timeout_ns) {
  return guarded([&] {
    require(path != nullptr, "path is NULL");
    group& members = *usable(comm, "communicator").members;
    members.write_trace(path, deadline_of(members.comm, timeout_ns));
  });
}

peerbus_code peerbus_comm_continue(peerbus_comm* comm, int64_t timeout_ns) {
  return guarded([&] {
    auto& ranks = usable(comm, "communicator").members->comm;
    ranks.continue_without_the_dead(deadline_of(ranks, timeout_ns));
  });
}

peerbus_code peerbus_comm_continue_without(peerbus_comm* comm, const uint64_t* evicted,
                                           uint64_t count, int64_t timeout_ns) {
  return guarded([&] {
    auto& ranks = usable(comm, "communicator").members->comm;
    require(evicted != nullptr || count == 0, "evicted is NULL");
    require(count <= ranks.size(), "count is above the number of ranks");
    std::vector<peerbus::rank_id> named;
    named.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) named.push_back(rank_named(evicted[i]));
    ranks.continue_without(named, deadline_of(ranks, timeout_ns));
  });
}

uint64_t peerbus_comm_view(const peerbus_comm* comm) {
  return comm == nullptr ? 0 : comm->members->comm.view().number();
}

int32_t peerbus_comm_is_member(const peerbus_comm* comm, uint64_t rank) {
  if (comm == nullptr || rank >= comm->members->comm.size()) return 0;
  return comm->members->comm.view().contains(peerbus::rank_id{rank}) ? 1 : 0;
}

int32_t peerbus_comm_rank_state(const peerbus_comm* comm, uint64_t rank) {
  if (comm == nullptr || rank >= comm->members->comm.size()) return -1;
  switch (comm->members->boot().members()->state(peerbus::rank_id{rank})) {
    case peerbus::rank_state::running: return 0;
    case peerbus::rank_state::left: return 1;
    default: return 2;
  }
}

peerbus_code peerbus_comm_last_seen(const peerbus_comm* comm, uint64_t rank,
                                    peerbus_last_seen* seen) {
  return guarded([&] {
    require(comm != nullptr, "comm is NULL");
    require_struct(seen, "peerbus_last_seen");
    require(rank < comm->members->comm.size(), "rank is not below the number of ranks");
    peerbus_last_seen found{};
    found.operation = found.phase = "";
    if (const auto known = comm->members->boot().members()->last_seen(peerbus::rank_id{rank})) {
      found.is_known = 1;
      found.is_over = known->is_over ? 1 : 0;
      found.operation = name_of(known->wait.operation);
      if (known->wait.phase != peerbus::operation_phase::whole)
        found.phase = name_of(known->wait.phase);
      found.number = known->wait.number;
      found.since_ns = known->since.count();
      found.heard_ns = known->heard.count();
    }
    write_struct(seen, found);
  });
}

peerbus_code peerbus_comm_survivors(peerbus_comm* parent, const peerbus_comm_options* options,
                                    peerbus_comm** comm) {
  return guarded([&] {
    require_result(comm, "comm");
    group* members = nullptr;
    const peerbus_comm_options given = read_part_options(parent, options, members);
    *comm = peerbus::survivors(members->comm, maker_of(given, nullptr, members->view_number()),
                               rendezvous_deadline(given))
                .release();
    members->stop_counting();
  });
}

peerbus_code peerbus_comm_with_vacancies(const peerbus_place* place, const uint64_t* ranks,
                                         uint64_t count, const peerbus_comm_options* options,
                                         peerbus_comm** comm) {
  const auto read = [&] { return read_comm_options(options); };
  return make_comm(comm, read, [&](peerbus::deadline until) {
    auto given = read_place(place);
    require(ranks != nullptr && count != 0, "ranks is NULL or count is 0");
    require(count <= given.size, "count is above place.size");
    const std::uint64_t* const end = ranks + count;
    const auto* const own = std::find(ranks, end, given.rank);
    require(own != end && std::is_sorted(ranks, end) && std::adjacent_find(ranks, end) == end &&
                *(end - 1) < given.size,
            "ranks are not ascending, below place.size and with place.rank among them");
    const std::size_t capacity = std::exchange(given.size, count);
    given.rank = static_cast<std::uint64_t>(own - ranks);
    std::unique_ptr<peerbus::bootstrap> met;
    if (given.secret != nullptr) {
      auto settings = settings_of_hosts(given);
      settings.mesh = true;
      met = load(tcp_module).meet(settings, until);
    } else {
      met = std::make_unique<peerbus::environment_bootstrap>(settings_of_host(given), until);
    }
    return peerbus::with_vacancies(std::move(met), std::vector<peerbus::rank_id>(ranks, end),
                                   capacity, until);
  });
}

peerbus_code peerbus_comm_admit(peerbus_comm* parent, const peerbus_place* place,
                                const peerbus_comm_options* options, peerbus_comm** comm) {
  return guarded([&] {
    require_result(comm, "comm");
    group* members = nullptr;
    const peerbus_comm_options given = read_part_options(parent, options, members);
    const auto where = read_place(place);
    require(where.secret == nullptr || members->boot().messages() != nullptr,
            "place.secret is set, and the ranks share memory on one host: expected NULL, or a mesh "
            "over "
            "TCP with another transport than unified_bus");
    auto made = members->admission_at(settings_of_host(where))
                    .admit(maker_of(given), rendezvous_deadline(given));
    if (!made) return;
    members->stop_counting();
    *comm = made->release();
  });
}

const char* peerbus_comm_refusal(const peerbus_comm* comm) {
  return comm == nullptr ? "" : comm->members->refusal();
}

peerbus_code peerbus_comm_join(const peerbus_place* place, const peerbus_comm_options* options,
                               peerbus_comm** comm) {
  return guarded([&] {
    require_result(comm, "comm");
    const auto given = read_comm_options(options);
    const auto where = read_place(place);
    const auto make = maker_of(given);
    const auto until = rendezvous_deadline(given);
    if (where.secret == nullptr) {
      *comm = peerbus::join_running(settings_of_host(where), make, until).release();
      return;
    }
    using made = std::unique_ptr<peerbus_comm>;
    prepare_bus(given, until);
    const auto joined = load(tcp_module)
                            .join(
                                settings_of_hosts(where),
                                [&](std::unique_ptr<peerbus::bootstrap> boot) {
                                  return std::make_shared<made>(make(std::move(boot)));
                                },
                                until);
    *comm = std::static_pointer_cast<made>(joined)->release();
  });
}

peerbus_code peerbus_comm_progress(peerbus_comm* comm) {
  return guarded([&] {
    const peerbus::errc code = usable(comm, "communicator").members->comm.bus().progress();
    if (code != peerbus::errc::ok) throw peerbus::error{code, "progress"};
  });
}

peerbus_code peerbus_comm_set_interrupt(peerbus_comm* comm, peerbus_interrupt_function interrupt,
                                        void* context) {
  return guarded(
      [&] { usable(comm, "communicator").members->stop() = {interrupt, context, {}, {}}; });
}

peerbus_code peerbus_comm_set_python(peerbus_comm* comm, const peerbus_python* python) {
  return guarded([&] {
    auto& stop = usable(comm, "communicator").members->stop();
    const peerbus_python given = read_struct(python, "python");
    require(given.ensure_gil != nullptr && given.release_gil != nullptr &&
                given.check_signals != nullptr && given.fetch != nullptr && given.raised != nullptr,
            "python has a member that is NULL, expected CPython's functions and room for what a "
            "handler raises");
    stop = {let_python_handle_signals, &stop.python, given.thread, given};
  });
}
