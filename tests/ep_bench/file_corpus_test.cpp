// SPDX-License-Identifier: MIT
//
// The inputs of tests/fuzz/corpus for files that tests and benchmarks read, read again in each
// build.
#include <doctest/doctest.h>

#include "fuzz/file_targets.hpp"
#include "fuzz/replay.hpp"

namespace file_corpus_test {

TEST_CASE("corpus: every reader of files survives its inputs") {
  fuzz::replay(fuzz::file_targets, "file_");
}

}  // namespace file_corpus_test
