// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/told_code.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/rendezvous_options.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Returns the name of this host.
/// Throws: `error` system.
inline std::string name_of_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    throw system_failure("asking for the name of this host", errno);
  return name.data();
}

/// The text that another system, such as MPI, carries from rank 0 to the other ranks, so that they
/// can meet.
struct invitation {
  static constexpr std::string_view format = "peerbus invitation 1";
  static constexpr std::string_view refusal = "peerbus refusal 1";
  static constexpr std::size_t secret_digits = 32;  ///< the number of digits that `draw_digits`
                                                    ///< returns

  offered_place place;
  bool is_one_host = false;
  std::string secret;
  std::string job;

  /// Makes the invitation of the ranks of `job`.
  /// Throws: `error` system.
  static invitation make(const rendezvous_options& options, bool is_one_host, std::string job) {
    invitation made;
    made.is_one_host = is_one_host && !options.over_tcp;
    made.place =
        made.is_one_host
            ? offered_place::on_this_host()
            : offered_place::of_network(options.address.empty() ? name_of_host() : options.address);
    made.secret = draw_digits();
    made.job = std::move(job);
    return made;
  }

  /// Encodes the invitation as lines of text.
  [[nodiscard]] std::string encode() const {
    return concat(format, "\n", is_one_host ? "host" : "network", "\n", place.address, "\n",
                  place.port, "\n", secret, "\n", job);
  }
  /// Encodes an error of rank 0, which then cannot invite.
  [[nodiscard]] static std::string refuse(const error& why) {
    return concat(refusal, "\n", static_cast<int>(why.code()), "\n", why.text());
  }

  /// Decodes an invitation.
  /// Throws: `error` with the reason if rank 0 refused; mismatch if the text comes from another
  /// build; system if it was cut off or changed.
  static invitation decode(std::string_view text) {
    bool is_whole = true;
    const auto take_line = [&] {
      const auto line = text.substr(0, text.find('\n'));
      is_whole = is_whole && line.size() < text.size();
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      return line;
    };
    const auto take_number = [&] {
      const auto line = take_line();
      std::uint16_t number = 0;
      const auto [stop, code] = std::from_chars(line.data(), line.data() + line.size(), number);
      is_whole = is_whole && code == std::errc{} && stop == line.data() + line.size();
      return number;
    };
    const auto first = take_line();
    if (first == refusal) {
      const errc code = told_code(take_number());
      throw error{code, std::string{text}};
    }
    if (first != format)
      throw error{errc::mismatch, concat("rank 0 invites with '", first, "', expected '", format,
                                         "': expected one build of peerbus on all ranks")};
    invitation read;
    const auto kind = take_line();
    read.is_one_host = kind == "host";
    read.place.address = take_line();
    read.place.port = take_number();
    read.secret = take_line();
    read.job = text;
    is_whole = is_whole && (read.is_one_host || kind == "network") && !read.place.address.empty();
    if (!is_whole || read.secret.size() != secret_digits)
      throw error{errc::system, "the invitation of rank 0 was cut off or changed on its way"};
    return read;
  }

  /// Collective: meets the other ranks. `over_network(settings, until)` makes the bootstrap of
  /// ranks on several hosts. `host` is the name of this rank's host, or empty.
  /// Throws: `error` as the constructor of `environment_bootstrap` and as `over_network`.
  template <class OverNetwork>
  [[nodiscard]] std::unique_ptr<bootstrap> meet(std::size_t rank, std::size_t size, deadline until,
                                                OverNetwork&& over_network,
                                                const rendezvous_options& options) const {
    if (is_one_host) {
      launch_settings settings;
      settings.rank = settings.local_rank = rank;
      settings.size = size;
      settings.address = place.address;
      settings.port = place.port;
      settings.job = job;
      return std::make_unique<environment_bootstrap>(settings, until);
    }
    tcp_settings settings;
    settings.rank = rank;
    settings.size = size;
    settings.address = place.address;
    settings.port = place.port;
    settings.secret = secret;
    settings.job = job;
    settings.host = options.host;
    settings.mesh = options.mesh;
    try {
      return over_network(settings, until);
    } catch (const error& problem) {
      throw error{problem.code(),
                  concat("ranks on several hosts, whose place is on the host of rank 0, '",
                         place.address, "' (rendezvous_options::address): ", problem.text())};
    }
  }
};

}  // namespace peerbus::detail
