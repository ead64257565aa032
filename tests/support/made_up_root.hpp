// SPDX-License-Identifier: MIT
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX's.

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

namespace test {

/// A folder that stands for the root of a machine, with the files of its kernel, and goes with the
/// object.
class made_up_root {
 public:
  made_up_root() {
    std::string name = (std::filesystem::temp_directory_path() / "peerbus_root.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  made_up_root(const made_up_root&) = delete;
  made_up_root& operator=(const made_up_root&) = delete;
  ~made_up_root() { std::filesystem::remove_all(path_); }

  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path whole = path_ + file;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream{whole} << text;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace test
