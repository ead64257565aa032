// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/path/any_row_path.hpp>
#include <peerbus/moe/plan/refusal.hpp>

namespace peerbus::moe::detail {

/// The progress of a batch whose rows wait to leave.
enum class departure : std::uint8_t {
  later,    ///< messages of other ranks are missing
  refused,  ///< a rank has refused the dispatch
  placed    ///< every row has its place, and may be written there
};

/// The messages by which all ranks agree on a dispatch. Layouts have one of two protocols:
/// `counts_first` and `one_phase`. One lane calls the functions, in the order in which they are
/// declared here. If the batch has `peer_checks`, they refuse the dispatch if a peer has written a
/// wrong number.
class control_protocol {
 public:
  using step = control_messages::step;
  using phase = control_messages::phase;

  /// Returns the protocol of layouts with `geometry`.
  [[nodiscard]] static const control_protocol& of(const block_geometry& geometry) noexcept;

  control_protocol(const control_protocol&) = delete;
  control_protocol& operator=(const control_protocol&) = delete;

  /// Returns the phase whose signals follow the counts, notes and refusals.
  [[nodiscard]] phase decides() const noexcept { return decides_; }

  /// Takes the memory of `before`, the batch that had the set. If `give_up` returns a step, waits
  /// until all ranks have announced it. If a rank then has an `objection`, `before` keeps its
  /// memory, and all ranks return the objection. If `give_up` returns nothing, `objection` is
  /// ignored.
  [[nodiscard]] std::optional<refusal_of> take_memory(control_messages& messages, batch& before,
                                                      const step& this_step,
                                                      const refusal& objection,
                                                      deadline until) const;
  /// Gives up the rows of `before`, the batch that had the set, or tells an `objection` to that,
  /// without waiting for other ranks. Returns the step that all ranks then announce, or nothing if
  /// there is nothing to tell.
  virtual std::optional<step> give_up(control_messages& messages, batch& before,
                                      const step& this_step, const refusal& objection) const = 0;
  /// Sends the counts of the batch and `note`, or the refusal `found`.
  virtual void post(control_messages& messages, const batch& posted, const step& this_step,
                    std::span<const std::byte> note, const refusal& found) const = 0;
  /// Places the rows of the batch, if that is possible. If `wait` is true, waits until it is.
  virtual departure place(control_messages& messages, batch& counted, const step& this_step,
                          bool wait, deadline until, std::span<std::int64_t> waited) const = 0;
  /// Computes the places of arriving rows if the counts are known. It is called after the rows have
  /// left, so that it overlaps their transfer.
  virtual void after_send(const control_messages& messages, batch& sent,
                          const step& this_step) const = 0;
  /// Waits for the rows of all ranks. Afterwards their places are known, or `sent.refused` is set.
  virtual void receive(control_messages& messages, batch& sent, const step& rows_step,
                       deadline until, std::span<std::int64_t> waited) const = 0;
  /// Ends a refused dispatch, and returns the set to its previous batch.
  virtual errc abandon(batch& refused, any_row_path& path) const noexcept = 0;

 protected:
  explicit constexpr control_protocol(phase decides) noexcept : decides_{decides} {}
  ~control_protocol() = default;

 private:
  phase decides_;
};

/// The protocol of layouts in which rows lie together. All ranks send each other the numbers of
/// their rows, or their refusals, and rows leave when the messages of all ranks have come. A rank
/// that has sent its counts has given up the rows that the memory of the batch held before.
class counts_first final : public control_protocol {
 public:
  constexpr counts_first() noexcept : control_protocol{phase::counts} {}

  PEERBUS_INLINE std::optional<step> give_up(control_messages& messages, batch& before,
                                             const step& this_step,
                                             const refusal& objection) const override;
  PEERBUS_INLINE void post(control_messages& messages, const batch& posted, const step& this_step,
                           std::span<const std::byte> note, const refusal& found) const override;
  PEERBUS_INLINE departure place(control_messages& messages, batch& counted, const step& this_step,
                                 bool wait, deadline until,
                                 std::span<std::int64_t> waited) const override;
  PEERBUS_INLINE void after_send(const control_messages& messages, batch& sent,
                                 const step& this_step) const override;
  PEERBUS_INLINE void receive(control_messages& messages, batch& sent, const step& rows_step,
                              deadline until, std::span<std::int64_t> waited) const override;
  PEERBUS_INLINE errc abandon(batch& refused, any_row_path& path) const noexcept override;
};

/// The protocol of layouts in which rows lie in slots. Rows leave at once, and one signal follows
/// the rows, the counts and the note. A rank that refuses sends its refusal instead of rows, and
/// the rows of other ranks are then never read. A rank gives up the rows of a batch by
/// `combine_send`, whose signal all ranks have seen when they have combined the batch. If a batch
/// was not combined, the next dispatch that uses its set gives up its rows with the same signal,
/// and waits for that of all ranks.
class one_phase final : public control_protocol {
 public:
  constexpr one_phase() noexcept : control_protocol{phase::rows} {}

  PEERBUS_INLINE std::optional<step> give_up(control_messages& messages, batch& before,
                                             const step& this_step,
                                             const refusal& objection) const override;
  PEERBUS_INLINE void post(control_messages& messages, const batch& posted, const step& this_step,
                           std::span<const std::byte> note, const refusal& found) const override;
  PEERBUS_INLINE departure place(control_messages& messages, batch& counted, const step& this_step,
                                 bool wait, deadline until,
                                 std::span<std::int64_t> waited) const override;
  PEERBUS_INLINE void after_send(const control_messages& messages, batch& sent,
                                 const step& this_step) const override;
  PEERBUS_INLINE void receive(control_messages& messages, batch& sent, const step& rows_step,
                              deadline until, std::span<std::int64_t> waited) const override;
  PEERBUS_INLINE errc abandon(batch& refused, any_row_path& path) const noexcept override;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/control_protocol.ipp>  // IWYU pragma: keep
#endif
