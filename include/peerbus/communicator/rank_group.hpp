// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// Options of a communicator.
struct communicator_options {
  /// The time limit of blocking calls without a deadline.
  std::chrono::milliseconds timeout{30'000};
  /// True if the caller will use `fetch_add`. The constructor of a communicator then throws
  /// `unsupported` for a transport without it, such as an RDMA device without atomics. The same on
  /// all ranks.
  bool needs_fetch_add = false;
};

/// The part of a communicator that is the same for all transports: its ranks, their agreements, and
/// the state that says whether they are in step.
class rank_group {
 public:
  rank_group(const rank_group&) = delete;
  rank_group& operator=(const rank_group&) = delete;
  virtual ~rank_group() = default;

  /// Returns the rank of the caller.
  [[nodiscard]] rank_id rank() const noexcept { return boot_->rank(); }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return boot_->size(); }
  /// Returns all ranks in ascending order, the caller included.
  [[nodiscard]] all_ranks ranks() const noexcept { return all_ranks{size()}; }
  /// Returns the states of the ranks, which change without calls.
  [[nodiscard]] const std::shared_ptr<membership>& members() const noexcept {
    return boot_->members();
  }
  /// Returns the bootstrap by which the ranks met.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  /// Returns the ranks that take part in operations now.
  [[nodiscard]] const group_view& view() const noexcept { return view_; }
  /// Returns the other ranks of the view in the order in which operations visit them. Unless
  /// `order_peers` has set another order, each rank begins with the next rank, so that ranks do not
  /// all visit the same rank at once. If some ranks are near and others far, near ranks come first.
  /// Among far ranks, rank i of a host begins with rank i of the next host.
  [[nodiscard]] std::span<const rank_id> peers() const noexcept { return peers_; }
  /// Sets the order of `peers` on this rank only, such as nearest first. Ranks outside the view are
  /// left out. No operation may be running.
  /// Cost: no communication.
  /// Throws: `error` invalid_argument unless `order` names every other rank once.
  void order_peers(std::vector<rank_id> order);
  /// Returns the default deadline of a blocking call that begins now.
  [[nodiscard]] deadline default_deadline() const noexcept {
    return deadline::after(options_.timeout);
  }

  ///@{
  /// Checks that all ranks pass the same values and no rank passes an objection. Collective. For
  /// set-up that must be the same everywhere, such as the sizes of a model.
  /// Cost: one `bootstrap::allgather`.
  /// Throws, on all ranks: `error` that names the value, the ranks and their values; the objection
  /// of a rank; or as `gather`.
  void agree(std::string_view doing, std::span<const declared> values,
             const std::optional<error>& objection = std::nullopt);
  void agree(std::string_view doing, std::span<const declared> values, deadline until,
             const std::optional<error>& objection = std::nullopt);
  ///@}

  /// Calls `make()`, which is local, on every rank. Returns this rank's result when all ranks have
  /// a result. If a rank has none, no rank keeps its result. Collective. `what` names the result in
  /// errors.
  /// Cost: one `bootstrap::allgather`.
  /// Throws, on all ranks: the `error` of `objection_of` on a rank that failed; or as `agree`.
  template <class Make>
  [[nodiscard]] auto on_all_ranks(std::string_view what, deadline until, Make&& make) {
    require_healthy(what, view_.number());
    return guarded(
        [&] { return peerbus::on_all_ranks(*boot_, what, until, std::forward<Make>(make)); });
  }
  /// Calls `make()` as `on_all_ranks` does, for a `make()` that is itself a collective of all
  /// ranks, or of parts of them that agree on their errors among themselves.
  /// Throws, on all ranks: as `on_all_ranks`.
  /// Throws, on this rank: any `error` of `make()` that is no `agreed_error`, because a rank is
  /// then late or gone; the communicator is poisoned.
  template <class Make>
  [[nodiscard]] auto collective_on_all_ranks(std::string_view what, deadline until, Make&& make) {
    require_healthy(what, view_.number());
    return guarded([&] {
      return peerbus::collective_on_all_ranks(*boot_, what, until, std::forward<Make>(make));
    });
  }
  /// Returns the contributions `own` of all ranks, by rank. Collective.
  /// Cost: one `bootstrap::allgather`.
  /// Throws: as `bootstrap::allgather`; the communicator is then poisoned, unless all ranks throw.
  [[nodiscard]] std::vector<bootstrap::contribution> gather(std::string_view doing,
                                                            bootstrap::contribution own,
                                                            deadline until);

