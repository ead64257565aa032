// SPDX-License-Identifier: MIT
#include "text.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace moe_text {

namespace {

constexpr std::size_t most_bytes = std::size_t{64} << 20;

struct character {
  std::uint32_t code;  ///< 0 for a byte that is not UTF-8
  std::size_t bytes;
};

character decode(std::string_view rest) {
  const auto byte = [rest](std::size_t i) -> std::uint32_t {
    return i < rest.size() ? static_cast<unsigned char>(rest[i]) : 0U;
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {0, 1};
  std::uint32_t code = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {0, 1};
    code = code << 6U | (byte(i) & 0x3fU);
  }
  return {code, length};
}

bool is_in_word(std::uint32_t code) {
  if (code < 0x80)
    return (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') ||
           (code >= 'A' && code <= 'Z');
  // The excluded blocks hold punctuation, arrows, box drawing and other symbols.
  return code >= 0xc0 && code != 0xd7 && code != 0xf7 && !(code >= 0x2000 && code <= 0x2bff) &&
         !(code >= 0x3000 && code <= 0x303f);
}

/// Returns the small letter of a capital in ASCII, Latin-1, Greek and Cyrillic, where the code of a
/// capital determines that of the small letter. Other characters stay as they are.
std::uint32_t lower(std::uint32_t code) {
  if ((code >= 'A' && code <= 'Z') || (code >= 0xc0 && code <= 0xde) ||
      (code >= 0x391 && code <= 0x3a9) || (code >= 0x410 && code <= 0x42f))
    return code + 0x20;
  if (code >= 0x400 && code <= 0x40f) return code + 0x50;
  return code;
}

}  // namespace

std::string read_text(const std::string& file) {
  const auto refuse = [&file](const std::string& reason) {
    throw std::invalid_argument{"cannot read '" + file + "': " + reason};
  };
  const auto system_reason = [] { return std::system_category().message(errno); };
  const auto close = [](std::FILE* stream) { std::fclose(stream); };
  const std::unique_ptr<std::FILE, decltype(close)> stream{std::fopen(file.c_str(), "rb"), close};
  if (stream == nullptr) refuse(system_reason());
  std::string text;
  std::array<char, 65536> block;
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), stream.get())) {
    text.append(block.data(), got);
    if (text.size() > most_bytes)
      refuse("it is larger than " + std::to_string(most_bytes >> 20) + " MiB");
  }
  if (std::ferror(stream.get()) != 0) refuse(system_reason());
  return text;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  while (!text.empty()) {
    const character next = decode(text);
    const std::uint32_t code = lower(next.code);
    if (!is_in_word(next.code)) {
      finish();
    } else if (code == next.code) {
      word += text.substr(0, next.bytes);
    } else if (code < 0x80) {
      word += static_cast<char>(code);
    } else {  // Such a letter takes two bytes in either case.
      word += static_cast<char>(0xc0U | code >> 6U);
      word += static_cast<char>(0x80U | (code & 0x3fU));
    }
    text.remove_prefix(next.bytes);
  }
  finish();
  return words;
}

}  // namespace moe_text
