// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/run_request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/window.hpp>

#include "objects.hpp"
#include "operand.hpp"

/// A team that several handles share, of which one at a time is in a call.
struct shared_team {
  shared_team(peerbus::communicator<peerbus::c_library::bus>& comm,
              const peerbus::collective::team_options& options, peerbus::deadline until)
      : ranks{comm, options, until} {}
  peerbus::collective::team ranks;
  std::atomic_flag in_call;
};

struct peerbus_team final : peerbus::c_library::object {
  peerbus_team(std::shared_ptr<peerbus::c_library::group> of,
               const peerbus::collective::team_options& options, peerbus::deadline until)
      : object{std::move(of)},
        kept{std::make_shared<shared_team>(members->comm, options, until)},
        ranks{kept->ranks} {
    in_call = &kept->in_call;
  }
  /// Makes a handle of the same team whose operations take their input in `memory`.
  peerbus_team(const peerbus_team& of,
               std::shared_ptr<peerbus::window<peerbus::c_library::bus>> memory)
      : object{of.members},
        kept{of.kept},
        ranks{kept->ranks},
        inputs_in{std::move(memory)},
        does_halves{of.does_halves} {
    in_call = &kept->in_call;
  }
  /// Makes a handle of the same team, and of the same window, for first halves of operations.
  static std::unique_ptr<peerbus_team> for_halves(const peerbus_team& of) {
    auto made = std::make_unique<peerbus_team>(of, of.inputs_in);
    made->does_halves = true;
    return made;
  }

  std::shared_ptr<shared_team> kept;
  peerbus::collective::team& ranks;
  /// The window in which inputs lie. nullptr: they lie anywhere.
  std::shared_ptr<peerbus::window<peerbus::c_library::bus>> inputs_in;
  bool does_halves = false;           ///< whether operations do their first half only
  peerbus::collective::pending half;  ///< given up before the team ends
};

namespace peerbus::c_library {

/// One collective operation that a rank has called. Arguments that cannot be read make the
/// operation fail on all ranks, so that none waits for this one.
class collective_request {
 public:
  /// Throws: `error` invalid_argument, on this rank only, for a team that cannot be used; as
  /// `refuse` for a type that does not exist.
  collective_request(peerbus_team* on, std::string_view operation, peerbus_dtype dtype,
                     std::int64_t timeout_ns)
      : ranks_{usable(on, "team").ranks},
        window_{on->inputs_in.get()},
        half_{on->does_halves ? &on->half : nullptr},
        operation_{operation},
        dtype_{dtype},
        options_{deadline_of(timeout_ns)} {
    asked_.element = element_of(dtype);
    place_input();
    if (dtype == PEERBUS_DTYPE_REFUSED) refuse("operands that its caller had found wrong");
    if (asked_.element.bytes == 0) refuse(wrong_dtype(dtype));
  }

  /// Takes `rows` x `count` elements as the input.
  void input(const void* memory, std::uint64_t count, std::uint64_t rows = 1) {
    asked_.input = {static_cast<const std::byte*>(memory), bytes_or_refuse(count, rows)};
    if (memory != nullptr) place_input();
  }
  /// Takes `count` elements as what is added to a sum. The input of a sum with a residual lies
  /// anywhere.
  void residual(const void* memory, std::uint64_t count) {
    asked_.residual.emplace(static_cast<const std::byte*>(memory), bytes_or_refuse(count, 1));
    asked_.input_in = {};
  }
  /// Takes `rows` x `count` elements as the output.
  void output(void* memory, std::uint64_t count, std::uint64_t rows = 1) {
    asked_.output = {static_cast<std::byte*>(memory), bytes_or_refuse(count, rows)};
  }

  /// Returns the layout of the parts of an operand, and sets `*end` to the elements that the
  /// operand has at least. `name` is that of the array in errors.
  collective::part_layout parts(const std::uint64_t* counts, const std::uint64_t* displacements,
                                std::string_view name, std::uint64_t* end) {
    if (counts == nullptr) refuse(concat(name, " that are NULL"));
    collective::part_layout layout{{counts, size()}};
    if (displacements != nullptr) layout.displacements = {displacements, size()};
    *end = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      const std::uint64_t first = displacements != nullptr ? displacements[i] : *end;
      if (counts[i] > std::numeric_limits<std::uint64_t>::max() - first) refuse_size();
      *end = std::max(*end, first + counts[i]);
    }
    return layout;
  }

  /// Takes the rank that gives or gets all, and the parts of the operation.
  void root(rank_id rank) noexcept { asked_.root = rank; }
  void parts_are(const collective::part_layout& parts,
                 const collective::part_layout& received = {}) noexcept {
    asked_.parts = parts;
    asked_.received_parts = received;
  }
  /// Takes the reduction of the operation's elements.
  void by(peerbus_reduction reduction) {
    if (reduction < PEERBUS_SUM || reduction > PEERBUS_MAXIMUM)
      refuse(concat("a reduction of ", reduction, ", expected 0 to 3"));
    if (!collective::can_reduce(asked_.element))
      refuse(concat("elements to reduce of type ", name_of(dtype_),
                    ", expected f32, f64, bf16, i32, i64 or u8"));
    using enum collective::reduction_kind;
    constexpr std::array kinds{sum, product, minimum, maximum};
    asked_.reduction = kinds[static_cast<std::size_t>(reduction)];
  }

  /// Does an operation, or its first half.
  void carry_out(collective::operation_kind what) {
    asked_.what = what;
    if (half_ == nullptr)
      collective::run(ranks_, asked_, options_);
    else
      *half_ = collective::start(ranks_, asked_, options_);
  }
  /// Keeps the first half that `start()` does, or calls `whole()`.
  template <class Start, class Whole>
  void carry_out(Start&& start, Whole&& whole) const {
    if (half_ == nullptr)
      whole();
    else
      *half_ = start();
  }

  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// Returns the team of the call.
  [[nodiscard]] collective::team& team() const noexcept { return ranks_; }
  /// Returns the options of the call.
  [[nodiscard]] const collective::call_options& options() const noexcept { return options_; }

  /// Ends the call on all ranks. `objection` says what is wrong with the arguments.
  /// Throws: `error` invalid_argument, or what ended the wait for the others.
  [[noreturn]] void refuse(const std::string& objection) const {
    collective::refuse(ranks_, operation_, asked_.element, objection, options_);
  }
  /// Ends the call on all ranks, because an operand is too large.
  /// Throws: as `refuse`.
  [[noreturn]] void refuse_size() const {
    refuse("operands of more elements than memory can have");
  }

 private:
  [[nodiscard]] std::size_t bytes_or_refuse(std::uint64_t count, std::uint64_t rows) const {
    const std::optional<std::size_t> bytes = bytes_of(count, rows, asked_.element.bytes);
    if (!bytes) refuse_size();
    return *bytes;
  }

  /// Notes where the input lies in the window of the team's handle, if that has one.
  void place_input() noexcept {
    if (window_ != nullptr) asked_.input_in = collective::in_window(*window_, asked_.input).place();
  }

  collective::team& ranks_;
  const window<bus>* window_;
  collective::pending*
      half_;  // Where the first half is kept; nullptr: the operation is done whole.
  std::string_view operation_;
  peerbus_dtype dtype_;
  collective::call_options options_;
  collective::request asked_;
};

}  // namespace peerbus::c_library
