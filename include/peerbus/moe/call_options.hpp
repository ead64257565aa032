// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// The tensors that travel with the tokens, in the order of `exchange_config::attachments`: each
/// [count, configured bytes], and empty where none is configured.
using attachments = std::array<std::span<const std::byte>, max_attachments>;

// Options of the calls of an exchange. Members of equal name have one meaning in all of them:
//
// - `until` is the deadline. Without it, the call has the communicator's default timeout from its
//   start.
// - `as` is the lane that calls.
// - `refuse` makes the operation fail on all ranks, because the caller itself has found an error in
//   its input.
// - `attached` states that the output attachments of the rows are filled and go home with the
//   outputs. Each rank chooses for itself. `exchange::attached_by` reports the choice to the
//   others.
// - `waited` is [ranks], or empty. The call adds to each entry the nanoseconds that it waited for
//   that rank since it began to wait. If the wait fails, a rank that is still missing has the time
//   until then. This finds slow ranks. A call that measures polls more often and sleeps less. A
//   long wait may be measured too long by a sixteenth.

/// Options of `dispatch` and `dispatch_send`. `dispatch_send` uses `until` and `waited` only if its
/// own input is bad, because it waits for other ranks only then.
///
/// `bound` is the most tokens that a rank may give to this dispatch. The blocks of a `padded`
/// layout then have ranks x bound rows, so that calls of different bounds use the same memory. All
/// ranks give the same bound.
///
/// `note` has `exchange_config::note_bytes` bytes or none. `exchange::note` returns it at every
/// rank. `dispatch_send` reads it before it returns. It travels in the message of counts, so that
/// it costs only its bytes. With slots, it costs every peer the message of counts and a message for
/// the note.
struct dispatch_options {
  std::optional<deadline> until{};    ///< empty: the communicator's default timeout
  lane as{};                          ///< the lane that calls
  moe::attachments attachments{};     ///< one array for each configured attachment
  bool refuse = false;                ///< true: fails on all ranks
  std::span<std::int64_t> waited{};   ///< [ranks] nanoseconds, added to; or empty
  std::span<const std::byte> note{};  ///< the note for all ranks, or empty
  std::size_t bound = 0;              ///< no more than max_tokens; 0: max_tokens
};

/// The treatment of a slot of the routing whose expert was at a rank that is gone.
enum class lost_experts : std::uint8_t {
  dropped,       ///< it is left out, with its weight, as if it were -1
  renormalised,  ///< it is left out, and the other weights of the dispatch grow to the same sum
  refused        ///< the dispatch or the combine is refused, on all ranks
};

/// Options of `resume`. Each rank chooses for its own tokens.
struct resume_options {
  std::optional<deadline> until{};            ///< empty: the communicator's default timeout
  lost_experts lost = lost_experts::dropped;  ///< the treatment of slots of lost experts
};

/// The numbers of batches that all ranks of a view have received and combined since an exchange was
/// made, as `resume` returns them. Equal on all ranks.
struct completed_batches {
  std::uint64_t received = 0;  ///< batches that all have received
  std::uint64_t combined = 0;  ///< batches that all have combined
};

/// Options of `dispatch_recv`.
struct receive_options {
  std::optional<deadline> until{};   ///< empty: the communicator's default timeout
  lane as{};                         ///< the lane that calls
  std::span<std::int64_t> waited{};  ///< [ranks] nanoseconds, added to; or empty
};

/// Options of `combine`.
struct combine_options {
  std::optional<deadline> until{};   ///< empty: the communicator's default timeout
  lane as{};                         ///< the lane that calls
  combine_terms terms{};             ///< other weights, biases, local rows
  bool refuse = false;               ///< true: fails on all ranks
  bool attached = false;             ///< true: output attachments go home
  std::span<std::int64_t> waited{};  ///< [ranks] nanoseconds, added to; or empty
};

/// Options of `combine_send`.
struct publish_options {
  std::optional<deadline> until{};  ///< empty: the communicator's default timeout
  lane as{};                        ///< the lane that calls
  bool refuse = false;              ///< true: fails on all ranks
  bool attached = false;            ///< true: output attachments go home
};

/// Options of `combine_recv`.
struct sum_options {
  std::optional<deadline> until{};   ///< empty: the communicator's default timeout
  lane as{};                         ///< the lane that calls
  combine_terms terms{};             ///< other weights, biases, local rows
  std::span<std::int64_t> waited{};  ///< [ranks] nanoseconds, added to; or empty
};

}  // namespace peerbus::moe
