// SPDX-License-Identifier: MIT
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/pending_messages.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

#include "objects.hpp"
#include "operand.hpp"

namespace peerbus::c_library {

/// Channels with the flag that their handles share.
struct shared_channels {
  shared_channels(communicator<bus>& comm, const collective::channel_options& options,
                  deadline until)
      : pairs{comm, options, until} {}
  collective::channels pairs;
  std::atomic_flag in_call;
};

}  // namespace peerbus::c_library

struct peerbus_channels final : peerbus::c_library::object {
  peerbus_channels(std::shared_ptr<peerbus::c_library::group> of,
                   const peerbus::collective::channel_options& options, peerbus::deadline until)
      : object{std::move(of)},
        kept{std::make_shared<peerbus::c_library::shared_channels>(members->comm, options, until)} {
    in_call = &kept->in_call;
  }
  /// Makes a handle of the same channels for first halves of operations.
  static std::unique_ptr<peerbus_channels> for_halves(const peerbus_channels& of) {
    auto made = std::make_unique<peerbus_channels>(of.members, of.kept);
    made->does_halves = true;
    return made;
  }
  /// Makes a handle of `channels`.
  peerbus_channels(std::shared_ptr<peerbus::c_library::group> of,
                   std::shared_ptr<peerbus::c_library::shared_channels> channels)
      : object{std::move(of)}, kept{std::move(channels)} {
    in_call = &kept->in_call;
  }

  std::shared_ptr<peerbus::c_library::shared_channels> kept;
  // Those of a call. Kept, so that no batch allocates if an earlier one was as long.
  std::vector<peerbus::collective::transfer> messages;
  bool does_halves = false;                    ///< whether operations do their first half only
  peerbus::collective::pending_messages half;  ///< given up before the channels end
};

namespace peerbus::c_library {

namespace {

/// Returns a message of a batch. `place` is its place there, for errors.
/// Throws: `error` invalid_argument for a message that C++ cannot express.
collective::transfer message_of(const peerbus_transfer& given, std::size_t place) {
  const auto refuse = [place](std::string_view objection) {
    throw error{errc::invalid_argument,
                concat("batch_send_recv was given message ", place, " with ", objection)};
  };
  if (given.sends > 1) refuse(concat("sends ", given.sends, ", expected 0 or 1"));
  const auto element = element_of(given.dtype);
  if (element.bytes == 0) refuse(wrong_dtype(given.dtype));
  const std::optional<std::size_t> bytes = bytes_of(given.count, 1, element.bytes);
  if (!bytes) refuse("more elements than memory can have");
  if (given.sends == 1)
    return {rank_of(given.peer),
            element,
            {static_cast<const std::byte*>(given.input), *bytes},
            {},
            true};
  return {rank_of(given.peer), element, {}, {static_cast<std::byte*>(given.output), *bytes}, false};
}

/// Moves messages, or does their first half.
void move_messages(peerbus_channels* channels, std::span<const peerbus_transfer> given,
                   std::int64_t timeout_ns) {
  peerbus_channels& on = usable(channels, "channels object");
  collective::channels& pairs = on.kept->pairs;
  // Messages between their halves must stay, and the call is refused before these are looked at.
  if (on.half.has_operation())
    return collective::batch_send_recv(pairs, std::span<const collective::transfer>{});
  on.messages.clear();
  on.messages.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) on.messages.push_back(message_of(given[i], i));
  const collective::call_options options{.until = deadline_of(timeout_ns)};
  if (on.does_halves)
    on.half = collective::start_batch_send_recv(pairs, on.messages, options);
  else
    collective::batch_send_recv(pairs, on.messages, options);
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_channels_create(peerbus_comm* comm, const peerbus_channel_options* options,
                                     int64_t timeout_ns, peerbus_channels** channels) {
  return guarded([&] {
    require_result(channels, "channels");
    const auto& members = usable(comm, "communicator").members;
    members->comm.require_healthy("channels_create");  // As `peerbus_team_create`.
    const auto given = read_options(options, "options");
    peerbus::collective::channel_options wanted;
    if (given.scratch_bytes != 0) wanted.scratch_bytes = given.scratch_bytes;
    *channels =
        std::make_unique<peerbus_channels>(members, wanted, deadline_of(members->comm, timeout_ns))
            .release();
  });
}

peerbus_code peerbus_channels_resume(peerbus_channels* channels, int64_t timeout_ns) {
  return guarded(
      [&] { usable(channels, "channels object").kept->pairs.resume(deadline_of(timeout_ns)); });
}

void peerbus_channels_destroy(peerbus_channels** channels) { destroy(channels); }

peerbus_code peerbus_send(peerbus_channels* channels, const void* input, uint64_t count,
                          peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns) {
  return guarded([&] {
    const peerbus_transfer message{1, dtype, peer, count, input, nullptr};
    move_messages(channels, {&message, 1}, timeout_ns);
  });
}

peerbus_code peerbus_recv(peerbus_channels* channels, void* output, uint64_t count,
                          peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns) {
  return guarded([&] {
    const peerbus_transfer message{0, dtype, peer, count, nullptr, output};
    move_messages(channels, {&message, 1}, timeout_ns);
  });
}

peerbus_code peerbus_batch_send_recv(peerbus_channels* channels, const peerbus_transfer* messages,
                                     uint64_t count, int64_t timeout_ns) {
  return guarded([&] {
    require(messages != nullptr || count == 0, "messages are NULL");
    require(bytes_of(count, 1, sizeof *messages).has_value(),
            "messages are more than memory can have");
    move_messages(channels, {messages, count}, timeout_ns);
  });
}

peerbus_code peerbus_channels_in_halves(peerbus_channels* channels, peerbus_channels** in_halves) {
  return guarded([&] {
    require_result(in_halves, "in_halves");
    *in_halves = peerbus_channels::for_halves(shared(channels, "channels object")).release();
  });
}

peerbus_code peerbus_channels_finish(peerbus_channels* channels, int64_t timeout_ns) {
  return guarded([&] { usable(channels, "channels object").half.finish(deadline_of(timeout_ns)); });
}
