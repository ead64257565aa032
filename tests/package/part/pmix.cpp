// SPDX-License-Identifier: MIT
#include <pmix.h>

#include <peerbus/bootstrap/pmix.hpp>
#include <peerbus/core/error.hpp>

// Links and runs, though no engine starts it: PMIx that is not initialised is refused.
int main() {
  try {
    (void)peerbus::pmix_bootstrap({});
  } catch (const peerbus::error& problem) {
    return problem.code() == peerbus::errc::invalid_argument ? 0 : 1;
  }
  return 1;
}
