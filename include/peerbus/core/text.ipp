// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE std::string concat(std::initializer_list<detail::text_part> parts) {
  std::string out;
  for (const detail::text_part& part : parts) {
    switch (part.what) {
      case detail::text_part::kind::text: out += part.text; break;
      case detail::text_part::kind::natural: out += std::to_string(part.natural); break;
      case detail::text_part::kind::integer: out += std::to_string(part.integer); break;
      case detail::text_part::kind::real: out += std::to_string(part.real); break;
      case detail::text_part::kind::object:
        if (part.append != nullptr) part.append(out, part.object);
        break;
    }
  }
  return out;
}

}  // namespace peerbus
