// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace test {

/// Whether `holds(span)` is true for some span of time, the first one `first`, each next one eight
/// times as long, up to half a minute. For calls that some ranks let time out: on a busy machine a
/// rank that does come may also miss a short deadline, and then its peers rightly name it, too.
template <class Holds>
bool given_time(std::chrono::milliseconds first, Holds&& holds) {
  for (auto span = first; span <= std::chrono::seconds{30}; span *= 8)
    if (holds(span)) return true;
  return false;
}

}  // namespace test
