// SPDX-License-Identifier: MIT
//
// The inputs of tests/fuzz/corpus for structures of C, read again in each build.
#include <doctest/doctest.h>

#include "fuzz/c_targets.hpp"
#include "fuzz/replay.hpp"

namespace corpus_test {

TEST_CASE("corpus: every reader of libpeerbus survives its inputs") {
  fuzz::replay(fuzz::c_targets, "c_");
}

}  // namespace corpus_test
