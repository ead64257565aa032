// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The lock of a group of threads, with the way in which they sleep in its allgather.
class thread_gate {
 public:
  using mutex = std::mutex;

  /// Sleeps until `open`, but no longer than `pause`, and not after `until`. The caller holds
  /// `lock`. Returns true, because other ranks may still come.
  [[nodiscard]] bool wait(std::unique_lock<mutex>& lock, deadline until,
                          std::chrono::milliseconds pause) {
    changed_.wait_for(lock, std::min<deadline::clock::duration>(until.remaining(), pause));
    return true;
  }
  /// Wakes all threads that sleep in `wait`.
  void open() noexcept { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

/// The state and the allgather of the ranks of one group that have one address space. `Gate` is the
/// way in which they wait: as threads, or as fibres of one thread.
template <class Gate>
class shared_world {
 public:
  using contribution = bootstrap::contribution;

  explicit shared_world(std::size_t size)
      : page_{state_page::make_named(state_page::name_of_own_ranks, size)},
        told_(size, false),
        open_{fresh()} {}

  [[nodiscard]] std::size_t size() const noexcept { return told_.size(); }
  [[nodiscard]] membership::state_word* states() noexcept { return page_.words(); }
  /// Returns the line of each rank: [ranks].
  [[nodiscard]] std::vector<activity_line*> lines() const { return page_.lines(); }

  /// Returns the world of `ranks`, which have gone on without the others. All of them get the same
  /// object.
  [[nodiscard]] std::shared_ptr<shared_world> rest(const std::vector<rank_id>& ranks) {
    const std::lock_guard lock{mutex_};
    if (rest_ranks_ != ranks) {
      rest_ = std::make_shared<shared_world>(ranks.size());
      rest_ranks_ = ranks;
    }
    return rest_;
  }

  /// Makes waiting ranks check again which ranks are still there.
  void wake() {
    // Without the lock, a rank that has checked but does not sleep yet would miss the notification.
    const std::lock_guard lock{mutex_};
    gate_.open();
  }

  /// Carries out `bootstrap::allgather`. Advances `idle` while the call waits.
  std::vector<contribution> allgather(const membership& members, contribution own_part,
                                      deadline until, std::string_view doing, idle_work& idle) {
    const auto span = until.remaining();
    const rank_id me = members.rank();
    auto pause = idle.advance(poll_pause);
    std::shared_ptr<round> current;
    {
      std::unique_lock lock{mutex_};
      if (!failed_) join(me, std::move(own_part), doing);
      current = open_;
      if (!failed_ && current->arrived == size()) {
        current->complete = true;
        open_ = fresh();
        gate_.open();
      }
      while (!failed_ && !current->complete) {
        std::string gone;
        for (const rank_id peer : all_ranks{size()})
          if (!current->has_given[peer.index()] && members.state(peer) != rank_state::running)
            gone += (gone.empty() ? "" : ", ") + members.fate(peer);
        if (!gone.empty())
          fail(gone_ranks(doing, gone));
        else if (until.expired())
          fail(missing_ranks(doing, missing(*current), members, span));
        if (failed_) break;
        if (!gate_.wait(lock, until, pause) && !failed_ && !current->complete) {
          fail(all_wait(doing, missing(*current), size()));
          break;
        }
        lock.unlock();  // Other ranks must not wait for this rank's tasks.
        pause = idle.advance(poll_pause);
        lock.lock();
      }
      if (!current->complete) throw_told(members, doing);
    }
    // A complete round does not change any more, so that the ranks copy it at the same time without
    // the lock.
    std::vector<contribution> result;
    result.reserve(size());
    try {
      for (const contribution& given : current->given)
        result.push_back({given.bytes, duplicate(given.fd), given.object});
    } catch (const error& problem) {
      // The other ranks may have their copies already. They get the failure in their next call.
      const std::lock_guard lock{mutex_};
      fail({problem.code(), concat("allgather for '", doing, "': ", me, ": ", problem.text())});
      throw;
    }
    return result;
  }

 private:
  /// The contributions to one allgather.
  struct round {
    std::vector<contribution> given;
    std::vector<bool> has_given;
    std::size_t arrived = 0;
    rank_id first;
    std::string doing;
    bool complete = false;
  };

  /// Returns an empty round.
  [[nodiscard]] std::shared_ptr<round> fresh() const {
    auto made = std::make_shared<round>();
    made->given.resize(size());
    made->has_given.resize(size());
    return made;
  }

  /// Adds the contribution of a rank to the open round, or fails the group. The caller holds the
  /// lock.
  void join(rank_id me, contribution own_part, std::string_view doing) {
    if (own_part.bytes.size() > bootstrap::max_contribution_bytes)
      return fail(
          too_many_bytes(doing, me, own_part.bytes.size(), bootstrap::max_contribution_bytes));
    if (open_->arrived == 0) {
      open_->first = me;
      open_->doing = doing;
    } else if (open_->doing != doing) {
      return fail(different_collectives(open_->first, open_->doing, me, doing));
    }
    open_->given[me.index()] = std::move(own_part);
    open_->has_given[me.index()] = true;
    ++open_->arrived;
  }

  [[nodiscard]] static std::vector<rank_id> missing(const round& current) {
    std::vector<rank_id> ranks;
    for (const rank_id peer : all_ranks{current.has_given.size()})
      if (!current.has_given[peer.index()]) ranks.push_back(peer);
    return ranks;
  }

  void fail(failure why) {
    failed_ = std::move(why);
    gate_.open();
  }

  [[noreturn]] void throw_told(const membership& members, std::string_view doing) {
    const bool again = std::exchange(told_[members.rank().index()], true);
    throw_failure(again ? poisoned_by(doing, failed_->text) : *failed_, members);
  }

  state_page page_;
  typename Gate::mutex mutex_;
  Gate gate_;
  std::optional<failure> failed_;
  std::vector<char> told_;
  std::shared_ptr<round> open_;
  std::vector<rank_id> rest_ranks_;  ///< the ranks of `rest_`
  std::shared_ptr<shared_world> rest_;
};

/// A rank of a `World` of one address space.
template <class World>
class shared_bootstrap : public bootstrap {
 public:
  shared_bootstrap(std::shared_ptr<World> world, rank_id rank, std::size_t cores)
      : world_{std::move(world)} {
    set_members(std::make_shared<membership>(rank, world_->size(), world_->states(), world_,
                                             std::vector<unique_fd>{}, world_->lines()));
    set_one_host(cores);
  }

  [[nodiscard]] address_space addresses() const noexcept final { return address_space::shared; }

  [[nodiscard]] bool can_go_on() const noexcept final { return true; }
  [[nodiscard]] std::vector<contribution> allgather(contribution own_part, deadline until,
                                                    std::string_view doing) final {
    if (has_gone_on()) return allgather_of_the_rest(std::move(own_part), until, doing);
    const auto wait = members()->begin_wait({.operation = group_operation::allgather});
    auto all = world_->allgather(*members(), std::move(own_part), until, doing, *idle());
    members()->end_wait(wait);
    return all;
  }

 protected:
  [[nodiscard]] World& world() noexcept { return *world_; }

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                         rank_id member, deadline until) final;
  [[nodiscard]] std::unique_ptr<bootstrap> make_rest(
      const std::vector<rank_id>& ranks, rank_id member,
      const std::function<std::unique_ptr<bootstrap>(deadline until)>& meet, deadline until) final;

  std::shared_ptr<World> world_;
};

/// A rank of a subgroup.
template <class World>
class shared_subgroup final : public shared_bootstrap<World> {
 public:
  using shared_bootstrap<World>::shared_bootstrap;
  shared_subgroup(const shared_subgroup&) = delete;
  shared_subgroup& operator=(const shared_subgroup&) = delete;
  ~shared_subgroup() override {
    this->members()->announce_end(exceptions_before_);
    this->world().wake();
  }

