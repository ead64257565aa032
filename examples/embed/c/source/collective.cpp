// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_gather_v.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/all_to_all_v.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/reduce.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

#include "objects.hpp"

struct peerbus_team final : peerbus::c_library::object {
  peerbus_team(std::shared_ptr<peerbus::c_library::group> of,
               const peerbus::collective::team_options& options, peerbus::deadline until)
      : object{std::move(of)}, ranks{members->comm, options, until} {}
  peerbus::collective::team ranks;
};

namespace peerbus::c_library {

namespace {

// The operations themselves are compiled once for all types of elements (`detail` of
// peerbus/collective), so element types that are known at run time need no template here.
using collective::detail::call_header;
using collective::detail::operands;
using collective::detail::reducer;

/// Returns the type of elements as ranks compare it, with the name that C++ gives it if it has the
/// type. It has 0 bytes if there is no such type.
collective::detail::element_type element_of(peerbus_dtype dtype) {
  const std::int32_t code = dtype / 256;
  const std::int32_t bits = dtype % 256;
  if (dtype <= 0 || bits == 0 || bits % 8 != 0) return {};
  std::string_view prefix;
  switch (code) {
    case PEERBUS_INT: prefix = "i"; break;
    case PEERBUS_UINT: prefix = "u"; break;
    case PEERBUS_FLOAT: prefix = "f"; break;
    case PEERBUS_BFLOAT: prefix = "bf"; break;
    default: break;
  }
  std::string name = prefix.empty() ? "bytes" : detail::concat(prefix, bits);
  if (dtype == PEERBUS_DTYPE_BOOL) name = "bool";
  if (dtype == PEERBUS_DTYPE_E4M3) name = "e4m3";
  return {collective::detail::short_text<8>{name}, static_cast<std::uint32_t>(bits) / 8};
}

/// Returns the reduction by `Op`, or nothing if elements of this type cannot be reduced.
template <class Op>
std::optional<reducer> reducer_by(peerbus_dtype dtype) noexcept {
  static constexpr Op op{};  // The reducer refers to it.
  switch (dtype) {
    case PEERBUS_DTYPE_F32: return reducer::of<float>(op);
    case PEERBUS_DTYPE_F64: return reducer::of<double>(op);
    case PEERBUS_DTYPE_BF16: return reducer::of<bf16>(op);
    case PEERBUS_DTYPE_I32: return reducer::of<std::int32_t>(op);
    case PEERBUS_DTYPE_I64: return reducer::of<std::int64_t>(op);
    case PEERBUS_DTYPE_U8: return reducer::of<std::uint8_t>(op);
    default: return std::nullopt;
  }
}

/// One collective operation that a rank has called. Arguments that cannot be read make the
/// operation fail on all ranks, so that none waits for this one.
class request {
 public:
  /// Throws: `error` invalid_argument, on this rank only, for a team that cannot be used; as
  /// `refuse` for a type that does not exist.
  request(peerbus_team* on, std::string_view operation, peerbus_dtype dtype,
          std::int64_t timeout_ns)
      : ranks_{usable(on, "team").ranks},
        operation_{operation},
        dtype_{dtype},
        options_{deadline_of(timeout_ns)} {
    given_.element = element_of(dtype);
    if (dtype == PEERBUS_DTYPE_REFUSED) refuse("operands that its caller had found wrong");
    if (given_.element.bytes == 0)
      refuse(detail::concat(
          "a dtype of ", dtype,
          ", expected PEERBUS_DTYPE(code, bits) with a multiple of 8 bits below 256"));
  }

  /// Takes `rows` x `count` elements as the input.
  void input(const void* memory, std::uint64_t count, std::uint64_t rows = 1) {
    given_.input = {static_cast<const std::byte*>(memory), bytes_of(count, rows)};
  }
  /// Takes `rows` x `count` elements as the output.
  void output(void* memory, std::uint64_t count, std::uint64_t rows = 1) {
    given_.output = {static_cast<std::byte*>(memory), bytes_of(count, rows)};
  }

