// SPDX-License-Identifier: MIT
#include "metrics.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::c_library {

namespace {

constexpr std::int64_t second = 1'000'000'000;

/// Returns whether an event is a whole operation or its last half. `reopen` is neither.
bool completes(const operation_event& event) noexcept {
  const std::string_view name = event.name;
  return !name.ends_with("_send") && name != "start" && name != "reopen";
}

/// Returns nanoseconds as seconds.
std::string seconds_of(std::uint64_t nanoseconds) {
  const std::string fraction = std::to_string(nanoseconds % second);
  return concat(nanoseconds / second, ".", std::string(9 - fraction.size(), '0'), fraction);
}

/// The text of a snapshot, metric by metric.
class exposition {
 public:
  explicit exposition(const metrics_snapshot& counts)
      : counts_{counts}, rank_{concat("{rank=\"", counts.rank.index(), "\"")} {}

  /// Begins a metric.
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = concat("peerbus_", name);
    text_ += concat("# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n");
  }
  void sample(std::string_view labels, std::string_view value) {
    text_ += concat(name_, rank_, labels, "} ", value, "\n");
  }
  /// Adds a sample of each operation that has counts.
  template <class Value>
  void of_operations(Value&& value) {
    for (std::size_t i = 0; i < counts_.operations.size(); ++i) {
      const operation_counts& each = counts_.operations[i];
      if (each.completed + each.failed + each.refused_here + each.refused_by_peer + each.bytes != 0)
        value(concat(",operation=\"", name_of(static_cast<group_operation>(i)), "\""), each);
    }
  }
  /// Adds a sample of each peer that has counts.
  template <class Value>
  void of_peers(Value&& value) {
    for (std::size_t peer = 0; peer < counts_.waits.size(); ++peer)
      if (counts_.waits[peer].waits != 0)
        sample(concat(",peer=\"", peer, "\""), value(counts_.waits[peer]));
    if (counts_.other_waits.waits != 0) sample(",peer=\"\"", value(counts_.other_waits));
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  const metrics_snapshot& counts_;
  std::string rank_;
  std::string name_;
  std::string text_;
};

}  // namespace

std::string prometheus_text(const metrics_snapshot& counts) {
  exposition made{counts};
  made.metric("operations_total", "counter", "Operations that this rank has completed.");
  made.of_operations([&](const std::string& labels, const operation_counts& each) {
    made.sample(labels, std::to_string(each.completed));
  });
  made.metric("failures_total", "counter", "Operations that failed, except by a refusal.");
  made.of_operations([&](const std::string& labels, const operation_counts& each) {
    made.sample(labels, std::to_string(each.failed));
  });
  made.metric("refusals_total", "counter",
              "Operations that all ranks refused, by whether this rank's arguments were bad.");
  made.of_operations([&](const std::string& labels, const operation_counts& each) {
    made.sample(labels + ",by=\"this\"", std::to_string(each.refused_here));
    made.sample(labels + ",by=\"peer\"", std::to_string(each.refused_by_peer));
  });
  made.metric("operation_seconds_total", "counter", "Time within the calls of operations.");
  made.of_operations([&](const std::string& labels, const operation_counts& each) {
    made.sample(labels, seconds_of(each.nanoseconds));
  });
  made.metric("bytes_total", "counter", "Bytes that this rank moved.");
  made.of_operations([&](const std::string& labels, const operation_counts& each) {
    made.sample(labels, std::to_string(each.bytes));
  });
  made.metric("waits_total", "counter", "Waits for other ranks, by the rank that came last.");
  made.of_peers([](const wait_counts& each) { return std::to_string(each.waits); });
  made.metric("wait_seconds_total", "counter", "Time of waits, by the rank that came last.");
  made.of_peers([](const wait_counts& each) { return seconds_of(each.nanoseconds); });
  made.metric("view", "gauge", "Number of the view of the ranks.");
  made.sample("", std::to_string(counts.view));
  made.metric("ranks", "gauge", "Ranks of the communicator.");
  made.sample("", std::to_string(counts.ranks));
  return made.take();
}

metrics::metrics(const bootstrap& boot, std::uint64_t view, std::string path)
    : rank_{boot.slot(boot.rank())},
      ranks_{boot.size()},
      slots_{boot.capacity()},
      path_{std::move(path)},
      numbers_(first_wait + (slots_ + 1) * 2),
      view_{view},
      next_write_{operation_event::now() + second} {
  try {
    write();
  } catch (const error& problem) {
    throw error{errc::invalid_argument, concat("PEERBUS_METRICS: ", problem.text())};
  }
}

