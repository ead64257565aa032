// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>

#include "objects.hpp"
#include "tensors.hpp"

/// The part of a call of any buffer that stays beside its tensors.
struct peerbus_result final : peerbus::c_library::object {
  using variant =
      std::variant<peerbus::deep_ep::dispatch_layout, peerbus::deep_ep::dispatch_result,
                   peerbus::deep_ep::combine_result, peerbus::deep_ep::low_latency_dispatch_result,
                   peerbus::deep_ep::low_latency_combine_result,
                   peerbus::deep_ep::elastic_dispatch_result,
                   peerbus::deep_ep::elastic_combine_result>;
  peerbus_result(std::shared_ptr<peerbus::c_library::group> of, variant made)
      : object{std::move(of)}, value{std::move(made)} {}
  variant value;
  std::shared_ptr<std::atomic_flag> in_call_of_buffer;  ///< null: the result needs no buffer
};

/// The calls of buffers.
namespace peerbus::c_library {

/// The common part of buffers. Completing a result is a call of its buffer, so that both have one
/// flag, which may outlive the buffer.
struct buffer_object : object {
  explicit buffer_object(std::shared_ptr<group> of) : object{std::move(of)} {
    in_call = in_call_of_buffer.get();
  }
  std::shared_ptr<std::atomic_flag> in_call_of_buffer = std::make_shared<std::atomic_flag>();

 protected:
  ~buffer_object() = default;
};

/// Returns what a dispatch of that kind has left. Throws: `error` invalid_argument if it is of
/// another kind.
template <class Dispatch>
const Dispatch& handle_of(const peerbus_result* result, std::string_view name) {
  if (const std::string_view problem = problem_of(result); !problem.empty())
    throw error{errc::invalid_argument, concat(name, " ", problem)};
  const auto* const found = std::get_if<Dispatch>(&result->value);
  if (found == nullptr)
    throw error{errc::invalid_argument,
                concat(name,
                       " is the result of another call, expected that of a dispatch "
                       "of the same mode")};
  return *found;
}

/// The bytes of the first version of a structure, for those that have grown since.
template <class Struct>
inline constexpr std::size_t least_bytes = sizeof(Struct);

/// Makes a call: reads `args` by `read(C's structure)`, requires that `out` can be written, calls
/// `call(calls of the buffer, what was read)`, fills `out` by `describe(result, C's structure)` and
/// keeps the result there. If the arguments cannot be read, calls `refuse(calls, error)`, so that
/// the other ranks do not wait for this one.
template <class Buffer, class Args, class Out, class Read, class Call, class Refuse, class Describe>
peerbus_code call_buffer(Buffer* buffer, const Args* args, Out* out, std::string_view name,
                         Read&& read, Call&& call, Refuse&& refuse, Describe&& describe) {
  return guarded([&] {
    Buffer& used = usable(buffer, "buffer");
    const auto asked = [&] {
      try {
        const Args given = read_struct(args, "args", least_bytes<Args>);
        require_struct(out, name, least_bytes<Out>);
        return read(given);
      } catch (const error& why) {
        refuse(used.calls, why);
        throw;
      }
    }();
    auto result = call(used.calls, asked);
    Out filled{};
    describe(result, filled);
    auto left = std::make_unique<peerbus_result>(used.members, std::move(result));
    left->in_call_of_buffer = used.in_call_of_buffer;
    left->in_call = left->in_call_of_buffer.get();
    filled.result = left.release();
    write_struct(out, filled);
  });
}

/// Describes the result of a combine, of any buffer.
template <class Result>
void describe_combined(const Result& result, peerbus_combined& filled) {
  filled.combined_x = array_of(result.combined_x);
  filled.combined_topk_weights = array_of(result.combined_topk_weights);
}

/// Returns counts in C's form, which has one type of array. Nothing writes through it.
inline peerbus_array array_of_counts(std::span<const std::int32_t> counts) {
  return array_of(
      {const_cast<std::int32_t*>(counts.data()), deep_ep::dtype::int32, {counts.size()}});
}

}  // namespace peerbus::c_library
