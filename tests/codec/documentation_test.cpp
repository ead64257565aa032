// SPDX-License-Identifier: MIT
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

namespace documentation_test {

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream{file};
  REQUIRE_MESSAGE(stream, "cannot read ", file.string());
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("docs/codecs.md shows the example that is built and run") {
  const auto root = std::filesystem::path{__FILE__}.parent_path().parent_path().parent_path();
  const std::string example = text_of(root / "examples" / "03_own_codec.cpp");
  const std::string page = text_of(root / "docs" / "codecs.md");
  CHECK(page.find("```cpp\n" + example + "```\n") != std::string::npos);
}

}  // namespace documentation_test
