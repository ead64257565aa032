// SPDX-License-Identifier: MIT
#include "operand.hpp"

#include <string_view>

#include <peerbus/core/text.hpp>

namespace peerbus::c_library {

collective::element_type element_of(peerbus_dtype dtype) {
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
  return collective::element_named(name, static_cast<std::uint32_t>(bits) / 8);
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

}  // namespace peerbus::c_library
