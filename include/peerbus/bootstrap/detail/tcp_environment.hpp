// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Returns words for the kind of file that has `mode`, for messages.
inline std::string_view describe_kind(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  return "a device or another special file";
}

/// Checks by libpq's rule that the file of a secret is private. Only its owner may read it and, if
/// root owns it, its group.
/// Throws: `error` invalid_argument.
inline void require_kept_secret(const std::string& path, const struct stat& found) {
  const mode_t wrong = found.st_mode & (found.st_uid == 0 ? 0137U : 0177U);
  if (wrong == 0) return;
  const auto digit = [&](unsigned shift) {
    return static_cast<char>('0' + ((found.st_mode >> shift) & 7U));
  };
  throw error{
      errc::invalid_argument,
      concat("PEERBUS_SECRET_FILE '", path, "' has mode 0",
             std::string{digit(6), digit(3), digit(0)}, ", expected at most 0",
             found.st_uid == 0 ? "640" : "600", ": chmod 600 it, so that it stays a secret")};
}

/// Returns the content of the file without line ends at its end, which editors add and which are no
/// part of the secret. Does not block, because waiting for a FIFO that no process writes to would
/// pass every deadline.
/// Throws: `error` system; invalid_argument if it is no regular file, if others may use it, or if
/// it is empty or too long.
inline std::string read_secret_file(const std::string& path) {
  constexpr std::size_t most = 4096;
  const auto file =
      unique_fd::above_standard(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw system_failure(concat("opening PEERBUS_SECRET_FILE '", path, "'"), errno);
  struct stat found{};
  if (::fstat(file.get(), &found) != 0)
    throw system_failure(concat("reading PEERBUS_SECRET_FILE '", path, "'"), errno);
  if (!S_ISREG(found.st_mode))
    throw error{errc::invalid_argument,
                concat("PEERBUS_SECRET_FILE '", path, "' is ", describe_kind(found.st_mode),
                       ", expected a regular file")};
  require_kept_secret(path, found);
  std::string text(most + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_failure(concat("reading PEERBUS_SECRET_FILE '", path, "'"), errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || text.size() > most)
    throw error{
        errc::invalid_argument,
        concat("PEERBUS_SECRET_FILE '", path, "' has ", text.empty() ? "nothing" : "too much",
               " in it, expected ", least_secret_bytes, " to ", most, " bytes")};
  return text;
}

/// Returns the secret that the environment gives, or an empty text if there is none.
/// Throws: `error` as `read_secret_file`, invalid_argument.
inline std::string read_secret() {
  const auto text = variable("PEERBUS_SECRET");
  const auto file = variable("PEERBUS_SECRET_FILE");
  if (text && file)
    throw error{errc::invalid_argument,
                "PEERBUS_SECRET and PEERBUS_SECRET_FILE are both set, expected one of them"};
  if (file) return read_secret_file(std::string{*file});
  if (text && text->empty())
    throw error{errc::invalid_argument, concat("PEERBUS_SECRET is empty, expected at least ",
                                               least_secret_bytes, " bytes")};
  return std::string{text.value_or("")};
}

/// Returns the port at which rank 0 listens: `PEERBUS_PORT` if it is set, otherwise `MASTER_PORT`.
/// torchrun's own store often listens at `MASTER_PORT` while the ranks run. In that case the result
/// is the port next to it.
/// Throws: `error` invalid_argument.
inline std::uint16_t choose_port(std::uint16_t master_port) {
  constexpr std::size_t most = 65535;
  if (const auto own = variable("PEERBUS_PORT"))
    return static_cast<std::uint16_t>(
        parse_variable("PEERBUS_PORT", *own, 1, most, "a port number"));
  if (variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True") return master_port;
  return static_cast<std::uint16_t>(master_port == most ? master_port - 1 : master_port + 1);
}

/// Reads the settings from the environment.
/// Throws: `error` invalid_argument, system.
inline tcp_settings read_tcp_settings() {
  const launch_settings launched = read_launch_settings(hosts::any);
  tcp_settings read;
  read.rank = launched.rank;
  read.size = launched.size;
  if (variable(find_launcher()->local_rank)) read.local_rank = launched.local_rank;
  read.address = launched.address;
  read.port = choose_port(launched.port);
  read.secret = read_secret();
  read.job = launched.job;
  read.host = std::string{variable("PEERBUS_HOST").value_or("")};
  if (const auto mesh = variable("PEERBUS_MESH"))
    read.mesh = parse_variable("PEERBUS_MESH", *mesh, 0, 1, "0 or 1") == 1;
  if (const auto limit = variable("PEERBUS_OUT_OF_REACH_MS"))
    read.out_of_reach_after = std::chrono::milliseconds{parse_variable(
        "PEERBUS_OUT_OF_REACH_MS", *limit, least_reach_ms, most_reach_ms, "milliseconds")};
  return read;
}

}  // namespace peerbus::detail
