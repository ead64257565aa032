// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <tuple>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/trace/chrome_trace.hpp>

namespace peerbus {

namespace detail {

/// Appends `text` as the inside of a JSON string.
PEERBUS_INLINE void append_json(std::string& out, std::string_view text) {
  for (const char character : text) {
    if (character == '"' || character == '\\') out += '\\';
    out += static_cast<unsigned char>(character) < 0x20 ? ' ' : character;
  }
}

/// Returns nanoseconds as microseconds, exactly.
PEERBUS_INLINE std::string as_microseconds(std::int64_t nanoseconds) {
  char text[32];
  const std::int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  std::snprintf(text, sizeof text, "%s%lld.%03lld", nanoseconds < 0 ? "-" : "",
                static_cast<long long>(size / 1000), static_cast<long long>(size % 1000));
  return text;
}

/// Returns whether waits of an operation are all that is reported of it.
constexpr bool is_one_wait(group_operation what) noexcept {
  return what < group_operation::dispatch && what != group_operation::barrier &&
         what != group_operation::call_agreement;
}

/// Returns the category of an event, as NCCL's profiler has it.
PEERBUS_INLINE std::string_view category_of(const operation_event& event) noexcept {
  const group_operation what = event.what.operation;
  const bool is_p2p = what == group_operation::signal || what == group_operation::batch_send_recv;
  switch (event.kind) {
    case event_kind::send:
    case event_kind::recv: return "p2p";
    case event_kind::step: return "step";
    case event_kind::wait:
      if (!is_one_wait(what)) return "step";
      break;
    case event_kind::operation: break;
  }
  return is_p2p ? "p2p" : "coll";
}

/// Returns the name of an event as it stands in its box.
PEERBUS_INLINE std::string title_of(const operation_event& event) {
  const std::string_view name = event.name;
  const std::string_view operation = name_of(event.what.operation);
  if (event.kind == event_kind::wait) {
    if (event.what.phase != operation_phase::whole)
      return concat("wait for ", name_of(event.what.phase));
    if (event.what.operation == group_operation::signal) return "wait for signal";
    return is_one_wait(event.what.operation) ? std::string{operation} : "wait";
  }
  // Halves are called start and finish.
  const bool is_half = event.kind == event_kind::operation && (name == "start" || name == "finish");
  return is_half ? concat(operation, " ", name) : std::string{name};
}

/// Gives operations the bytes of the steps in them, and the rank that they waited for longest.
PEERBUS_INLINE void sum_up(std::vector<operation_event>& events) {
  operation_event* open = nullptr;
  std::int64_t longest = 0;
  for (operation_event& event : events) {
    if (event.kind == event_kind::operation) {
      open = &event;
      longest = 0;
      continue;
    }
    if (open == nullptr || event.begun >= open->ended) continue;
    if (event.kind == event_kind::step) open->bytes += event.bytes;
    const std::int64_t waited = event.ended - event.begun;
    if (event.kind != event_kind::wait || !event.peer || waited <= longest) continue;
    longest = waited;
    // A refused operation names the rank that refuses.
    if (open->fault == errc::ok) open->peer = event.peer;
  }
}

/// Returns the arguments of an event.
PEERBUS_INLINE std::string arguments_of(const operation_event& event) {
  std::string text = "{";
  const auto add = [&](std::string_view name, const auto& value) {
    text += concat(text.size() == 1 ? "\"" : ",\"", name, "\":", value);
  };
  if (event.what.number != 0 || event.kind == event_kind::send || event.kind == event_kind::recv)
    add("seqNumber", event.what.number);
  if (event.kind == event_kind::wait || event.kind == event_kind::step)
    if (event.what.operation != group_operation::none)
      add("of", concat("\"", name_of(event.what.operation), "\""));
  if (event.epoch != 0) add("epoch", event.epoch);
  if (event.bytes != 0) add("bytes", event.bytes);
  const bool waits = event.kind == event_kind::wait ||
                     (event.kind == event_kind::operation && event.fault == errc::ok);
  if (event.peer) add(waits ? "waited_for" : "peer", event.peer->index());
  if (event.fault != errc::ok) add("fault", concat("\"", to_string(event.fault), "\""));
  return text + "}";
}

/// Appends the JSON of an event. `number` tells messages of a rank apart.
PEERBUS_INLINE void append_event(std::string& out, const rank_trace& trace, std::size_t thread,
                                 std::uint64_t number, const operation_event& event) {
  const std::int64_t begun = trace.begin.of_rank_0(event.begun, trace.end);
  const std::int64_t ended = begun + (event.ended - event.begun);
  const bool is_message = event.kind == event_kind::send || event.kind == event_kind::recv;
  const std::string common =
      concat("{\"name\":\"", title_of(event), "\",\"cat\":\"", category_of(event),
             "\",\"pid\":", trace.rank.index(), ",\"tid\":", thread, ",");
  char id[48];
  std::snprintf(id, sizeof id, "\"id2\":{\"local\":\"0x%llx\"},",
                static_cast<unsigned long long>(number));
  const std::string arguments = arguments_of(event);
  if (!is_message) {
    out += concat(common, "\"ph\":\"X\",\"ts\":", as_microseconds(begun),
                  ",\"dur\":", as_microseconds(ended - begun), ",\"args\":", arguments, "},\n");
    return;
  }
  out += concat(common, id, "\"ph\":\"b\",\"ts\":", as_microseconds(begun), ",\"args\":", arguments,
                "},\n");
  out += concat(common, id, "\"ph\":\"e\",\"ts\":", as_microseconds(ended), "},\n");
}

/// Returns the name of a thread: that of the highest lane whose events it has.
PEERBUS_INLINE std::string name_of_thread(const std::vector<operation_event>& events) {
  std::size_t lane = 0;
  for (const operation_event& event : events) lane = std::max(lane, event.lane);
  return concat("lane ", lane);
}

/// Returns a metadata event, whose argument is JSON.
PEERBUS_INLINE std::string metadata(std::string_view name, rank_id rank, std::size_t thread,
                                    std::string_view argument, std::string_view value) {
  return concat("{\"ph\":\"M\",\"name\":\"", name, "\",\"pid\":", rank.index(), ",\"tid\":", thread,
                ",\"args\":{\"", argument, "\":", value, "}},\n");
}

}  // namespace detail

PEERBUS_INLINE std::string chrome_events(const rank_trace& trace, std::size_t most_bytes) {
  std::string names;
  std::vector<std::tuple<std::int64_t, std::uint64_t, std::string>> events;  // begun, number, text
  std::uint64_t number = 0;
  for (std::size_t thread = 0; thread < trace.threads.size(); ++thread) {
    std::vector<operation_event> own = trace.threads[thread];
    detail::sum_up(own);
    names += detail::metadata("thread_name", trace.rank, thread, "name",
                              detail::concat("\"", detail::name_of_thread(own), "\""));
    names += detail::metadata("thread_sort_index", trace.rank, thread, "sort_index",
                              std::to_string(thread));
    events.reserve(events.size() + own.size());
    for (const operation_event& event : own) {
      std::string text;
      detail::append_event(text, trace, thread, number, event);
      events.emplace_back(event.begun, number++, std::move(text));
    }
  }
  std::size_t bytes = 0;
  for (const auto& [begun, place, text] : events) bytes += text.size();
  std::sort(events.begin(), events.end());
  std::size_t first = 0;
  const std::size_t limit = most_bytes - std::min(most_bytes, names.size() + 1024);
  for (; bytes > limit && first < events.size(); ++first)
    bytes -= std::get<std::string>(events[first]).size();

  std::string title = detail::concat("rank ", trace.rank.index());
  if (!trace.name.empty()) title += detail::concat(" (", trace.name, ")");
  std::string quoted = "\"";
  detail::append_json(quoted, title);
  quoted += "\"";
  std::string out = detail::metadata("process_name", trace.rank, 0, "name", quoted);
  out += detail::metadata("process_sort_index", trace.rank, 0, "sort_index",
                          std::to_string(trace.rank.index()));
  out += detail::metadata(
      "process_labels", trace.rank, 0, "labels",
      detail::concat("\"lost events: ", trace.lost + first,
                     "; clock offset: ", detail::as_microseconds(trace.end.nanoseconds), " us +- ",
                     detail::as_microseconds(std::max(trace.begin.error, trace.end.error)),
                     " us\""));
  out += names;
  for (std::size_t i = first; i < events.size(); ++i) out += std::get<std::string>(events[i]);
  out.resize(out.size() - 2);  // The last comma.
  return out;
}

PEERBUS_INLINE std::string chrome_file(std::span<const std::string> ranks) {
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != 0) out += ",\n";
    out += ranks[rank];
  }
  return out + "\n]}\n";
}

}  // namespace peerbus