  /// Marks the communicator unusable, because its ranks are out of step, and throws `error` `code`.
  /// The first reason is kept. For operations built on windows.
  /// Threads: any.
  [[noreturn]] void fail(errc code, std::string_view reason);
  /// Marks the communicator unusable and throws, as `fail`, after a wait for the ranks `awaited`.
  /// The text of the error is `text`, then each of these ranks with `what(rank)` and its last known
  /// activity, then other ranks that are `missing`, then `text_end`.
  /// Threads: any.
  [[noreturn]] void fail_waiting(errc code, std::string text, std::span<const rank_id> awaited,
                                 detail::function_ref<std::string(rank_id)> what,
                                 std::string_view text_end = {});
  /// Marks the communicator unusable, as `fail` does, without throwing.
  /// Threads: any.
  void poison(std::string_view reason);
  /// Throws `error` poisoned, with the first reason, if the communicator is unusable; view_changed
  /// if its view differs from `view`, the view of the calling object.
  /// Cost: two loads.
  /// Threads: any.
  void require_healthy(std::string_view doing, std::uint64_t view = 0) const;
  /// Returns whether the communicator is unusable.
  /// Threads: any.
  [[nodiscard]] bool is_poisoned() const noexcept {
    // order: relaxed; guards nothing that the caller reads.
    return poisoned_.load(std::memory_order_relaxed);
  }
  /// Returns whether the ranks are threads of one process.
  [[nodiscard]] bool are_threads() const noexcept {
    return boot_->addresses() == address_space::shared;
  }
  /// Returns the contributions `own` of all ranks of the view, in the order of their numbers. All
  /// must have equally many bytes, up to 1 024. Collective among them. For objects that continue in
  /// a later view. `doing` names the purpose, and must be the same on all ranks.
  /// Throws: `error` mismatch if ranks do something else; invalid_argument; unsupported unless
  /// `communicator::continue_without_the_dead` works here; peer_dead; timed_out; view_changed. Each
  /// of these poisons a communicator. Also poisoned.
  [[nodiscard]] virtual PEERBUS_INLINE std::vector<std::byte> gather_in_view(
      std::string_view doing, std::span<const std::byte> own, deadline until);
  /// Ends a collective that changes objects which continue in a later view: either all living
  /// members reach its end, or all throw, even if a rank dies meanwhile. Collective among the
  /// members. If the group cannot continue without ranks, it does nothing.
  /// Throws: as `gather_in_view`.
  virtual void end_together(std::string_view /*doing*/, deadline /*until*/) {}
  /// Returns a text such as "rank 3 died", for messages. Empty if all ranks are present and can be
  /// reached.
  [[nodiscard]] virtual std::string missing() const = 0;

 protected:
  /// Marks the group unusable for `reason`, as `fail` does. Returns the text of the error.
  virtual PEERBUS_INLINE std::string fail_text(std::string_view reason);
  /// Makes the group of the ranks of `boot`, which must outlive it. Does not communicate.
  rank_group(bootstrap& boot, communicator_options options);
  /// Enters `view`, on which its members have agreed. The group is usable again. No operation may
  /// be running on this rank.
  void enter(group_view view);

  /// Sets the order of `peers` that applies unless `order_peers` sets another. `near` must hold the
  /// ranks near this rank, in ascending order and with this rank. Does nothing if they are all
  /// ranks.
  void spread_peers(std::span<const rank_id> near);

  /// Checks a list of other ranks.
  /// Throws: `error` invalid_argument if `named` has the caller or a rank that does not exist.
  void require_others(std::string_view doing, std::span<const rank_id> named) const;

  /// Calls `collective`, and poisons the group if it throws and leaves the ranks out of step. An
  /// `agreed_error`, which all ranks throw together, leaves them in step.
  template <class Collective>
  auto guarded(Collective&& collective) {
    try {
      return collective();
    } catch (const agreed_error&) {
      throw;
    } catch (const std::exception& problem) {
      poison(problem.what());
      throw;
    }
  }

 private:
  bootstrap* boot_;
  communicator_options options_;
  std::mutex poisoning_;
  std::atomic<bool> poisoned_{false};
  std::string poison_;
  std::size_t exclusions_ = 0;  ///< the number of exclusions of the membership that the view knows
  group_view view_;
  std::vector<rank_id> peers_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/rank_group.ipp>  // IWYU pragma: keep
#endif
