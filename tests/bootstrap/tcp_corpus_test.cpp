// SPDX-License-Identifier: MIT
//
// The inputs of tests/fuzz/corpus, read again in each build.
#include <vector>

#include <doctest/doctest.h>

#include "fuzz/library_targets.hpp"
#include "fuzz/replay.hpp"
#include "fuzz/tcp_targets.hpp"

namespace tcp_corpus_test {

TEST_CASE("corpus: every reader of the library survives its inputs") {
  std::vector<fuzz::target> targets(fuzz::tcp_targets.begin(), fuzz::tcp_targets.end());
  targets.insert(targets.end(), fuzz::library_targets.begin(), fuzz::library_targets.end());
  fuzz::replay(targets, "");
}

}  // namespace tcp_corpus_test
