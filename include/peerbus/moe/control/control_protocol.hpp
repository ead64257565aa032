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

/// Whether the rows of a batch may leave.
enum class departure : std::uint8_t {
  later,    ///< messages of other ranks are missing
  refused,  ///< a rank has refused the dispatch
  placed    ///< every row has its place, and may be written there
};

/// The messages by which all ranks agree on a dispatch. Layouts have one of two protocols:
/// `counts_first` and `one_phase`. Its functions are called in the order in which they stand here,
/// by one lane. If the batch has `peer_checks`, they refuse the dispatch if a peer has written a
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

  /// Takes the memory of the batch that had the set before, unless a rank has an `objection`, which
  /// it then returns on all ranks. An objection that needs no memory to be taken is not told.
  [[nodiscard]] std::optional<refusal_of> take_memory(control_messages& messages, batch& before,
                                                      const step& this_step,
                                                      const refusal& objection,
                                                      deadline until) const;
  /// Gives up the rows of the batch that had the set before, or tells an `objection` to that,
  /// without waiting for other ranks. Returns the step that all ranks announce then; none if
  /// nothing has to be told.
  virtual std::optional<step> give_up(control_messages& messages, batch& before,
                                      const step& this_step, const refusal& objection) const = 0;
  /// Sends the counts of the batch and `note`, or `found`.
  virtual void post(control_messages& messages, const batch& posted, const step& this_step,
                    std::span<const std::byte> note, const refusal& found) const = 0;
  /// Places the rows of the batch once that is possible, for which it waits if `wait` is true.
  virtual departure place(control_messages& messages, batch& counted, const step& this_step,
                          bool wait, deadline until, std::span<std::int64_t> waited) const = 0;
  /// Computes what arrives as far as it is known, after the rows have left, so that it overlaps
  /// their transfer.
  virtual void after_send(const control_messages& messages, batch& sent,
                          const step& this_step) const = 0;
  /// Waits for the rows of all ranks.
  virtual void receive(control_messages& messages, batch& sent, const step& rows_step,
                       deadline until, std::span<std::int64_t> waited) const = 0;
  /// Ends a refused dispatch.
  virtual errc abandon(batch& refused, any_row_path& path) const noexcept = 0;

 protected:
  explicit constexpr control_protocol(phase decides) noexcept : decides_{decides} {}
  ~control_protocol() = default;

 private:
  phase decides_;
};

/// The protocol where rows lie together. All ranks send each other the numbers of their rows, or
/// their refusals, and rows leave when those of all ranks have come. A rank that has sent its
/// counts has given up the rows that the memory of the batch held before.
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

/// The protocol where rows lie in slots. Rows leave at once, and one signal follows them, the
/// counts and the note. A rank that refuses sends its refusal instead of rows, and the rows of
/// other ranks are then never read. A rank gives up the rows of a batch by `combine_send`, whose
/// signal all ranks have seen when they have combined the batch. If a batch was not combined, the
/// next dispatch that uses its set gives up its rows with the same signal, and waits for that of
/// all ranks.
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