  /// Returns the layout of the parts of an operand, and sets `*end` to the elements that the
  /// operand has at least. `name` is that of the array in errors.
  collective::part_layout parts(const std::uint64_t* counts, const std::uint64_t* displacements,
                                std::string_view name, std::uint64_t* end) {
    if (counts == nullptr) refuse(detail::concat(name, " that are NULL"));
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

  /// Returns the rank `number`. One that does not exist stays one, which the operation refuses.
  [[nodiscard]] rank_id root(std::uint64_t number) const noexcept {
    return rank_id{std::min<std::uint64_t>(number, std::numeric_limits<std::uint32_t>::max())};
  }

  /// Returns the reduction of the operation's elements.
  [[nodiscard]] reducer by(peerbus_reduction reduction) {
    std::optional<reducer> found;
    switch (reduction) {
      case PEERBUS_SUM: found = reducer_by<collective::sum>(dtype_); break;
      case PEERBUS_PRODUCT: found = reducer_by<collective::product>(dtype_); break;
      case PEERBUS_MINIMUM: found = reducer_by<collective::minimum>(dtype_); break;
      case PEERBUS_MAXIMUM: found = reducer_by<collective::maximum>(dtype_); break;
      default: refuse(detail::concat("a reduction of ", reduction, ", expected 0 to 3"));
    }
    if (found) return *found;
    refuse(detail::concat("elements to reduce of type ", name_of_type(),
                          ", expected f32, f64, bf16, i32, i64 or u8"));
  }

  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// Returns the team of the call.
  [[nodiscard]] collective::team& team() const noexcept { return ranks_; }
  /// Returns the operands.
  [[nodiscard]] const operands& given() const noexcept { return given_; }
  /// Returns the options of the call.
  [[nodiscard]] const collective::call_options& options() const noexcept { return options_; }

 private:
  /// Ends the call on all ranks. `objection` says what is wrong with the arguments.
  /// Throws: `error` invalid_argument, or what ended the wait for the others.
  [[noreturn]] void refuse(const std::string& objection) const {
    // Making it tells the other ranks, and throws.
    static_cast<void>(collective::detail::call{
        ranks_, call_header::of(operation_, given_.element, 0), {}, options_, objection});
    throw error{errc::invalid_argument, objection};
  }
  [[noreturn]] void refuse_size() const {
    refuse("operands of more elements than memory can have");
  }

  [[nodiscard]] std::size_t bytes_of(std::uint64_t count, std::uint64_t rows) const {
    // Below this, no sum of an address and a size wraps around.
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max() / 2;
    if (count > most / rows / given_.element.bytes) refuse_size();
    return static_cast<std::size_t>(count * rows * given_.element.bytes);
  }

  [[nodiscard]] std::string name_of_type() const {
    const std::string_view name = given_.element.name.view();
    if (name != "bytes") return std::string{name};
    return detail::concat("DLPack's code ", dtype_ / 256, " with ", dtype_ % 256, " bits");
  }

  collective::team& ranks_;
  std::string_view operation_;
  peerbus_dtype dtype_;
  collective::call_options options_;
  operands given_;
};

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.
namespace operations = peerbus::collective::detail;

peerbus_code peerbus_team_create(peerbus_comm* comm, const peerbus_team_options* options,
                                 int64_t timeout_ns, peerbus_team** team) {
  return guarded([&] {
    require_result(team, "team");
    const auto& members = usable(comm, "communicator").members;
    const auto given = read_options(options, "options");
    peerbus::collective::team_options wanted;
    if (given.scratch_bytes != 0) wanted.scratch_bytes = given.scratch_bytes;
    if (given.one_shot_bytes != 0) wanted.one_shot_bytes = given.one_shot_bytes;
    *team = std::make_unique<peerbus_team>(members, wanted, deadline_of(members->comm, timeout_ns))
                .release();
  });
}

void peerbus_team_destroy(peerbus_team** team) { destroy(team); }

peerbus_code peerbus_broadcast(peerbus_team* team, void* data, uint64_t count, peerbus_dtype dtype,
                               uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "broadcast", dtype, timeout_ns};
    asked.input(data, count);
    asked.output(data, count);
    operations::broadcast_bytes(asked.team(), asked.given(), asked.root(root), asked.options());
  });
}

