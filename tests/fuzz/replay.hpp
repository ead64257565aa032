// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "fuzz/bytes.hpp"

namespace fuzz {

/// Returns the prefix of a target's name that says which program replays it: "c_", "file_" or none.
inline std::string_view program_of(std::string_view name) {
  for (const std::string_view prefix : {"c_", "file_"})
    if (name.starts_with(prefix)) return prefix;
  return {};
}

/// Reads the inputs of the corpus by their targets. Inputs that once showed a defect are among
/// them. `targets` are all of `program`, each with a folder.
inline void replay(std::span<const target> targets, std::string_view program) {
  const auto corpus = std::filesystem::path{__FILE__}.parent_path() / "corpus";
  std::size_t folders = 0;
  for (const auto& folder : std::filesystem::directory_iterator{corpus})
    folders += program_of(folder.path().filename().string()) == program ? 1U : 0U;
  CHECK(folders == targets.size());
  for (const target& reader : targets) {
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator{corpus / reader.name})
      files.push_back(file.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      INFO(file.string());
      std::ifstream stream{file, std::ios::binary};
      const std::string text{std::istreambuf_iterator<char>{stream}, {}};
      CHECK_NOTHROW(reader.read(std::as_bytes(std::span{text})));
    }
  }
}

}  // namespace fuzz
