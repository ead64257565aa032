// SPDX-License-Identifier: MIT
#include "operand.hpp"

#include <string_view>

#include <peerbus/collective/reduction.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::c_library {

namespace {

using collective::detail::reducer;

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

}  // namespace

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
  std::string name = prefix.empty() ? "bytes" : concat(prefix, bits);
  if (dtype == PEERBUS_DTYPE_BOOL) name = "bool";
  if (dtype == PEERBUS_DTYPE_E4M3) name = "e4m3";
  return {collective::detail::short_text<8>{name}, static_cast<std::uint32_t>(bits) / 8};
}

std::string wrong_dtype(peerbus_dtype dtype) {
  return concat("a dtype of ", dtype,
                ", expected PEERBUS_DTYPE(code, bits) with a multiple of 8 bits below 256");
}

std::string name_of(peerbus_dtype dtype) {
  const auto element = element_of(dtype);
  const std::string_view name = element.name.view();
  if (name != "bytes") return std::string{name};
  return concat("DLPack's code ", dtype / 256, " with ", dtype % 256, " bits");
}

std::optional<reducer> reducer_of(peerbus_dtype dtype, peerbus_reduction reduction) noexcept {
  switch (reduction) {
    case PEERBUS_SUM: return reducer_by<collective::sum>(dtype);
    case PEERBUS_PRODUCT: return reducer_by<collective::product>(dtype);
    case PEERBUS_MINIMUM: return reducer_by<collective::minimum>(dtype);
    default: return reducer_by<collective::maximum>(dtype);
  }
}

}  // namespace peerbus::c_library