peerbus_code peerbus_gather(peerbus_team* team, const void* input, void* output, uint64_t count,
                            peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "gather", dtype, timeout_ns};
    const peerbus::rank_id to = asked.root(root);
    asked.input(input, count);
    if (to == asked.team().rank()) asked.output(output, count, asked.size());
    operations::gather_bytes(asked.team(), asked.given(), to, asked.options());
  });
}

peerbus_code peerbus_scatter(peerbus_team* team, const void* input, void* output, uint64_t count,
                             peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "scatter", dtype, timeout_ns};
    const peerbus::rank_id from = asked.root(root);
    if (from == asked.team().rank()) asked.input(input, count, asked.size());
    asked.output(output, count);
    operations::scatter_bytes(asked.team(), asked.given(), from, asked.options());
  });
}

peerbus_code peerbus_all_gather(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "all_gather", dtype, timeout_ns};
    asked.input(input, count);
    asked.output(output, count, asked.size());
    operations::all_gather_bytes(asked.team(), asked.given(), asked.options());
  });
}

peerbus_code peerbus_all_gather_v(peerbus_team* team, const void* input, void* output,
                                  const uint64_t* counts, const uint64_t* displacements,
                                  peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "all_gather_v", dtype, timeout_ns};
    std::uint64_t end = 0;
    const auto parts = asked.parts(counts, displacements, "counts", &end);
    asked.input(input, counts[asked.team().rank().index()]);
    asked.output(output, end);
    operations::all_gather_v_bytes(asked.team(), asked.given(), parts, asked.options());
  });
}

peerbus_code peerbus_all_to_all(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "all_to_all", dtype, timeout_ns};
    asked.input(input, count, asked.size());
    asked.output(output, count, asked.size());
    operations::all_to_all_bytes(asked.team(), asked.given(), asked.options());
  });
}

peerbus_code peerbus_all_to_all_v(peerbus_team* team, const void* input,
                                  const uint64_t* sent_counts, const uint64_t* sent_displacements,
                                  void* output, const uint64_t* received_counts,
                                  const uint64_t* received_displacements, peerbus_dtype dtype,
                                  int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "all_to_all_v", dtype, timeout_ns};
    std::uint64_t end = 0;
    const auto sent = asked.parts(sent_counts, sent_displacements, "sent_counts", &end);
    asked.input(input, end);
    const auto received =
        asked.parts(received_counts, received_displacements, "received_counts", &end);
    asked.output(output, end);
    operations::all_to_all_v_bytes(asked.team(), asked.given(), sent, received, asked.options());
  });
}

peerbus_code peerbus_reduce(peerbus_team* team, const void* input, void* output, uint64_t count,
                            peerbus_dtype dtype, peerbus_reduction reduction, uint64_t root,
                            int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "reduce", dtype, timeout_ns};
    const peerbus::rank_id to = asked.root(root);
    asked.input(input, count);
    if (to == asked.team().rank()) asked.output(output, count);
    operations::reduce_bytes(asked.team(), asked.given(), asked.by(reduction), to, asked.options());
  });
}

peerbus_code peerbus_all_reduce(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, peerbus_reduction reduction,
                                int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "all_reduce", dtype, timeout_ns};
    asked.input(input, count);
    asked.output(output, count);
    operations::all_reduce_bytes(asked.team(), asked.given(), asked.by(reduction), asked.options());
  });
}

peerbus_code peerbus_reduce_scatter(peerbus_team* team, const void* input, void* output,
                                    uint64_t count, peerbus_dtype dtype,
                                    peerbus_reduction reduction, int64_t timeout_ns) {
  return guarded([&] {
    request asked{team, "reduce_scatter", dtype, timeout_ns};
    asked.input(input, count, asked.size());
    asked.output(output, count);
    operations::reduce_scatter_bytes(asked.team(), asked.given(), asked.by(reduction),
                                     asked.options());
  });
}
