// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::collective::detail {

/// A call with the function that carries it out, for calls made whole or in halves.
///
/// The function is called once, or once for each half: the halves of `call_rounds::in_slices` then
/// divide the work. It takes the operands and the work on elements with which the operation was
/// made, and keeps nothing between the halves.
class [[nodiscard]] operation {
 public:
  /// A function that carries out a call by one `in_slices`. `given` may be bad if the call is
  /// refused, so only `give` and `take` may access it.
  using body = void(call_rounds& rounds, const request& given, const reducer& reduce);
  /// The same for a call whose tokens `codec` encodes, `element_work::codec`.
  using coded_body = void(call_rounds& rounds, const request& given, const void* codec);

  /// Begins a call. Contract as the constructor of `call_rounds`.
  operation(team& team, const call_header& header, const request& given,
            const call_options& options, std::string objection, body* carry_out)
      : rounds_{team, header, given, options, std::move(objection)}, carry_out_{carry_out} {}
  /// Begins a call whose tokens a codec encodes.
  operation(team& team, const call_header& header, const call_options& options,
            std::string objection, coded_body* carry_out)
      : rounds_{team, header, {}, options, std::move(objection)}, carry_out_coded_{carry_out} {}

  /// Returns the rounds of the call.
  [[nodiscard]] const call_rounds& rounds() const noexcept { return rounds_; }
  /// Makes the call a part of a trial, as `call_rounds::take_part`.
  void take_part(const way_trials::running& trial) noexcept { rounds_.take_part(trial); }
  /// Replaces the function that carries out the call.
  void carry_out_by(body* carry_out) noexcept { carry_out_ = carry_out; }

  /// Carries out the whole operation.
  /// Throws: as `call_rounds::await`.
  void run(const request& given, const element_work& work) { do_part(nullptr, given, work); }
  /// Does the first half. Waits for no peer.
  /// Throws: `error` unreachable.
  void start(const request& given, const element_work& work) {
    rounds_.pause();
    do_part("start", given, work);
  }
  /// Does the second half.
  /// Throws: as `call_rounds::resume` and `call_rounds::await`.
  void finish(const request& given, const element_work& work,
              const std::optional<deadline>& until) {
    rounds_.resume(until);
    do_part("finish", given, work);
  }
  /// Discards the operation between the halves, as `call_rounds::abandon`.
  void abandon() noexcept { rounds_.abandon(); }

 private:
  /// Does the whole operation if `name` is null, otherwise the half with this name.
  void do_part(const char* name, const request& given, const element_work& work) {
    rounds_.report(name, given, [&] {
      if (carry_out_coded_ != nullptr)
        carry_out_coded_(rounds_, given, work.codec);
      else
        carry_out_(rounds_, given, work.reduce);
    });
  }

  call_rounds rounds_;
  body* carry_out_ = nullptr;
  coded_body* carry_out_coded_ = nullptr;
};

}  // namespace peerbus::collective::detail
