// SPDX-License-Identifier: MIT
// ctest: timeout=240
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "collective/halves.hpp"
#include "collective/lanes.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

/// Operands that peers read in private memory.
namespace private_test {

namespace coll = peerbus::collective;
using coll::operation_kind;
using collective_suite::on_team;
using collective_suite::team;
using collective_suite::team_options;
using collective_suite::values;
using peerbus::errc;
using peerbus::rank_id;

namespace {

/// What the reads of this process return, once `reads_left` have succeeded; of all peers, or of
/// one.
errc failure = errc::ok;
std::size_t reads_left = 0;
std::optional<rank_id> failing_peer;
std::size_t reads_done = 0;

/// A unified_bus whose reads of private memory fail.
class failing_reads : public peerbus::transport_decorator<peerbus::unified_bus> {
 public:
  using transport_decorator::transport_decorator;
  [[nodiscard]] errc get_private(rank_id peer, const window& memory, std::uint64_t address,
                                 std::span<std::byte> target) noexcept {
    if (failure != errc::ok && failing_peer.value_or(peer) == peer) {
      if (reads_left == 0) return failure;
      --reads_left;
    }
    ++reads_done;
    return inner().get_private(peer, memory, address, target);
  }
};
using failing_processes =
    test::any_over<peerbus::any_transport, test::processes_over<failing_reads>>;

/// Options with which all operands that can be read in private memory are.
constexpr team_options always{.private_bytes = 1};

constexpr std::size_t count = 5000;  // Floats of a row: three slices of the team below.
constexpr team_options three_slices{.scratch_bytes = 16384, .private_bytes = 1};

constexpr collective_suite::channel_options read_messages{.scratch_bytes = 12288,
                                                          .private_bytes = 1};

/// Does operations of all patterns, and compares what they give.
void check_rows(team& on) { collective_suite::check_copies<float>(on, count, on.size()); }

/// Returns whether a call of `all_gather` would be read.
bool are_read(const team& on) {
  return on.reads_for(operation_kind::all_gather, count * sizeof(float)).reads_private;
}

/// Returns `bytes` bytes, of which those from `hole` on are not mapped, until something else is
/// mapped there.
std::span<const std::uint8_t> make_unmapped(std::size_t bytes, std::size_t hole) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  test::expect(memory != MAP_FAILED, "memory");
  auto* const begin = static_cast<std::uint8_t*>(memory);
  if (hole != bytes) ::munmap(begin + hole, bytes - hole);
  return {begin, bytes};
}

/// Lets the kernel refuse process_vm_readv to this process from now on.
void forbid_reads() {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  test::expect(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  test::expect(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
}

}  // namespace

TEST_CASE("all operations") {
  collective_suite::on_teams<test::direct_processes>(collective_suite::check_small, always);
  on_team<test::direct_processes>(3, collective_suite::check_large, {.private_bytes = 0});
  on_team<test::direct_processes>(
      2,
      [](team& on) {
        test::expect(are_read(on), "read");
        check_rows(on);
        test::expect(are_read(on), "still read");
      },
      three_slices);
}

TEST_CASE("halves and parts of different sizes") {
  for (const std::size_t ranks : {1U, 2U, 5U}) {
    on_team<test::direct_processes>(ranks, collective_suite::check_halves, always);
    on_team<test::direct_processes>(ranks, collective_suite::check_halves,
                                    {.scratch_bytes = 10240, .private_bytes = 1});
    on_team<test::direct_processes>(ranks, collective_suite::check_parts, always);
  }
}

TEST_CASE("lanes") {
  on_team<test::direct_processes>(
      2, [](team& on) { collective_suite::check_lanes(on, 2); }, always);
}

TEST_CASE("more ranks than cores, and one rank") {
  for (const std::size_t ranks : {1U, 24U})
    on_team<test::direct_processes>(ranks, check_rows, always);
}

TEST_CASE("trials change no bytes, and all ranks choose alike") {
  on_team<test::direct_processes>(3, [](team& on) {
    const std::size_t n = on.size();
    const std::size_t me = on.rank().index();
    for (const std::size_t row : {std::size_t{2560}, std::size_t{20'000}}) {
      const auto kind = operation_kind::all_gather;
      test::expect(!on.reads_for(kind, row * sizeof(float)).is_measured, "a rule at first");
      // Calls of other classes and other operations come between those of one.
      for (std::uint64_t i = 0; i < coll::detail::way_trials::first_decision; ++i) {
        std::vector<float> out(n * row);
        coll::all_gather(on, values<float>(me, row, i), out);
        collective_suite::expect_same<float>(out, collective_suite::gathered<float>(n, row, i),
                                             "all_gather");
        std::vector<int> others(n * i);
        if (i % 3 == 0) coll::all_gather(on, std::vector<int>(i), others);
        std::vector<float> sums(100);
        if (i % 4 == 0) coll::all_reduce(on, sums, coll::sum{});
      }
      const coll::read_choice choice = on.reads_for(kind, row * sizeof(float));
      test::expect(choice.is_measured && choice.staged_us > 0 && choice.read_us > 0, "measured");
      const std::array<double, 3> told{choice.staged_us, choice.read_us,
                                       choice.reads_private ? 1.0 : 0.0};
      std::vector<double> all(3 * n);
      coll::all_gather(on, told, all);
      for (std::size_t i = 0; i < all.size(); ++i)
        test::expect_equal(all[i], told[i % 3], "what all ranks found");
    }
    test::expect(!on.reads_for(operation_kind::all_to_all, 10240).is_measured, "another operation");
    test::expect(!on.reads_for(operation_kind::all_gather, 4096).reads_private, "small rows");
    test::expect(!on.reads_for(operation_kind::all_reduce, 1 << 20).reads_private, "reductions");
  });
}

TEST_CASE("a rank that may not read, from the start or later, lets all stage the same bytes") {
  for (const bool at_once : {true, false})
    on_team<test::direct_processes>(
        3,
        [&](team& on) {
          if (!at_once) check_rows(on);
          test::expect(are_read(on), "read");
          if (on.rank() == rank_id{1}) forbid_reads();
          check_rows(on);
          test::expect(!are_read(on), "staged from then on");
          check_rows(on);
        },
        three_slices);
}

TEST_CASE("windows that are made where reads are forbidden") {
  const int worst_status = test::direct_processes::run(2, [](auto& comm) {
    forbid_reads();
    team on{comm, three_slices};
    check_rows(on);
    test::expect(!are_read(on), "staged");
    team trying{comm};
    for (int i = 0; i < 40; ++i) collective_suite::check_copies<float>(trying, 3000, 1);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a read that fails in the middle is staged, whatever the reason") {
  for (const errc code : {errc::unsupported, errc::out_of_range, errc::peer_dead})
    for (const std::size_t successes : {0U, 1U, 7U})
      on_team<failing_processes>(
          4,
          [&](team& on) {
            if (on.rank() == rank_id{2}) {
              failure = code;
              reads_left = successes;
            }
            check_rows(on);
            collective_suite::check_parts(on);
            test::expect(!are_read(on), "staged in later calls");
            failure = errc::ok;
            check_rows(on);
          },
          three_slices);
}

TEST_CASE("memory that can once not be read is no reason to read none") {
  on_team<failing_processes>(
      2,
      [&](team& on) {
        if (on.rank() == rank_id{1}) failure = errc::out_of_range;
        std::vector<float> out(2 * count);
        const auto mine = values<float>(on.rank().index(), count, 1);
        for (int i = 0; i < 2; ++i) {
          coll::all_gather(on, mine, out);
          collective_suite::expect_same<float>(out, collective_suite::gathered<float>(2, count, 1),
                                               "all_gather");
        }
        test::expect(are_read(on), "after two calls");
        coll::all_gather(on, mine, out);
        test::expect(!are_read(on), "after three calls");
        failure = errc::ok;
      },
      three_slices);
}

TEST_CASE("all_to_all in place in a window on one rank only") {
  const int worst_status = test::direct_processes::run(2, [](auto& comm) {
    team on{comm, three_slices};
    auto memory = comm.make_window(2 * count * sizeof(float), 0);
    const std::span<float> part = memory.template local<float>().first(2 * count);
    const std::size_t me = comm.rank().index();
    std::vector<float> rows = values<float>(me, 2 * count, 5);
    const std::vector<float> expected = collective_suite::transposed<float>(2, me, count, 5);
    if (me == 0) {
      std::ranges::copy(rows, part.begin());
      coll::all_to_all(on, coll::in_window(memory, part), part);
      collective_suite::expect_same<float>({part.begin(), part.end()}, expected, "in a window");
    } else {
      coll::all_to_all(on, rows, rows);
      collective_suite::expect_same<float>(rows, expected, "in memory");
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a message whose sender has given it up is not received") {
  for (const bool in_halves : {false, true}) {
    const test::tally given_up;
    const test::tally told;
    const int worst_status = test::direct_processes::run(2, [&](auto& comm) {
      collective_suite::channels on{comm, read_messages};
      std::vector<std::byte> message(100'000);
      const auto soon = [](int ms) {
        return peerbus::deadline::after(std::chrono::milliseconds{ms});
      };
      if (on.rank() == rank_id{0}) {
        if (in_halves) {
          const std::vector batch{coll::send_to(rank_id{1}, message)};
          auto half = coll::start_batch_send_recv(on, batch);
        } else {
          test::expect_error(errc::timed_out, {"message 0 to rank 1"},
                             [&] { coll::send(on, message, rank_id{1}, {.until = soon(20)}); });
        }
        std::ranges::fill(message, std::byte{1});  // The caller may do so now.
        given_up.add();
        while (told.count() == 0) std::this_thread::yield();
      } else {
        while (given_up.count() == 0) std::this_thread::yield();
        test::expect_error(errc::timed_out, {"message 0 from rank 0"},
                           [&] { coll::recv(on, message, rank_id{0}, {.until = soon(100)}); });
        told.add();
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("messages") {
  collective_suite::on_channels_of_all_sizes<test::direct_processes>(
      collective_suite::check_messages, read_messages);
  collective_suite::on_channels<test::direct_processes>(
      2,
      [](collective_suite::channels& on) {
        collective_suite::check_batch(on, 0, 5, 1, true);
        if (on.rank() == rank_id{1}) forbid_reads();
        collective_suite::check_messages(on);
      },
      read_messages);
}

TEST_CASE("a message that cannot be read comes in slices") {
  for (const errc code : {errc::unsupported, errc::out_of_range})
    for (const std::size_t successes : {0U, 2U}) {
      failure = code;  // The ranks inherit both.
      reads_left = successes;
      collective_suite::on_channels_of_all_sizes<failing_processes>(
          [](collective_suite::channels& on) {
            collective_suite::check_batch(on, 0, 7, 3);
            if (on.rank().index() % 2 == 1) failure = errc::ok;
            collective_suite::check_messages(on);
          },
          read_messages);
    }
  failure = errc::ok;
}

TEST_CASE("reads that are denied for one pair of ranks only") {
  on_team<failing_processes>(
      3,
      [](team& on) {
        if (on.rank() == rank_id{1}) {
          failure = errc::unsupported;
          failing_peer = rank_id{0};
        }
        check_rows(on);
        collective_suite::check_parts(on);
        test::expect(!are_read(on), "staged");
      },
      three_slices);
  collective_suite::on_channels<failing_processes>(
      3,
      [](collective_suite::channels& on) {
        if (on.rank() == rank_id{1}) {
          failure = errc::unsupported;
          failing_peer = rank_id{0};
        }
        collective_suite::check_batch(on, 0, 7, 3);
        reads_done = 0;
        collective_suite::check_messages(on);
        test::expect(reads_done != 0, "the others are read");
      },
      read_messages);
}

TEST_CASE("a message that is not all mapped memory is named at both ends, and all others arrive") {
  collective_suite::on_channels<test::direct_processes>(
      3,
      [](collective_suite::channels& on) {
        constexpr std::array<std::size_t, 3> sizes{20'000, std::size_t{1} << 16U, 300};
        const std::size_t me = on.rank().index();
        // More rounds than a receiver reads other messages in vain.
        for (std::uint64_t round = 0; round < 6; ++round) {
          const auto sent = [&](std::size_t source, std::size_t target, std::size_t i) {
            return values<std::uint8_t>(source, sizes[i], 100 * round + 10 * target + i);
          };
          std::vector<std::vector<std::uint8_t>> outputs;
          std::vector<std::vector<std::uint8_t>> inputs;
          for (std::size_t peer = 0; peer < on.size(); ++peer)
            for (std::size_t i = 0; i < sizes.size(); ++i) {
              outputs.emplace_back(sizes[i]);
              inputs.push_back(sent(me, peer, i));
            }
          std::vector<coll::transfer> batch;
          for (std::size_t place = 0; place < inputs.size(); ++place) {
            const rank_id peer{place / sizes.size()};
            if (peer == on.rank()) continue;
            batch.push_back(coll::recv_from(peer, outputs[place]));
            batch.push_back(coll::send_to(peer, inputs[place]));
          }
          const auto move = [&] {
            if (round % 2 == 0) return coll::batch_send_recv(on, batch);
            coll::pending_messages half = coll::start_batch_send_recv(on, batch);
            half.finish();
          };
          const std::string text = "did not move message " + std::to_string(5 * round + 1) +
                                   " from rank 1 to rank 0: of its 65536 bytes not all are mapped "
                                   "memory at rank 1";
          if (me == 1) {
            const auto gone = make_unmapped(sizes[1], sizes[1] / 2);
            batch[3] = coll::send_to(rank_id{0}, std::span{gone});
            test::expect_error(errc::invalid_argument, {text}, move);
          } else if (me == 0) {
            test::expect_error(errc::refused, {text}, move);
          } else {
            move();
          }
          for (std::size_t place = 0; place < outputs.size(); ++place) {
            const std::size_t source = place / sizes.size();
            const std::size_t i = place % sizes.size();
            if (source == me || (me == 0 && source == 1 && i == 1)) continue;
            collective_suite::expect_same<std::uint8_t>(outputs[place], sent(source, me, i),
                                                        "a message beside that");
          }
          collective_suite::check_batch(on, round, 2, round, true);
        }
      },
      read_messages);
}

TEST_CASE("a message that is not mapped at all, or no longer, whatever its read returns") {
  for (const bool comes_first : {false, true})
    for (const errc code : {errc::ok, errc::unsupported}) {
      const test::tally come;
      const int worst_status = failing_processes::run(2, [&](auto& comm) {
        collective_suite::channels on{comm, read_messages};
        failure = code;
        constexpr std::size_t bytes = std::size_t{1} << 16U;
        std::vector<std::uint8_t> output(bytes);
        const auto wait = [&] {
          while (come.count() == 0) std::this_thread::yield();
        };
        if (on.rank() == rank_id{1}) {
          if (!comes_first) wait();
          // What comes first copies its first slice.
          const auto gone = make_unmapped(bytes, comes_first ? bytes / 2 : 0);
          auto half = coll::start_send(on, gone, rank_id{0});
          if (comes_first) come.add();
          test::expect_error(errc::invalid_argument, {"message 0", "not all are mapped memory"},
                             [&] { half.finish(); });
        } else {
          if (comes_first) wait();
          auto half = coll::start_recv(on, output, rank_id{1});
          if (!comes_first) come.add();
          test::expect_error(errc::refused, {"message 0", "not all are mapped memory"},
                             [&] { half.finish(); });
        }
        collective_suite::check_messages(on);
      });
      CHECK(worst_status == 0);
    }
}

TEST_CASE("of a mismatch and a message that is not mapped the first one is named") {
  for (const bool is_mismatch_first : {false, true}) {
    const int worst_status = test::direct_processes::run(2, [&](auto& comm) {
      collective_suite::channels on{comm, read_messages};
      constexpr std::size_t bytes = std::size_t{1} << 16U;
      std::vector<std::uint8_t> output(bytes);
      std::vector<std::uint8_t> other(5);
      const rank_id peer{1 - on.rank().index()};
      std::vector<coll::transfer> batch{coll::recv_from(peer, output),
                                        coll::recv_from(peer, other)};
      if (on.rank() == rank_id{1})
        batch = {coll::send_to(peer, make_unmapped(bytes, bytes / 2)),
                 coll::send_to(peer, std::span{other}.first(4))};
      if (is_mismatch_first) std::ranges::reverse(batch);
      const errc code = is_mismatch_first         ? errc::mismatch
                        : on.rank() == rank_id{1} ? errc::invalid_argument
                                                  : errc::refused;
      test::expect_error(code, {"did not move message 0 from rank 1 to rank 0"},
                         [&] { coll::batch_send_recv(on, batch); });
      collective_suite::check_messages(on);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("sizes of messages around two slices, whichever end comes first") {
  collective_suite::on_channels<test::direct_processes>(
      2,
      [](collective_suite::channels& on) {
        const std::size_t slot = on.map().slot_bytes;
        const rank_id other{1 - on.rank().index()};
        std::uint64_t salt = 0;
        for (const std::size_t bytes : {slot, 2 * slot, 2 * slot + 1, 3 * slot, 9 * slot + 5})
          for (const std::size_t late : {0U, 1U}) {
            const auto sent = values<std::uint8_t>(0, bytes, ++salt);
            std::vector<std::uint8_t> received(bytes);
            if (on.rank() == rank_id{late})
              std::this_thread::sleep_for(std::chrono::milliseconds{1});
            if (on.rank() == rank_id{0})
              coll::send(on, sent, other);
            else
              coll::recv(on, received, other);
            if (on.rank() == rank_id{1})
              collective_suite::expect_same<std::uint8_t>(received, sent, "a message");
          }
      },
      read_messages);
}

TEST_CASE("an operand that is not mapped is refused by name on all ranks") {
  for (const bool in_parts : {false, true})
    on_team<test::direct_processes>(
        3,
        [&](team& on) {
          constexpr std::size_t bytes = std::size_t{1} << 16U;
          std::vector<std::uint8_t> out(3 * bytes);
          const std::span<const std::uint8_t> input =
              make_unmapped(bytes, on.rank() == rank_id{0} ? bytes : bytes / 2);
          constexpr std::array<std::uint64_t, 3> counts{bytes, bytes, bytes};
          // More often than ranks try memory of devices, which is mapped and cannot be read.
          for (int call = 0; call < 5; ++call)
            test::expect_error(errc::refused, {"rank 1 was given", "not all are mapped memory"},
                               [&] {
                                 if (in_parts)
                                   coll::all_gather_v(on, input, out, {.counts = counts});
                                 else
                                   coll::gather(on, input, out, rank_id{0});
                               });
          check_rows(on);
          test::expect(are_read(on), "no lasting harm");
        },
        three_slices);
}

TEST_CASE("a peer that dies after it has offered its operand") {
  const test::tally told;
  const int worst_status = test::direct_processes::run(3, [&](auto& comm) {
    team on{comm, three_slices};
    check_rows(on);
    const std::vector<float> mine(count, 1.0F);
    std::vector<float> out(3 * count);
    if (on.rank() == rank_id{2}) {
      auto offered = coll::start_all_gather(on, mine, out);
      ::raise(SIGKILL);
    }
    const auto begin = std::chrono::steady_clock::now();
    test::expect_error(errc::peer_dead, {"all_gather", "rank 2"},
                       [&] { coll::all_gather(on, mine, out); });
    test::expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds{10}, "soon");
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 2);
}

TEST_CASE("options differ") {
  const int worst_status = test::direct_processes::run(2, [](auto& comm) {
    team_options options;
    if (comm.rank() == rank_id{1}) options.private_bytes = 4096;
    test::expect_error(errc::mismatch, {"private_bytes", "found by trial", "4096"},
                       [&] { team on{comm, options}; });
  });
  CHECK(worst_status == 0);
}

TEST_CASE("classes of trials, by times that are given") {
  using coll::detail::way_trials;
  way_trials trials;
  const auto kind = operation_kind::scatter;
  const auto call = [&](std::size_t bytes, double staged, double read) {
    way_trials::running one = trials.begin(kind, bytes, 0);
    trials.count(one);
    if (!one.is_timed) return one;
    one.began = std::numeric_limits<std::uint32_t>::max() - 1000;  // The clock begins again.
    trials.add(one, one.began + static_cast<std::uint32_t>((one.way == 1 ? read : staged) * 1000));
    return one;
  };
  std::size_t read = 0;
  for (std::uint64_t i = 1; i < way_trials::first_decision; ++i)
    read += call(100'000, 20, 10).way + 100 * call(200'000, 10, 20).way;
  CHECK(read == 12 + 12 * 100);
  CHECK_FALSE(trials.choice(kind, 100'000).is_measured());
  CHECK(call(100'000, 20, 10).way == 1);
  CHECK(call(200'000, 20, 10).way == 0);
  CHECK(trials.choice(kind, 100'000).found(0) == 20);
  CHECK(trials.choice(kind, 70'000).found(1) == 10);
  CHECK_FALSE(trials.choice(kind, 60'000).is_measured());
  CHECK_FALSE(trials.choice(operation_kind::gather, 100'000).is_measured());
  // One class holds all that is larger.
  CHECK(&trials.choice(kind, std::size_t{1} << 23U) == &trials.choice(kind, std::size_t{1} << 40U));
  CHECK(&trials.choice(kind, 8191) == &trials.choice(kind, 1));
  // Reductions have classes up to a power of two, as costs do.
  const auto sum = operation_kind::all_reduce;
  CHECK(&trials.choice(sum, 1025) == &trials.choice(sum, 2048));
  CHECK(&trials.choice(sum, 1024) != &trials.choice(sum, 1025));
  CHECK(&trials.choice(sum, 256 << 10U) != &trials.choice(sum, 512 << 10U));
}

}  // namespace private_test
