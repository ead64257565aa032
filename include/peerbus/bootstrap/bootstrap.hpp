// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus {

/// Whether the ranks of a group can use each other's pointers.
enum class address_space { shared, separate };

/// How ranks find each other and exchange what they need before any window exists: set-up only,
/// so it may be slow, and virtual. A bootstrap outlives the transports made from it.
///
/// Threads: one call at a time per rank.
class bootstrap {
 public:
  static constexpr std::size_t max_contribution_bytes = std::size_t{64} << 20;

  /// What one rank gives to all: bytes, and optionally a file descriptor or an object.
  struct contribution {
    std::vector<std::byte> bytes;
    unique_fd fd;
    /// Reaches ranks that share addresses only; empty elsewhere.
    std::shared_ptr<const void> object = nullptr;
  };

  bootstrap(const bootstrap&) = delete;
  bootstrap& operator=(const bootstrap&) = delete;
  virtual ~bootstrap() = default;

  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  /// How many ranks share this host, the caller included.
  [[nodiscard]] virtual std::size_t ranks_here() const noexcept { return size(); }
  /// How many cores the ranks on this host may run on, all together. Not `usable_cores()` of the
  /// caller: a rank pinned to one core would take the group for crowded.
  [[nodiscard]] virtual std::size_t cores_here() const noexcept = 0;
  [[nodiscard]] virtual address_space addresses() const noexcept = 0;
  [[nodiscard]] const std::shared_ptr<membership>& members() const noexcept { return members_; }
  /// The work that `allgather` advances while it waits.
  [[nodiscard]] const std::shared_ptr<idle_work>& idle() const noexcept { return idle_; }

  /// Collective: gives `mine` to every rank and returns what each gave, by rank. The descriptors
  /// in the result are the caller's own. `doing` names the purpose in errors, and must be the same
  /// on all ranks: it tells when they called different collectives. While this call waits, it
  /// advances `idle()` as often as that asks for.
  /// A failure ends this call, or the next one of a rank that already has its result, on every rank
  /// that takes part with the same text, and later calls with `poisoned`. Without rank 0 that may
  /// take a second longer than `until`. Throws: `error` timed_out (naming the ranks that did not
  /// come), peer_dead, mismatch (different `doing`), invalid_argument (more bytes than
  /// `max_contribution_bytes`), poisoned, system.
  [[nodiscard]] virtual std::vector<contribution> allgather(contribution mine, deadline until,
                                                            std::string_view doing) = 0;

 protected:
  bootstrap() = default;
  void set_members(std::shared_ptr<membership> members) { members_ = std::move(members); }

 private:
  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_ = std::make_shared<idle_work>();
};

}  // namespace peerbus
