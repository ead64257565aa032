// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

#include "objects.hpp"
#include "operand.hpp"

struct peerbus_channels final : peerbus::c_library::object {
  peerbus_channels(std::shared_ptr<peerbus::c_library::group> of,
                   const peerbus::collective::channel_options& options, peerbus::deadline until)
      : object{std::move(of)}, pairs{members->comm, options, until} {}
  peerbus::collective::channels pairs;
  // Those of a batch. Kept, so that no batch allocates if an earlier one was as long.
  std::vector<peerbus::collective::transfer> messages;
};

namespace peerbus::c_library {

namespace {

/// Returns a message of a batch. `place` is its place there, for errors.
/// Throws: `error` invalid_argument for a message that C++ cannot express.
collective::transfer message_of(const peerbus_transfer& given, std::size_t place) {
  const auto refuse = [place](std::string_view objection) {
    throw error{errc::invalid_argument,
                detail::concat("batch_send_recv was given message ", place, " with ", objection)};
  };
  if (given.sends > 1) refuse(detail::concat("sends ", given.sends, ", expected 0 or 1"));
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

/// Moves one message.
void move_message(peerbus_channels* channels, const peerbus_transfer& given,
                  std::int64_t timeout_ns) {
  auto& pairs = usable(channels, "channels object").pairs;
  collective::batch_send_recv(pairs, {message_of(given, 0)}, {deadline_of(timeout_ns)});
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_channels_create(peerbus_comm* comm, const peerbus_channel_options* options,
                                     int64_t timeout_ns, peerbus_channels** channels) {
  return guarded([&] {
    require_result(channels, "channels");
    const auto& members = usable(comm, "communicator").members;
    const auto given = read_options(options, "options");
    peerbus::collective::channel_options wanted;
    if (given.scratch_bytes != 0) wanted.scratch_bytes = given.scratch_bytes;
    *channels =
        std::make_unique<peerbus_channels>(members, wanted, deadline_of(members->comm, timeout_ns))
            .release();
  });
}

void peerbus_channels_destroy(peerbus_channels** channels) { destroy(channels); }

peerbus_code peerbus_send(peerbus_channels* channels, const void* input, uint64_t count,
                          peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns) {
  return guarded(
      [&] { move_message(channels, {1, dtype, peer, count, input, nullptr}, timeout_ns); });
}

peerbus_code peerbus_recv(peerbus_channels* channels, void* output, uint64_t count,
                          peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns) {
  return guarded(
      [&] { move_message(channels, {0, dtype, peer, count, nullptr, output}, timeout_ns); });
}

peerbus_code peerbus_batch_send_recv(peerbus_channels* channels, const peerbus_transfer* messages,
                                     uint64_t count, int64_t timeout_ns) {
  return guarded([&] {
    peerbus_channels& on = usable(channels, "channels object");
    require(messages != nullptr || count == 0, "messages are NULL");
    require(bytes_of(count, 1, sizeof *messages).has_value(),
            "messages are more than memory can have");
    on.messages.clear();
    on.messages.reserve(count);
    for (std::size_t i = 0; i < count; ++i) on.messages.push_back(message_of(messages[i], i));
    peerbus::collective::batch_send_recv(on.pairs, on.messages, {deadline_of(timeout_ns)});
  });
}