 private:
  int exceptions_before_ = std::uncaught_exceptions();
};

template <class World>
std::unique_ptr<bootstrap> shared_bootstrap<World>::make_rest(
    const std::vector<rank_id>& ranks, rank_id member,
    const std::function<std::unique_ptr<bootstrap>(deadline until)>& /*meet*/, deadline /*until*/) {
  return std::make_unique<shared_subgroup<World>>(world_->rest(ranks), member, cores_here());
}

template <class World>
std::unique_ptr<bootstrap> shared_bootstrap<World>::make_subgroup(const std::vector<rank_id>& ranks,
                                                                  rank_id member, deadline until) {
  // A contribution passes a pointer to const, but the world of a subgroup is not const.
  struct offer {
    std::shared_ptr<World> world;
  };
  contribution own_part;
  if (member.index() == 0)
    own_part.object = std::make_shared<offer>(offer{std::make_shared<World>(ranks.size())});
  const auto all = allgather(std::move(own_part), until, "subgroup");
  const auto* const made = static_cast<const offer*>(all[ranks.front().index()].object.get());
  return std::make_unique<shared_subgroup<World>>(made->world, member, cores_here());
}

/// A group of threads of this process, and one of its ranks.
using thread_world = shared_world<thread_gate>;
using thread_bootstrap = shared_bootstrap<thread_world>;

}  // namespace peerbus::detail
