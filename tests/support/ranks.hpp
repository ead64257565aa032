// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/sanitized.hpp"

/// What the bodies of ranks check with. A rank may be a forked process, where doctest's own
/// assertions would be lost: it throws instead, which ends it with status 1 and its rank and text
/// on stderr, and the test case that started the ranks checks their status.
namespace test {

class failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw failure{text.str()};
}

template <class... Parts>
void expect(bool ok, const Parts&... parts) {
  if (!ok) fail("expected: ", parts...);
}

template <class Given, class Expected, class... Parts>
void expect_equal(const Given& given, const Expected& expected, const Parts&... what) {
  if (!(given == expected)) fail(what..., ": is ", given, ", expected ", expected);
}

inline void expect_code(peerbus::errc given, peerbus::errc expected, std::string_view what) {
  if (given != expected)
    fail(what, ": returned '", peerbus::to_string(given), "', expected '",
         peerbus::to_string(expected), "'");
}
inline void expect_ok(peerbus::errc given, std::string_view what) {
  expect_code(given, peerbus::errc::ok, what);
}

/// Calls `f`, which must throw a `peerbus::error` of `code` whose text has all `fragments`.
template <class F>
void expect_error(peerbus::errc code, std::initializer_list<std::string_view> fragments, F&& f) {
  bool thrown = false;
  try {
    f();
  } catch (const peerbus::error& caught) {
    thrown = true;
    if (caught.code() != code)
      fail("threw '", caught.what(), "', expected code '", peerbus::to_string(code), "'");
    for (const std::string_view fragment : fragments)
      if (std::string_view{caught.what()}.find(fragment) == std::string_view::npos)
        fail("threw '", caught.what(), "', expected it to say '", fragment, "'");
  }
  if (!thrown) fail("threw nothing, expected code '", peerbus::to_string(code), "'");
}

namespace detail {
/// A rank that calls `body(communicator<Transport>&)`, connected by a `Held`.
template <class Held, class Transport, class Body>
auto with_communicator(Body& body, peerbus::communicator_options options) {
  return [&body, options](peerbus::bootstrap& boot) {
    peerbus::communicator<Transport> comm{Transport{Held{boot}}, options};
    body(comm);
  };
}
}  // namespace detail

/// Ranks as threads of this process, each calling `body(communicator&)`.
template <peerbus::transport Transport>
struct threads_over {
  using transport = Transport;
  static constexpr bool are_threads = true;
  template <class Body>
  static int run(std::size_t ranks, Body body, peerbus::communicator_options options = {}) {
    return start(ranks, detail::with_communicator<Transport, Transport>(body, options));
  }
  template <class F>
  static int start(std::size_t ranks, F f) {
    return peerbus::run_threads(ranks, f);
  }
};

/// Ranks as processes.
template <peerbus::transport Transport>
struct processes_over {
  using transport = Transport;
  static constexpr bool are_threads = false;
  template <class Body>
  static int run(std::size_t ranks, Body body, peerbus::communicator_options options = {}) {
    return start(ranks, detail::with_communicator<Transport, Transport>(body, options));
  }
  template <class F>
  static int start(std::size_t ranks, F f) {
    return peerbus::run_local(ranks, f);
  }
};

/// Ranks that are a subgroup of `Group`: those of even number among twice as many, the last first.
/// The others leave at once.
template <class Group>
struct subgroup_of {
  using transport = typename Group::transport;
  static constexpr bool are_threads = Group::are_threads;
  template <class F>
  static int start(std::size_t ranks, F f) {
    return Group::start(2 * ranks, [ranks, f](peerbus::bootstrap& boot) {
      std::vector<peerbus::rank_id> members{boot.rank()};
      if (boot.rank().index() % 2 == 0) {
        members.clear();
        for (std::size_t i = ranks; i-- != 0;) members.emplace_back(2 * i);
      }
      const auto group = boot.subgroup(members);
      if (boot.rank().index() % 2 == 0) f(*group);
    });
  }
};

/// Each of `Groups` in turn, whose ranks hold their transport as an `Erased`: a body is compiled
/// once for all of them. A group that fails is named on stderr.
template <peerbus::transport Erased, class... Groups>
struct any_over {
  using transport = Erased;
  static constexpr bool are_threads = (Groups::are_threads && ...);
  template <class Body>
  static int run(std::size_t ranks, Body body, peerbus::communicator_options options = {}) {
    return std::max({run_over<Groups>(ranks, body, options)...});
  }

 private:
  template <class Group, class Body>
  static int run_over(std::size_t ranks, Body& body, peerbus::communicator_options options) {
    const int status = Group::start(
        ranks, detail::with_communicator<typename Group::transport, Erased>(body, options));
    if (status != 0) std::cerr << typeid(Group).name() << " ended with " << status << '\n';
    return status;
  }
};

}  // namespace test
