// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/set_view.hpp>

#include "objects.hpp"
#include "places.hpp"

namespace peerbus::c_library {

/// The calls of an exchange, for any codec and layout. What is the same for all of them is here.
class erased_exchange {
 public:
  erased_exchange(const erased_exchange&) = delete;
  erased_exchange& operator=(const erased_exchange&) = delete;
  virtual ~erased_exchange() = default;

  ///@{
  /// Does what the function of C's interface with that name says.
  /// Throws: `error`.
  virtual peerbus_received dispatch(const peerbus_dispatch_args& args) = 0;
  virtual std::uint64_t dispatch_send(const peerbus_dispatch_args& args) = 0;
  virtual peerbus_received dispatch_recv(std::uint64_t ticket, std::int64_t* waited,
                                         std::optional<deadline> until) = 0;
  virtual void combine(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual void combine_send(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual void combine_recv(std::uint64_t ticket, const peerbus_combine_args& args) = 0;
  virtual bool awaits_combine(std::uint64_t ticket) = 0;
  virtual moe::completed_batches resume(const moe::resume_options& options) = 0;
  virtual void install_experts(std::span<const std::uint32_t> physical_to_logical,
                               const peerbus_replica_choice* replicas,
                               std::optional<deadline> until) = 0;
  virtual bool count_rows(std::uint64_t ticket, std::span<std::uint32_t> rows) = 0;
  virtual void decode(std::uint64_t ticket, std::uint64_t row, float* values) = 0;
  virtual std::span<const std::byte> note(std::uint64_t ticket, rank_id source) = 0;
  virtual const void* returned_attachment(std::uint64_t ticket, std::size_t token, std::size_t copy,
                                          rank_id rank) = 0;
  void* output(std::uint64_t ticket, std::uint64_t row);
  void* output_attachment(std::uint64_t ticket, std::uint64_t row);
  ///@}
  /// Returns the bytes of the window at each rank.
  [[nodiscard]] std::size_t bytes() const noexcept { return map().total; }
  /// Returns which expert is at which place.
  [[nodiscard]] virtual const moe::expert_map& experts() const noexcept = 0;

 protected:
  /// `in_flight` is limited here because the exchange, which refuses more on all ranks, is made
  /// afterwards.
  explicit erased_exchange(const communicator<bus>& comm, std::size_t in_flight)
      : rank_{comm.rank()},
        ranks_{comm.size()},
        places_{std::vector<row_places>(std::min(in_flight, moe::max_in_flight))} {}

  [[nodiscard]] virtual const moe::memory_map& map() const noexcept = 0;
  [[nodiscard]] virtual window<bus>& memory() noexcept = 0;
  /// Returns the number of sources of rows: the ranks, or with relay those that hand on.
  [[nodiscard]] virtual std::size_t sources() const noexcept = 0;
  /// Returns the first row of a batch at this rank. Throws: `error` invalid_argument unless it is
  /// one of the latest `in_flight` dispatches.
  [[nodiscard]] virtual std::byte* first_row(std::uint64_t ticket) = 0;

  /// Returns the places of the rows of a batch that was received here. Throws: `error`
  /// invalid_argument if there is none of that number.
  row_places& received_places(std::uint64_t ticket, std::string_view call);
  /// Returns the memory of the batch at this rank.
  [[nodiscard]] moe::set_view set_of(std::uint64_t ticket);
  /// Requires that the batch has a row of that number. Throws: `error` invalid_argument if it has
  /// not.
  void require_row(std::uint64_t ticket, std::uint64_t row);
  /// Returns the places that dispatch `ticket` is to note, without rows. `blocks` is the number of
  /// blocks of this rank.
  row_places& new_places(std::uint64_t ticket, std::size_t blocks);
  /// Returns the rows of the batch in C's form, with what is the same for all layouts.
  [[nodiscard]] peerbus_received describe(std::uint64_t ticket);

  [[nodiscard]] std::span<std::int64_t> per_rank(std::int64_t* values) const noexcept {
    return {values, values == nullptr ? 0 : ranks_};
  }
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }

 private:
  /// Returns the memory of the batch at the rank of `home`, empty if loads and stores do not reach
  /// it.
  [[nodiscard]] moe::set_view home_of(std::uint64_t ticket, const moe::wire_origin& home);
  [[nodiscard]] moe::set_view set_in(std::uint64_t ticket, std::byte* part);

  rank_id rank_;
  std::size_t ranks_;
  moe::per_batch<row_places> places_;
};

/// The arguments for which an exchange is made.
struct exchange_request {
  communicator<bus>& comm;
  moe::exchange_config config;
  std::int32_t layout;
  std::size_t alignment;
  bool zero_gaps;
  deadline until;
  const stderr_log& log;
};

/// Collective: makes an exchange with one codec and the layout of `request`. Throws: `error`, also
/// if the layout does not exist.
using make_exchange_function =
    std::unique_ptr<erased_exchange> (*)(const exchange_request& request);

// One for each codec, each in a source of its own, because the exchanges of a codec take seconds to
// compile.
extern const make_exchange_function make_bf16;
extern const make_exchange_function make_int8_per_token;
extern const make_exchange_function make_fp8_f32;
extern const make_exchange_function make_fp8_rounded;
extern const make_exchange_function make_fp8_ue8m0;
extern const make_exchange_function make_fp8_as_given;
extern const make_exchange_function make_nothing;

}  // namespace peerbus::c_library

struct peerbus_exchange final : peerbus::c_library::object {
  peerbus_exchange(std::shared_ptr<peerbus::c_library::group> of,
                   std::unique_ptr<peerbus::c_library::erased_exchange> made)
      : object{std::move(of)}, calls{std::move(made)} {}
  std::unique_ptr<peerbus::c_library::erased_exchange> calls;
};