std::unique_ptr<metrics> metrics::from_environment(const bootstrap& boot, std::uint64_t view) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): as the variables of launchers.
  const char* const value = std::getenv("PEERBUS_METRICS");
  if (value == nullptr || *value == 0) return nullptr;
  constexpr std::string_view place_of_rank = "{rank}";
  std::string path = value;
  auto place = path.find(place_of_rank);
  if (place == std::string::npos && boot.capacity() > 1)
    throw error{errc::invalid_argument,
                concat("PEERBUS_METRICS is '", value, "', expected {rank} in it, as each of ",
                       boot.capacity(), " ranks writes a file")};
  const std::string slot = std::to_string(boot.slot(boot.rank()).index());
  for (; place != std::string::npos; place = path.find(place_of_rank))
    path.replace(place, place_of_rank.size(), slot);
  return std::make_unique<metrics>(boot, view, std::move(path));
}

void metrics::count(const operation_event& event) noexcept {
  const auto elapsed = static_cast<std::uint64_t>(event.ended - event.begun);
  if (event.kind == event_kind::wait) {
    if (event.fault != errc::ok) return;  // Nobody came last.
    const std::size_t peer = event.peer ? event.peer->index() : slots_;
    add(first_wait + peer * 2, 1);
    add(first_wait + peer * 2 + 1, elapsed);
    return;
  }
  const bool is_operation = event.kind == event_kind::operation;
  if (!is_operation && event.kind != event_kind::step) return;
  const std::size_t first = static_cast<std::size_t>(event.what.operation) * per_operation;
  // Both halves of an operation name its bytes.
  if (completes(event) && event.fault == errc::ok) add(first + 5, event.bytes);
  if (!is_operation || event.lane != 0) return;
  add(first + 4, elapsed);
  switch (event.fault) {
    case errc::ok:
      if (completes(event)) add(first, 1);
      break;
    case errc::invalid_argument: add(first + 2, 1); break;
    case errc::refused: add(first + 3, 1); break;
    default: add(first + 1, 1); break;
  }
}

std::vector<std::uint64_t> metrics::read_numbers() const {
  std::vector<std::uint64_t> found;
  found.reserve(numbers_.size());
  // order: acquire, so that a second reading does not come before the first.
  for (const auto& each : numbers_) found.push_back(each.load(std::memory_order_acquire));
  return found;
}

metrics_snapshot metrics::read() const {
  // Numbers only grow: two equal readings are those of one moment.
  std::vector<std::uint64_t> found = read_numbers();
  for (int i = 0; i < 8; ++i) {
    std::vector<std::uint64_t> again = read_numbers();
    if (again == found) break;
    found = std::move(again);
  }
  metrics_snapshot made{
      .rank = rank_, .ranks = ranks_, .view = view_.load(std::memory_order_relaxed)};
  for (std::size_t i = 0; i < made.operations.size(); ++i) {
    const std::uint64_t* const of = found.data() + i * per_operation;
    made.operations[i] = {of[0], of[1], of[2], of[3], of[4], of[5]};
  }
  made.waits.reserve(slots_);
  const std::uint64_t* wait = found.data() + first_wait;
  for (std::size_t peer = 0; peer < slots_; ++peer, wait += 2)
    made.waits.push_back({wait[0], wait[1]});
  made.other_waits = {wait[0], wait[1]};
  return made;
}

void metrics::write_if_due() noexcept {
  const std::int64_t now = operation_event::now();
  std::int64_t due = next_write_.load(std::memory_order_relaxed);
  // order: relaxed; one thread a second gets the turn, and the numbers are read by themselves.
  if (now < due ||
      !next_write_.compare_exchange_strong(due, now + second, std::memory_order_relaxed))
    return;
  try_write();
}

void metrics::try_write() const noexcept {
  if (has_ended_.load(std::memory_order_relaxed)) return;  // order: relaxed; guards no other data.
  try {
    write();
  } catch (const std::exception&) {
    return;  // A full disk does not end a program that serves.
  }
}

void metrics::write() const {
  const std::string text = prometheus_text(read());
  const std::string next = path_ + ".new";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(next.c_str(), "we"),
                                                             &std::fclose};
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0 || std::rename(next.c_str(), path_.c_str()) != 0)
    throw error{errc::system, concat("cannot write '", path_, "': ", describe_errno(errno))};
}

void counting_listener::on_end(const operation_event& event) noexcept {
  operation_event counted = event;
  if (event.peer) counted.peer = number_of(*event.peer);
  counts_->count(counted);
}

}  // namespace peerbus::c_library
