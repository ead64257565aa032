// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "bootstrap/support.hpp"
#include "support/phases.hpp"

/// Groups that lose ranks and take in others under load, by a plan: a list of phases, each the
/// slots that serve in it, those that are killed in it as by `kill -9`, at any moment or once
/// others agree on the next view, and those that the others put out although they live. A slot that
/// the next phase does not name leaves by itself, and one that it names anew joins. A phase ends
/// when each of its slots that stay has served some batches with exactly the others.
namespace plans {

/// What the processes of a plan share with the one that started them.
struct board {
  struct progress {
    std::atomic<std::size_t> phase{0};
    std::atomic<std::uint32_t> batches{0};  ///< served in this phase with exactly its slots
  };
  std::atomic<std::size_t> phase{0};         ///< the number of phases once the plan is over
  std::atomic<std::uint64_t> batches{0};     ///< of all slots
  std::atomic<std::uint64_t> agreements{0};  ///< how often a slot has begun to go on without others
  std::array<progress, most_slots> of_slots;
};

/// Returns `place` with the rank and size that it has among the slots `first` of the beginning.
template <class Settings>
Settings seat_among(const slots& first, Settings place) {
  const auto own = std::find(first.begin(), first.end(), static_cast<std::size_t>(place.rank));
  place.rank = static_cast<std::size_t>(own - first.begin());
  place.size = first.size();
  return place;
}

/// Returns the slots of the members of a communicator's view.
template <class Communicator>
slots members_of(const Communicator& comm) {
  const auto members = comm.view().members();
  slots found;
  found.reserve(members.size());
  for (const peerbus::rank_id member : members) found.push_back(comm.boot().slot(member).index());
  return found;
}

/// Serves as `slot` until the plan is over, or names the slot no more. `Ways` says by what:
/// `begin(slots)` and `join()` return a pointer to a server, which has a communicator `comm`;
/// `go_on(server, evicted)` continues without the dead and the slots `evicted`, `admit(server)`
/// returns whether it took ranks in, and `serve(server)` checks a batch.
///
/// One slot puts others out, and the others hear of it in what they do just then.
template <class Ways>
void live(const plan& phases, board& shared, std::size_t slot, Ways ways) {
  const std::size_t begun = shared.phase;
  auto& progress = shared.of_slots[slot];
  auto server = begun == 0 ? ways.begin(phases.front().all()) : ways.join();
  bool has_lost = false;
  for (std::size_t now = begun; now < phases.size(); now = shared.phase) {
    if (now > begun && !phases[now].names(slot)) return;
    try {
      const slots members = members_of(server->comm);
      const slots staying = among(members, phases[now].serve);
      const bool decides = !staying.empty() && staying.front() == slot;
      const slots evicted = decides ? among(members, phases[now].evicted) : slots{};
      if (has_lost || !evicted.empty()) {
        ++shared.agreements;
        ways.go_on(server, evicted);
      }
      has_lost = false;
      if (ways.admit(server)) continue;
      ways.serve(*server);
      ++shared.batches;
      if (members_of(server->comm) == phases[now].serve) {
        if (progress.phase.exchange(now) != now) progress.batches = 0;
        ++progress.batches;
      }
    } catch (const peerbus::error& problem) {
      const bool is_evicted =
          has(phases[std::min(shared.phase.load(), phases.size() - 1)].evicted, slot);
      if (is_evicted && problem.code() == peerbus::errc::view_changed) return;
      if (problem.code() != peerbus::errc::peer_dead && problem.code() != peerbus::errc::poisoned)
        throw;
      has_lost = true;
    }
  }
}

/// The processes of a plan, each started when a phase names its slot anew.
class job {
 public:
  /// `body(board, slot)` is what a process does, by `live`. Slots are killed after `moment()`, each
  /// up to an eighth of that after the one before. A phase lasts for `batches` of each of its
  /// slots. Processes that are put out end with the status `evicted_ends_with`.
  job(const plan& phases, std::function<void(board&, std::size_t)> body,
      std::function<std::chrono::microseconds()> moment, std::uint32_t batches,
      int evicted_ends_with)
      : phases_{phases},
        body_{std::move(body)},
        moment_{std::move(moment)},
        batches_{batches},
        evicted_ends_with_{evicted_ends_with} {}
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    for (const pid_t process : processes_)
      if (process != 0) {
        ::kill(process, SIGKILL);
        ::waitpid(process, nullptr, 0);
      }
  }

  void run() {
    for (std::size_t p = 0; p < phases_.size(); ++p) {
      CAPTURE(p);
      const phase& now = phases_[p];
      const std::uint64_t agreements = shared_->agreements;
      shared_->phase = p;
      for (const std::size_t slot : now.all())
        if (processes_[slot] == 0)
          processes_[slot] = test::in_child([&] {
            body_(*shared_, slot);
            return 0;
          });
      if (!now.killed.empty()) std::this_thread::sleep_for(moment_());
      for (const std::size_t slot : now.killed) {
        // The others may agree on the one before meanwhile.
        if (slot != now.killed.front()) std::this_thread::sleep_for(moment_() / 8);
        kill(slot);
      }
      if (!now.killed_in_agreement.empty()) await_agreement(agreements);
      for (const std::size_t slot : now.killed_in_agreement) {
        std::this_thread::sleep_for(moment_() / 8);
        kill(slot);
      }
      for (const std::size_t slot : now.evicted) expect_end(slot, evicted_ends_with_);
      for (std::size_t slot = 0; slot < most_slots; ++slot)
        if (processes_[slot] != 0 && !now.names(slot)) expect_end(slot, 0);
      await(p);
    }
    shared_->phase = phases_.size();
    for (const std::size_t slot : phases_.back().serve) expect_end(slot, 0);
  }
  /// Returns how many batches all slots together have served.
  [[nodiscard]] std::uint64_t batches() const { return shared_->batches; }

 private:
  void kill(std::size_t slot) {
    ::kill(processes_[slot], SIGKILL);
    expect_end(slot, 128 + SIGKILL);
  }

  /// Waits until a slot goes on without others, after `agreements` such beginnings.
  void await_agreement(std::uint64_t agreements) {
    const auto until = test::patience();
    while (shared_->agreements == agreements) {
      if (until.expired()) FAIL("nobody goes on without the ranks that were killed");
      std::this_thread::yield();
    }
  }

  void expect_end(std::size_t slot, int status) {
    CAPTURE(slot);
    CHECK(test::status_of(std::exchange(processes_[slot], 0)) == status);
  }

  /// Waits until the slots of phase `p` have served enough.
  void await(std::size_t p) {
    const auto until = test::patience();
    for (const std::size_t slot : phases_[p].serve) {
      CAPTURE(slot);
      const auto& progress = shared_->of_slots[slot];
      while (progress.phase != p || progress.batches < batches_) {
        int status = 0;
        if (::waitpid(processes_[slot], &status, WNOHANG) != 0) {
          processes_[slot] = 0;
          FAIL("it ended with status ", status);
        }
        if (until.expired()) FAIL("it served ", progress.batches.load(), " batches");
        std::this_thread::sleep_for(std::chrono::microseconds{200});
      }
    }
  }

  const plan& phases_;
  std::function<void(board&, std::size_t)> body_;
  std::function<std::chrono::microseconds()> moment_;
  std::uint32_t batches_;
  int evicted_ends_with_;
  test::shared<board> shared_;
  std::array<pid_t, most_slots> processes_{};
};

}  // namespace plans
