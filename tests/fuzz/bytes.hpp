// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <peerbus/core/error.hpp>
#include <peerbus/core/unique_fd.hpp>

/// Targets for bytes from outside of the process. A target returns for any bytes, whether they are
/// accepted or refused. Anything else is a defect: a crash, an exception that is no
/// `peerbus::error`, a sanitizer's report, or more time or memory than the bytes are worth.
namespace fuzz {

using bytes = std::span<const std::byte>;

/// A reader of bytes from outside, and the name of the folder of its inputs.
struct target {
  std::string_view name;
  void (*read)(bytes given);
};

inline void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error{what};
}

/// Calls `read()`, which may refuse its input by an `error` of a known code.
template <class Read>
void accept_or_refuse(Read&& read) {
  try {
    read();
  } catch (const peerbus::error& refusal) {
    expect(refusal.code() != peerbus::errc::ok, "a refusal has a code");
    expect(to_string(refusal.code()) != "unknown error code", "a refusal has a known code");
  }
}

/// Takes numbers and pieces from the bytes of an input, in order. After the end there are zeros.
class input {
 public:
  explicit input(bytes given) noexcept : rest_{given} {}

  /// Returns the next bytes as a value of type `T`.
  template <class T>
  [[nodiscard]] T take() noexcept {
    T value{};
    const bytes taken = take_bytes(sizeof value);
    if (!taken.empty()) std::memcpy(static_cast<void*>(&value), taken.data(), taken.size());
    return value;
  }
  /// Returns the next byte as a number below `limit`.
  [[nodiscard]] std::size_t below(std::size_t limit) noexcept {
    return take<unsigned char>() % limit;
  }
  /// Returns the next bytes, at most `count`.
  [[nodiscard]] bytes take_bytes(std::size_t count) noexcept {
    const bytes taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  [[nodiscard]] bytes rest() const noexcept { return rest_; }
  [[nodiscard]] bool is_empty() const noexcept { return rest_.empty(); }

 private:
  bytes rest_;
};

/// Returns bytes as text.
inline std::string_view text_of(bytes given) noexcept {
  return {reinterpret_cast<const char*>(given.data()), given.size()};
}

/// Writes `given` to a file of this process alone. Returns the file, whose name is `path_of`.
inline peerbus::unique_fd file_with(bytes given) {
  peerbus::unique_fd file{::memfd_create("fuzz", MFD_CLOEXEC)};
  expect(::write(file.get(), given.data(), given.size()) == static_cast<ssize_t>(given.size()),
         "a file");
  return file;
}
inline std::string path_of(const peerbus::unique_fd& file) {
  return "/proc/self/fd/" + std::to_string(file.get());
}

}  // namespace fuzz
